//! Decides the steps of a migration from the state of the schema. Pure: it uses no database.

use std::fmt;

use super::functions::FUNCTIONS;
use super::indexes::{self, INDEXES};
use super::state::{BREAKING, State};
use super::{Breaking, GRAPHILE_REVISION};
use crate::{Error, Result, Schema};

pub(super) const SETTINGS: &str = include_str!("../../sql/migrations/settings.sql");
pub(super) const LOCK: &str = include_str!("../../sql/migrations/lock.sql");

/// PostgreSQL 12 introduced generated columns, which Graphile's tables use.
const OLDEST_SERVER: i32 = 120_000;

/// The programs that may use a schema before the last breaking revision. They refuse it after that.
const STOPS_WORKING: &str = "graphile-worker 0.16 and older stop working with it: their workers shut down, and their libraries can't add jobs";

/// One of our own revisions. Its statements may be repeated, which repairs a schema that lost some of its tables or sequences.
struct AttaRevision {
    id: i32,
    title: &'static str,
    /// Tables and sequences.
    relations: &'static [&'static str],
    template: &'static str,
}

const ATTA_REVISIONS: [AttaRevision; 2] = [
    AttaRevision {
        id: 1,
        title: "our own objects: workers",
        relations: &["_atta_workers", "_atta_dead_workers", "_atta_crashes"],
        template: include_str!("../../sql/migrations/atta_000001.sql"),
    },
    AttaRevision {
        id: 2,
        title: "our own objects: the position of a fleet",
        relations: &["_atta_scan_level", "_atta_scan_time", "_atta_scan_id"],
        template: include_str!("../../sql/migrations/atta_000002.sql"),
    },
];

/// The steps that a migration has to run, or has run. Displaying it gives the SQL, ready to be read or run by hand.
#[derive(Clone, Debug)]
pub struct MigrationPlan {
    from: Option<i32>,
    warning: Option<String>,
    lock: String,
    /// Indexes that are built before the transaction, with one statement each, without blocking anybody.
    pub(super) before: Vec<Step>,
    /// Creates the table whose lock protects the remaining steps.
    pub(super) opening: Vec<Step>,
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) title: &'static str,
    pub(super) sql: String,
    pub(super) is_function: bool,
}

impl MigrationPlan {
    /// Graphile's revision of the schema before the migration; none if there was no schema.
    pub fn from_revision(&self) -> Option<i32> {
        self.from
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.opening.is_empty() && self.steps.is_empty()
    }

    /// A warning for the operator, for example that the schema is newer than this version of atta.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// A sentence for operators: which releases of graphile-worker stop working with the schema once it is migrated.
    /// None if no such release can be using it now.
    pub fn stops_working(&self) -> Option<&'static str> {
        let is_behind = |from: i32| {
            BREAKING.into_iter().any(|breaking| (from + 1..=GRAPHILE_REVISION).contains(&breaking))
        };
        self.from.filter(|from| is_behind(*from)).map(|_| STOPS_WORKING)
    }

    /// Whether the migration is allowed.
    pub(super) fn check(&self, schema: &Schema, breaking: Breaking) -> Result<()> {
        let (Some(from), Some(stops)) = (self.from, self.stops_working()) else { return Ok(()) };
        if breaking == Breaking::Allowed {
            return Ok(());
        }
        let name = schema.quoted();
        let option = if *schema == Schema::default() { String::new() } else { format!(" --schema {name}") };
        Err(Error::config(format!(
            "schema {name} is at revision {from} of Graphile Worker, and a worker does not migrate it by itself: afterwards \
             {stops}"
        ))
        .with_hint(format!(
            "run: atta migrate{option}; or allow workers to do it: allow_breaking_migration (--allow-breaking-migration)"
        )))
    }

    /// The titles of the steps, in order.
    pub fn titles(&self) -> impl Iterator<Item = &str> {
        self.before.iter().chain(&self.opening).chain(&self.steps).map(|step| step.title)
    }

    pub(super) fn is_functions_only(&self) -> bool {
        self.before.is_empty() && self.opening.is_empty() && self.steps.iter().all(|step| step.is_function)
    }
}

impl fmt::Display for MigrationPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("-- nothing to do\n");
        }
        for step in &self.before {
            writeln!(f, "-- == {}\n{}", step.title, step.sql)?;
        }
        if self.opening.is_empty() && self.steps.is_empty() {
            return Ok(());
        }
        write!(f, "begin isolation level read committed;\n{SETTINGS}")?;
        for step in &self.opening {
            write!(f, "\n-- == {}\n{}", step.title, step.sql)?;
        }
        write!(f, "\n{}", self.lock)?;
        for step in &self.steps {
            write!(f, "\n-- == {}\n{}", step.title, step.sql)?;
        }
        f.write_str("\ncommit;\n")
    }
}

/// The plan for a schema that is up to date.
pub(super) fn nothing(schema: &Schema) -> MigrationPlan {
    MigrationPlan {
        from: Some(GRAPHILE_REVISION),
        warning: None,
        lock: schema.fill(LOCK),
        before: Vec::new(),
        opening: Vec::new(),
        steps: Vec::new(),
    }
}

/// Our newest revision.
pub(super) const ATTA_REVISION: i32 = ATTA_REVISIONS.len() as i32;

/// The relations that a schema must have, besides those that come with Graphile's revisions and stay.
pub(super) fn relations() -> impl Iterator<Item = &'static str> {
    let own = ATTA_REVISIONS.iter().flat_map(|own| own.relations).copied();
    std::iter::once("jobs").chain(own).chain(INDEXES.iter().map(|index| index.name))
}

/// The whole installation, for a supported server without the schema.
pub(super) fn from_nothing(schema: &Schema) -> MigrationPlan {
    let nothing = State { server_version: OLDEST_SERVER, ..State::default() };
    plan(&nothing, schema).expect("an empty server of a known version is never refused")
}

pub(super) fn plan(state: &State, schema: &Schema) -> Result<MigrationPlan> {
    refuse_what_we_cannot_handle(state, schema)?;
    let (from, warning) = (state.graphile.newest, newer_than_known(state, schema));
    let mut plan = MigrationPlan { from, warning, ..nothing(schema) };
    let step = |title, template: &str| Step { title, sql: schema.fill(template), is_function: false };

    if !state.schema_exists {
        plan.opening.push(step("the schema", include_str!("../../sql/migrations/create_schema.sql")));
    }
    if !state.has_breaking {
        plan.opening.push(step("the table of revisions", include_str!("../../sql/migrations/bootstrap.sql")));
    }
    if state.has_wrong_mark {
        plan.steps.push(step("marks of breaking revisions", include_str!("../../sql/migrations/marks.sql")));
    }
    let revision = state.graphile.newest.unwrap_or(0);
    if revision < GRAPHILE_REVISION {
        plan.steps
            .push(step("the rows of Graphile's revisions", include_str!("../../sql/migrations/rows.sql")));
    }
    let tables = || step("the tables", include_str!("../../sql/migrations/tables.sql"));
    match revision {
        ..=0 => plan.steps.push(tables()),
        1..=10 => {
            let prepare = include_str!("../../sql/migrations/legacy_prepare.sql");
            let copy = include_str!("../../sql/migrations/legacy_copy.sql");
            plan.steps.push(step("the old tables step aside", prepare));
            plan.steps.push(tables());
            plan.steps.push(step("the jobs move into the new tables", copy));
        }
        11..=15 => {
            plan.steps.push(step(
                "the tables get their new names",
                include_str!("../../sql/migrations/rename.sql"),
            ));
        }
        _ => {}
    }
    if (11..=17).contains(&revision) {
        let template = include_str!("../../sql/migrations/drop_notify_trigger.sql");
        plan.steps.push(step("the trigger that notified", template));
    }
    if !is_newer(state) {
        for function in FUNCTIONS.iter().filter(|function| !function.stands_in(&state.functions, schema)) {
            let sql = function.sql(schema);
            plan.steps.push(Step { title: function.name, sql, is_function: true });
        }
    }
    // Up to revision 15 there is a table of that name.
    if revision <= 16 || !state.has("jobs") {
        plan.steps.push(step("the view of the jobs", include_str!("../../sql/migrations/view.sql")));
    }
    if !state.has("_atta_migrations") {
        plan.steps.push(step(
            "the table of our own revisions",
            include_str!("../../sql/migrations/atta_bootstrap.sql"),
        ));
    }
    for own in &ATTA_REVISIONS {
        if Some(own.id) > state.atta.newest || !own.relations.iter().all(|name| state.has(name)) {
            plan.steps.push(step(own.title, own.template));
        }
    }
    match indexes::are_built_concurrently(state) {
        true => plan.before = indexes::concurrently(state, schema),
        false => plan.steps.extend(indexes::within_transaction(state, schema)),
    }
    if revision < GRAPHILE_REVISION {
        plan.steps.push(step("notices to running workers", include_str!("../../sql/migrations/notices.sql")));
    }
    Ok(plan)
}

fn refuse_what_we_cannot_handle(state: &State, schema: &Schema) -> Result<()> {
    if state.server_version < OLDEST_SERVER {
        let (major, minor) = (state.server_version / 10_000, state.server_version / 100 % 100);
        return Err(Error::config(format!(
            "PostgreSQL {major}.{minor} is too old: atta needs version 12 or later"
        ))
        .with_hint("upgrade the server"));
    }
    let too_new = |whose: &str, breaking: i32, known: i32| {
        Error::config(format!(
            "schema {} is at revision {breaking} of {whose}, which this version of atta does not support: it knows \
             revisions up to {known}",
            schema.quoted()
        ))
        .with_hint("install a newer version of atta")
    };
    match (state.graphile.newest_breaking, state.atta.newest_breaking) {
        (Some(breaking), _) if breaking > GRAPHILE_REVISION => {
            Err(too_new("Graphile Worker", breaking, GRAPHILE_REVISION))
        }
        (_, Some(breaking)) if breaking > ATTA_REVISION => Err(too_new("atta", breaking, ATTA_REVISION)),
        _ => Ok(()),
    }
}

/// The Rust crate graphile_worker continues the numbers in the same table for its own changes, up to 22 as of today. We
/// know these changes, and they are not Graphile's: a schema with its table of workers is at revision 20, whatever the
/// number.
fn is_newer(state: &State) -> bool {
    state.graphile.newest > Some(GRAPHILE_REVISION) && !state.has("_private_workers")
}

fn newer_than_known(state: &State, schema: &Schema) -> Option<String> {
    is_newer(state).then(|| {
        format!(
            "schema {} is at revision {} of Graphile Worker; this version of atta knows {GRAPHILE_REVISION} and does not change \
             its functions",
            schema.quoted(),
            state.graphile.newest.unwrap_or_default()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::state::Revisions;
    use super::*;

    fn state(newest: Option<i32>) -> State {
        State {
            server_version: 150_000,
            schema_exists: newest.is_some(),
            has_breaking: newest.is_some(),
            graphile: Revisions { newest, newest_breaking: None },
            ..State::default()
        }
    }

    fn titles(state: &State) -> Vec<String> {
        plan(state, &Schema::default()).unwrap().titles().map(str::to_owned).collect()
    }

    #[test]
    fn refuses_a_server_before_12() {
        let old = State { server_version: 110_022, ..State::default() };
        let error = plan(&old, &Schema::default()).unwrap_err();
        assert!(error.is_config());
        assert_eq!(error.message(), "PostgreSQL 11.0 is too old: atta needs version 12 or later");
    }

    #[test]
    fn refuses_a_newer_breaking_revision_and_warns_of_another() {
        let mut newer = state(Some(21));
        let plan_now = plan(&newer, &Schema::default()).unwrap();
        assert!(plan_now.warning().unwrap().contains("revision 21"));
        assert!(!plan_now.titles().any(|title| title == "add_job"));

        newer.graphile.newest_breaking = Some(21);
        let error = plan(&newer, &Schema::default()).unwrap_err();
        assert!(error.message().contains("revision 21 of Graphile Worker"), "{error}");
    }

    #[test]
    fn a_schema_of_the_rust_crate_gets_our_functions_at_any_number() {
        let mut crates = state(Some(22));
        crates.relations = vec!["_private_workers".into(), "jobs".into()];
        assert!(titles(&crates).contains(&"add_job".to_owned()));
        assert!(plan(&crates, &Schema::default()).unwrap().warning().is_none());
    }

    #[test]
    fn only_an_existing_schema_before_a_breaking_revision_stops_others() {
        for (revision, stops) in
            [(None, false), (Some(20), false), (Some(19), false), (Some(18), true), (Some(1), true)]
        {
            let plan = plan(&state(revision), &Schema::default()).unwrap();
            assert_eq!(plan.stops_working().is_some(), stops, "{revision:?}");
            plan.check(&Schema::default(), Breaking::Allowed).unwrap();
            let checked = plan.check(&Schema::default(), Breaking::Refused);
            assert_eq!(checked.is_err(), stops, "{revision:?}");
            if let Err(error) = checked {
                assert!(
                    error.is_config() && error.hint().unwrap().starts_with("run: atta migrate;"),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn each_older_revision_gets_the_steps_that_match_its_tables() {
        assert!(titles(&state(None)).contains(&"the tables".to_owned()));
        for revision in 1..=19 {
            let titles = titles(&state(Some(revision)));
            let has = |title: &str| titles.iter().any(|it| it == title);
            assert_eq!(has("the old tables step aside"), revision <= 10, "{revision}");
            assert_eq!(has("the tables get their new names"), (11..=15).contains(&revision), "{revision}");
            assert_eq!(has("the trigger that notified"), (11..=17).contains(&revision), "{revision}");
            assert!(has("notices to running workers"), "{revision}");
        }
    }
}
