//! Brings a schema to Graphile's revision 20 and to our own newest revision, whatever its state is.
//!
//! The state is read from the catalog ([`state`]), and the steps are decided from that alone ([`plan`]). They run here,
//! in one transaction under a lock on the table `migrations`. Graphile's own migration inserts its row into that table
//! first, so the later of two migrations waits for the earlier one, and then finds its work done. Only indexes on a
//! table with many jobs are built before that ([`indexes`]), since adds would wait for them.
//!
//! States of a schema: absent; Graphile's revisions 1 to 10 (the old tables), 11 to 15 (the new tables under public
//! names), 16 to 19 (older functions), 20; higher revisions are newer than this version supports. A migration that
//! fails leaves the schema as it was.

mod functions;
mod indexes;
mod plan;
mod queries;
mod roles;
mod state;

use std::time::{Duration, Instant};

use tokio_postgres::{Client, IsolationLevel};

pub use plan::MigrationPlan;
use plan::Step;
pub use roles::roles_sql;
use state::State;

use crate::{Error, Result, Schema};

/// The newest revision of Graphile Worker that we support: that of its version 0.18.
pub const GRAPHILE_REVISION: i32 = 20;

/// How often a migration starts over because another one ran at the same time.
const TRIES: u32 = 30;

/// For how long a migration is tried again because a transaction keeps a table locked, and the pause between attempts
/// in which others can use the table. Statements that need the table queue up behind the waiting migration, so each
/// attempt is short (lock.sql).
const LOCK_PATIENCE: Duration = Duration::from_secs(600);
const LOCK_PAUSE: Duration = Duration::from_millis(800);

/// What to do with an existing schema if its migration stops the workers of older releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breaking {
    /// Migrate it: this was requested explicitly.
    Allowed,
    /// Refuse, and change nothing.
    Refused,
}

/// Whether a running worker can use a schema.
#[derive(Debug)]
pub(crate) enum Standing {
    /// The worker can work with it. Some of our own objects may be missing.
    Usable,
    /// The schema does not exist.
    Absent,
    /// A migration is needed first that would stop other workers.
    Behind(Error),
    /// The schema is too new for this version.
    TooNew(Error),
}

/// Installs or upgrades the schema. Does nothing, and takes no lock, if the schema is up to date.
///
/// This is an explicit request: it also applies revisions after which older releases of graphile-worker stop working
/// ([`MigrationPlan::stops_working`]). A worker that starts does not apply them, unless it is configured to.
///
/// Safe to call from any number of processes at once. Cancel safe: the migration is done as a whole or not at all,
/// except that indexes which were built before it may exist.
pub async fn migrate(client: &mut Client, schema: &Schema) -> Result<MigrationPlan> {
    migrate_with(client, schema, Breaking::Allowed).await
}

pub(crate) async fn migrate_with(
    client: &mut Client,
    schema: &Schema,
    breaking: Breaking,
) -> Result<MigrationPlan> {
    let began = Instant::now();
    let mut tries = 0;
    let mut is_waiting = false;
    let mut done_before = Vec::new();
    loop {
        let error = match attempt(client, schema, breaking, &mut done_before).await {
            Ok(mut plan) => {
                plan.before = done_before;
                return Ok(plan);
            }
            Err(error) => error,
        };
        if is_locked_out(&error) {
            if began.elapsed() > LOCK_PATIENCE {
                return Err(error.with_hint("end the transactions that hold locks on tables of the schema"));
            }
            if !std::mem::replace(&mut is_waiting, true) {
                tracing::warn!(
                    schema = schema.name(),
                    "the migration is waiting for a transaction that holds locks on tables of the schema"
                );
            }
            tokio::time::sleep(LOCK_PAUSE).await;
            continue;
        }
        tries += 1;
        if tries == TRIES || !another_migration_was_at_work(&error) {
            return Err(error);
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(20..200))).await;
    }
}

/// What [`migrate`] would do now. Changes nothing.
///
/// Cancel safe: it only reads.
pub async fn plan_migration(client: &Client, schema: &Schema) -> Result<MigrationPlan> {
    let state = State::read(client, schema).await.map_err(|error| Error::database(reading(schema), error))?;
    plan::plan(&state, schema)
}

/// The SQL that installs the schema in a database that does not have it. Needs no database.
pub fn migration_sql(schema: &Schema) -> String {
    plan::from_nothing(schema).to_string()
}

/// Finds out whether a running worker can use the schema. Changes nothing.
pub(crate) async fn examine(client: &Client, schema: &Schema) -> Result<Standing> {
    let state = State::read(client, schema).await.map_err(|error| Error::database(reading(schema), error))?;
    let plan = match plan::plan(&state, schema) {
        Ok(plan) => plan,
        Err(error) => return Ok(Standing::TooNew(error)),
    };
    if plan.from_revision().is_none() {
        return Ok(Standing::Absent);
    }
    Ok(plan.check(schema, Breaking::Refused).map_or_else(Standing::Behind, |()| Standing::Usable))
}

/// Makes one attempt. Indexes that were built before the transaction are added to `done_before`: a later attempt finds
/// them in place.
async fn attempt(
    client: &mut Client,
    schema: &Schema,
    breaking: Breaking,
    done_before: &mut Vec<Step>,
) -> Result<MigrationPlan> {
    // If this query fails, the full path below reports the reason, or corrects it.
    if state::is_current(client, schema).await.unwrap_or(false) {
        return Ok(plan::nothing(schema));
    }
    let plan = plan_after_indexes(client, schema, breaking, done_before).await?;
    if let Some(warning) = plan.warning() {
        tracing::warn!(schema = schema.name(), "{warning}");
    }
    plan.check(schema, breaking)?;
    if plan.is_empty() {
        return Ok(plan);
    }
    match apply(client, schema, &plan, breaking).await {
        Ok(plan) => {
            report(schema, &plan);
            Ok(plan)
        }
        Err(Failure::Refused(error)) => Err(error),
        Err(Failure::Database(error)) if may_wait(&plan, &error) => {
            let reason = explain(client, schema, migrating(schema), error).await;
            tracing::warn!(schema = schema.name(), %reason, "another tool replaced functions of the schema");
            Ok(plan)
        }
        Err(Failure::Database(error)) => Err(explain(client, schema, migrating(schema), error).await),
    }
}

/// Builds the indexes that are built before the transaction, until none is missing, and plans the remaining steps.
async fn plan_after_indexes(
    client: &mut Client,
    schema: &Schema,
    breaking: Breaking,
    done_before: &mut Vec<Step>,
) -> Result<MigrationPlan> {
    loop {
        let state = match read_state(client, schema).await {
            Ok(state) => state,
            Err(error) => return Err(explain(client, schema, reading(schema), error).await),
        };
        let plan = plan::plan(&state, schema)?;
        plan.check(schema, breaking)?;
        if plan.before.is_empty() {
            return Ok(plan);
        }
        let built = match indexes::wait_for_other_builds(client, schema, &state).await {
            Ok(true) => continue,
            Ok(false) => indexes::build(client, &plan.before).await,
            Err(error) => Err(error),
        };
        if let Err(error) = built {
            return Err(explain(client, schema, migrating(schema), error).await);
        }
        done_before.extend(plan.before);
    }
}

/// Reads the state with the settings of a migration: a short `statement_timeout` of the role must not interrupt it.
async fn read_state(client: &mut Client, schema: &Schema) -> Result<State, tokio_postgres::Error> {
    let transaction =
        client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
    let (_, state) = tokio::try_join!(
        biased;
        transaction.batch_execute(plan::SETTINGS),
        State::read(&transaction, schema),
    )?;
    // Rolls back without waiting for the answer.
    drop(transaction);
    Ok(state)
}

enum Failure {
    Refused(Error),
    Database(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Failure {
        Failure::Database(error)
    }
}

/// Takes the lock of the schema, and then runs the steps that are still needed.
async fn apply(
    client: &mut Client,
    schema: &Schema,
    first: &MigrationPlan,
    breaking: Breaking,
) -> Result<MigrationPlan, Failure> {
    let transaction =
        client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
    transaction.batch_execute(plan::SETTINGS).await?;
    for step in &first.opening {
        transaction.batch_execute(&step.sql).await?;
    }
    transaction.batch_execute(&schema.fill(plan::LOCK)).await?;
    let state = State::read(&transaction, schema).await?;
    let mut plan = plan::plan(&state, schema).map_err(Failure::Refused)?;
    plan.check(schema, breaking).map_err(Failure::Refused)?;
    for step in &plan.steps {
        tracing::debug!(schema = schema.name(), step = step.title, "migrating");
        transaction.batch_execute(&step.sql).await?;
    }
    transaction.commit().await?;
    plan.opening.clone_from(&first.opening);
    Ok(plan)
}

/// Logs every migration, since an operator may not expect it.
fn report(schema: &Schema, plan: &MigrationPlan) {
    if plan.is_empty() {
        return;
    }
    let (schema, steps): (_, Vec<&str>) = (schema.name(), plan.titles().collect());
    match (plan.from_revision(), plan.stops_working()) {
        (None, _) => tracing::warn!(schema, "the schema was installed"),
        (Some(from), None) => {
            tracing::warn!(schema, from, to = GRAPHILE_REVISION, ?steps, "the schema was migrated")
        }
        (Some(from), Some(stops)) => {
            tracing::warn!(schema, from, to = GRAPHILE_REVISION, ?steps, "the schema was migrated: {stops}");
        }
    }
}

/// A role that may run jobs but not replace functions works with the functions that are there.
fn may_wait(plan: &MigrationPlan, error: &tokio_postgres::Error) -> bool {
    plan.is_functions_only() && error.code().is_some_and(|code| code.code() == "42501")
}

/// Whether a transaction keeps a table locked: see lock.sql.
fn is_locked_out(error: &Error) -> bool {
    error.db_code() == Some("55P03")
}

/// The unique indexes of the catalog and of `migrations` decide which migration was first; the others start over.
fn another_migration_was_at_work(error: &Error) -> bool {
    match error.db_code() {
        Some("23505" | "42P06" | "42P07" | "42710" | "42704" | "40001" | "40P01") => true,
        Some("XX000") => error.message().contains("concurrently"),
        _ => false,
    }
}

/// Turns "permission denied" into an error that names the missing privilege and the statement that grants it.
async fn explain(client: &Client, schema: &Schema, doing: String, error: tokio_postgres::Error) -> Error {
    let denied = error.code().is_some_and(|code| code.code() == "42501");
    let error = Error::database(doing, error);
    if !denied {
        return error;
    }
    match queries::read_schema_state(client, schema).await {
        Ok(state) => match state.missing_privilege(schema) {
            Some(missing) => error.into_config().with_hint(missing),
            None => error.into_config(),
        },
        Err(_) => error,
    }
}

fn reading(schema: &Schema) -> String {
    format!("reading the state of schema {}", schema.quoted())
}

fn migrating(schema: &Schema) -> String {
    format!("migrating schema {}", schema.quoted())
}
