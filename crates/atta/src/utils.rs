//! Adding and managing jobs, inside a worker or without one.

mod adapters;
mod add;
mod admin;
mod bulk;
mod check;
mod connection;
mod overview;
mod queries;
mod read;
mod text_rows;

use std::sync::{Arc, OnceLock};

use chrono::{DateTime, Utc};
use deadpool_postgres::Pool;
use serde::de::DeserializeOwned;

use add::Access;
pub use add::RawJobSpec;
pub use admin::{CleanupCounts, CleanupTask};
pub use connection::AddJobs;
pub use overview::{
    JobCounters, KnownCrontab, QueueSummary, Stats, TaskSummary, WorkerStatus, WorkerSummary,
};
pub use read::{JobCounts, JobFilter, JobState};
use text_rows::TextRow;

use crate::db::{pool, quote_identifier};
use crate::migrate::{Breaking, migrate_with};
use crate::testing::Clock;
use crate::{ConnectionSettings, Error, Job, MigrationPlan, Result, Schema};

/// Adds and manages jobs. Cheap to clone; all clones share one pool.
///
/// All async functions are cancel safe. When a call returns `Ok`, its work is committed, or is part of the transaction
/// that was passed. When the future is dropped, its work is done as a whole or not at all, and the pool, the connection
/// or the transaction can be used afterwards. [`WorkerUtils::cleanup`] does each [`CleanupTask`] as a whole.
#[derive(Clone)]
pub struct WorkerUtils {
    inner: Arc<Inner>,
    /// The clock to use instead of the database's.
    clock: Option<Clock>,
    /// Whether the statement that adds a job is prepared, once per connection.
    prepares: bool,
}

struct Inner {
    pool: Pool,
    schema: Schema,
    access: OnceLock<Access>,
    /// Set once it is known that row level security does not hide the tables from this role.
    is_visible: OnceLock<()>,
}

impl std::fmt::Debug for WorkerUtils {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerUtils").field("schema", &self.inner.schema).finish_non_exhaustive()
    }
}

impl WorkerUtils {
    /// Uses the given pool, and the schema that contains the jobs. A producer role, which may only add jobs, uses the
    /// schema with the functions for that ([`roles_sql`](crate::roles_sql)).
    pub fn new(pool: Pool, schema: Schema) -> WorkerUtils {
        let inner = Inner { pool, schema, access: OnceLock::new(), is_visible: OnceLock::new() };
        WorkerUtils { inner: Arc::new(inner), clock: None, prepares: false }
    }

    /// Connects to a database by its connection string, which is read as in [`ConnectionSettings`]. Uses up to ten
    /// connections and the default schema.
    pub fn connect(database_url: &str) -> Result<WorkerUtils> {
        let pool = pool::pool(&ConnectionSettings::new(database_url)?, 10)?;
        Ok(WorkerUtils::new(pool, Schema::default()))
    }

    /// The same connections with another schema.
    #[must_use]
    pub fn with_schema(self, schema: Schema) -> WorkerUtils {
        let WorkerUtils { inner, clock, prepares } = self;
        WorkerUtils { clock, prepares, ..WorkerUtils::new(inner.pool.clone(), schema) }
    }

    /// Whether a job without a `run_at` gets this machine's time instead of the database's. Default: false.
    #[must_use]
    pub fn with_use_local_time(mut self, use_local_time: bool) -> WorkerUtils {
        self.clock = use_local_time.then(Clock::system);
        self
    }

    /// Whether the statement that adds a job is prepared, once per connection, which saves the server about a third of
    /// the work of an add. Must be false behind a pooler in transaction mode. Default: false; for utils that a worker
    /// created, what the worker detected.
    #[must_use]
    pub fn with_prepared_statements(mut self, use_prepared: bool) -> WorkerUtils {
        self.prepares = use_prepared;
        self
    }

    pub(crate) fn with_clock(mut self, clock: Option<Clock>) -> WorkerUtils {
        self.clock = clock;
        self
    }

    /// The pool from which connections are taken.
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// The schema that contains the jobs.
    pub fn schema(&self) -> &Schema {
        &self.inner.schema
    }

    /// Installs or upgrades the schema, as [`crate::migrate`] does.
    ///
    /// Cancel safe, as [`crate::migrate`] is.
    pub async fn migrate(&self) -> Result<MigrationPlan> {
        self.migrate_with(Breaking::Allowed).await
    }

    /// The same, with a choice whether breaking migrations are allowed.
    pub(crate) async fn migrate_with(&self, breaking: Breaking) -> Result<MigrationPlan> {
        let mut client = pool::get(&self.inner.pool, "migrating the schema").await?;
        migrate_with(&mut client, &self.inner.schema, breaking).await
    }

    /// The time by the database's clock, which decides when a job is due.
    ///
    /// Cancel safe: it only reads.
    pub async fn read_clock(&self) -> Result<DateTime<Utc>> {
        let doing = "reading the database's clock";
        let client = pool::get(&self.inner.pool, doing).await?;
        crate::db::read_clock(&client).await.map_err(|error| Error::database(doing, error))
    }

    /// Runs one statement with one JSON argument; returns its rows of JSON text.
    async fn ask(&self, doing: &str, template: &str, argument: &serde_json::Value) -> Result<Vec<String>> {
        let rows = self.ask_rows(doing, template, argument).await?;
        Ok(rows.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect())
    }

    /// The same, with all columns of the rows.
    async fn ask_rows(
        &self,
        doing: &str,
        template: &str,
        argument: &serde_json::Value,
    ) -> Result<Vec<TextRow>> {
        check::check_argument(doing, "argument", argument)?;
        let mut client = pool::get(&self.inner.pool, doing).await?;
        self.check_visible(&client, doing).await?;
        let sql = self.inner.schema.fill(template);
        match text_rows::query(&mut client, &sql, &argument.to_string()).await {
            Ok(rows) => Ok(rows),
            Err(error) => Err(self.explain_with(&client, Error::database(doing, error)).await),
        }
    }

    /// [`WorkerUtils::explain`], with a better hint if the schema for producers was meant, or the one that it adds to.
    async fn explain_with(&self, client: &deadpool_postgres::Object, error: Error) -> Error {
        let error = self.explain(error);
        let is_denied = error.db_code() == Some("42501");
        if !is_denied && !matches!(error.db_code(), Some("42P01" | "42883" | "3F000")) {
            return error;
        }
        // The hint is only an addition to the error, so an error of this query does not matter.
        let schemas = queries::read_add_schemas(client, &self.inner.schema).await.unwrap_or_default();
        let Some(found) = schemas.into_iter().next() else { return error };
        let queries::AddSchema { add_schema, schema, may_add } = found;
        if add_schema == self.inner.schema.name() {
            return error.with_hint(format!(
                "schema {} only has functions to add jobs; the jobs are in schema {}: use -s {schema}",
                quote_identifier(&add_schema),
                quote_identifier(&schema)
            ));
        }
        match (is_denied && may_add, error.hint().map(str::to_owned)) {
            (true, Some(hint)) => error.with_hint(format!(
                "this role may add jobs: use atta add -s {add_schema}; to do more, {hint}"
            )),
            _ => error,
        }
    }

    /// Fails if row level security hides the tables from this role: otherwise the role would read that there are no
    /// jobs. Queries the database until the answer is that the tables are visible.
    async fn check_visible(&self, client: &deadpool_postgres::Object, doing: &str) -> Result<()> {
        if self.inner.is_visible.get().is_some() {
            return Ok(());
        }
        let tables = queries::read_visibility(client, &self.inner.schema).await;
        let tables = tables.map_err(|error| Error::database(doing, error))?;
        let Some(hidden) = tables.iter().find(|table| table.is_hidden) else {
            if !tables.is_empty() {
                self.inner.is_visible.get_or_init(|| ());
            }
            return Ok(());
        };
        let schema = self.inner.schema.quoted();
        let error = Error::config(format!(
            "{doing}: row level security hides all rows of table {schema}.{} from role {}",
            hidden.table,
            quote_identifier(&hidden.role)
        ));
        let forced = tables.iter().filter(|table| table.is_hidden && table.is_owner);
        let forced: Vec<String> = forced.map(|table| self.no_force(&table.table)).collect();
        if !forced.is_empty() {
            return Err(error.with_hint(format!("run: {}", forced.join("; "))));
        }
        Err(error.with_hint(
            "connect as the role that owns the tables, or grant the reader role to it; the SQL for these roles: \
             atta migrate --print-roles",
        ))
    }

    /// [`WorkerUtils::check_visible`] for a worker, which would otherwise wait for jobs that it can't see.
    pub(crate) async fn check_jobs_visible(&self) -> Result<()> {
        let doing = "starting the worker";
        let client = pool::get(&self.inner.pool, doing).await?;
        self.check_visible(&client, doing).await
    }

    /// The statement that exempts the owner of the table from row level security again.
    fn no_force(&self, table: &str) -> String {
        format!(
            "alter table {}.{} no force row level security",
            self.inner.schema.quoted(),
            quote_identifier(table)
        )
    }

    async fn ask_jobs(&self, doing: &str, template: &str, argument: &serde_json::Value) -> Result<Vec<Job>> {
        decode_jobs(doing, &self.ask(doing, template, argument).await?)
    }

    /// [`WorkerUtils::ask`], with decoded rows.
    async fn ask_as<T: DeserializeOwned>(
        &self,
        doing: &str,
        template: &str,
        argument: &serde_json::Value,
    ) -> Result<Vec<T>> {
        let rows = self.ask(doing, template, argument).await?;
        let decoded: Result<_, _> = rows.iter().map(|row| serde_json::from_str(row)).collect();
        decoded.map_err(|error| {
            Error::internal(format!("{doing}: unexpected response from the database: {error}"))
        })
    }

    /// Adds a hint if the schema is missing, or if this role may not use it.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match error.db_code() {
            Some("42P01" | "42883" | "3F000") => {
                let schema = self.inner.schema.quoted();
                let is_usual = self.inner.schema == Schema::default();
                let option = if is_usual { String::new() } else { format!(" --schema {schema}") };
                error.with_hint(format!(
                    "schema {schema} is not installed; run: atta migrate{option}, or call migrate()"
                ))
            }
            Some("42501") => {
                let schema = self.inner.schema.quoted();
                if let Some(table) = table_of_policy(&error) {
                    let hint = format!(
                        "if this role owns the tables, run: {}; otherwise connect as the role that owns them, or as a \
                         member of it; the SQL for roles that may do less: atta migrate --print-roles",
                        self.no_force(&table)
                    );
                    return error.into_config().with_hint(hint);
                }
                error.into_config().with_hint(format!(
                    "connect as the role that owns the tables of schema {schema}, or as a member of it; the SQL for \
                     roles that may do less: atta migrate --print-roles"
                ))
            }
            _ => error,
        }
    }

    fn default_run_at(&self) -> Option<DateTime<Utc>> {
        self.clock.as_ref().map(Clock::now)
    }
}

/// As [`WorkerUtils::connect`].
impl TryFrom<&str> for WorkerUtils {
    type Error = Error;

    fn try_from(database_url: &str) -> Result<WorkerUtils> {
        WorkerUtils::connect(database_url)
    }
}

/// As [`WorkerUtils::connect`].
impl TryFrom<&String> for WorkerUtils {
    type Error = Error;

    fn try_from(database_url: &String) -> Result<WorkerUtils> {
        WorkerUtils::connect(database_url)
    }
}

/// The table whose row level security refused a new row.
fn table_of_policy(error: &Error) -> Option<String> {
    let error = error.driver_error()?.downcast_ref::<tokio_postgres::Error>()?.as_db_error()?;
    // The server translates the message, but not the name of its function.
    let is_refused = error.routine() == Some("ExecWithCheckOptions");
    is_refused.then(|| error.message().split('"').nth(1).unwrap_or("_private_jobs").to_owned())
}

/// As [`WorkerUtils::connect`].
impl TryFrom<String> for WorkerUtils {
    type Error = Error;

    fn try_from(database_url: String) -> Result<WorkerUtils> {
        WorkerUtils::connect(&database_url)
    }
}

/// As [`WorkerUtils::connect`], with a schema.
impl TryFrom<(&str, Schema)> for WorkerUtils {
    type Error = Error;

    fn try_from((database_url, schema): (&str, Schema)) -> Result<WorkerUtils> {
        Ok(WorkerUtils::connect(database_url)?.with_schema(schema))
    }
}

/// A pool with the default schema.
impl From<Pool> for WorkerUtils {
    fn from(pool: Pool) -> WorkerUtils {
        WorkerUtils::new(pool, Schema::default())
    }
}

/// As [`WorkerUtils::new`].
impl From<(Pool, Schema)> for WorkerUtils {
    fn from((pool, schema): (Pool, Schema)) -> WorkerUtils {
        WorkerUtils::new(pool, schema)
    }
}

fn decode_jobs(doing: &str, rows: &[String]) -> Result<Vec<Job>> {
    rows.iter()
        .map(|row| {
            serde_json::from_str(row)
                .map_err(|error| Error::internal(format!("{doing}: the database returned no job: {error}")))
        })
        .collect()
}
