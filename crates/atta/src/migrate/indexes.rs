//! Our indexes on the table of jobs, and how they are built.
//!
//! `create index` blocks all adds while it runs, and before that while it waits for transactions that write to the
//! table. Therefore the indexes of a table that is not small are built concurrently, before the transaction of the
//! migration. A concurrent build waits for old transactions too, but nothing waits for it. An interrupted build leaves
//! an invalid index, which is dropped and built again.

use std::time::Duration;

use tokio_postgres::Client;

use super::plan::Step;
use super::queries::{Limits, read_index_builds, read_limits, set_limits};
use super::state::State;
use crate::Schema;

/// A table of up to this many bytes is read in a few milliseconds: its indexes are built within the transaction.
const SMALL: i64 = 4 << 20;

/// How often to ask whether another session still builds an index.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) struct Index {
    pub(super) name: &'static str,
    template: &'static str,
}

pub(super) const INDEXES: [Index; 5] = [
    Index {
        name: "_atta_jobs_task_index",
        template: include_str!("../../sql/migrations/indexes/jobs_task.sql"),
    },
    Index {
        name: "_atta_jobs_flagged_index",
        template: include_str!("../../sql/migrations/indexes/jobs_flagged.sql"),
    },
    Index {
        name: "_atta_jobs_queue_index",
        template: include_str!("../../sql/migrations/indexes/jobs_queue.sql"),
    },
    Index {
        name: "_atta_jobs_queued_index",
        template: include_str!("../../sql/migrations/indexes/jobs_queued.sql"),
    },
    Index {
        name: "_atta_jobs_locked_index",
        template: include_str!("../../sql/migrations/indexes/jobs_locked.sql"),
    },
];

const DROP: &str = include_str!("../../sql/migrations/indexes/drop.sql");

/// Whether the indexes are built outside of a transaction. Up to revision 10 the jobs are copied into a new table,
/// which nobody else sees before the end of the migration.
pub(super) fn are_built_concurrently(state: &State) -> bool {
    state.graphile.newest > Some(10) && state.jobs_bytes > SMALL
}

/// The statements for the transaction of a migration. There the table has its newest name.
pub(super) fn within_transaction(state: &State, schema: &Schema) -> Vec<Step> {
    steps(state, schema, "", "_private_jobs")
}

/// The statements to run one by one before the transaction of a migration.
pub(super) fn concurrently(state: &State, schema: &Schema) -> Vec<Step> {
    steps(state, schema, " concurrently", jobs_table(state))
}

/// The current name of the table of jobs: up to revision 15 it is `jobs`, which has been the name of the view since.
fn jobs_table(state: &State) -> &'static str {
    if state.has("_private_jobs") { "_private_jobs" } else { "jobs" }
}

fn steps(state: &State, schema: &Schema, concurrently: &str, table: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for index in INDEXES.iter().filter(|index| !state.has(index.name)) {
        let values = [
            ("{concurrently}", concurrently.to_owned()),
            ("{jobs}", format!("{}.{table}", schema.quoted())),
            ("{index}", index.name.to_owned()),
        ];
        let step =
            |title, template| Step { title, sql: schema.fill_with(template, &values), is_function: false };
        if state.invalid_indexes.iter().any(|name| name == index.name) {
            steps.push(step("an index that is invalid goes", DROP));
        }
        steps.push(step(index.name, index.template));
    }
    steps
}

/// Whether another session is building an index on the table of jobs. It may be one of ours, which is invalid until the
/// build ends. Waits a while if so; the caller then reads the state again.
pub(super) async fn wait_for_other_builds(
    client: &Client,
    schema: &Schema,
    state: &State,
) -> Result<bool, tokio_postgres::Error> {
    let is_building = read_index_builds(client, schema, jobs_table(state)).await?;
    if is_building {
        tokio::time::sleep(PAUSE).await;
    }
    Ok(is_building)
}

/// Builds the indexes. A time limit of the role must not interrupt the build, so it is off meanwhile.
pub(super) async fn build(client: &Client, steps: &[Step]) -> Result<(), tokio_postgres::Error> {
    let limits = read_limits(client).await?;
    if limits.is_set() {
        set_limits(client, &Limits::none()).await?;
    }
    let built = run(client, steps).await;
    if limits.is_set() {
        set_limits(client, &limits).await?;
    }
    built
}

async fn run(client: &Client, steps: &[Step]) -> Result<(), tokio_postgres::Error> {
    for step in steps {
        tracing::info!(index = step.title, "building an index on the table of jobs, concurrently");
        client.batch_execute(&step.sql).await?;
    }
    Ok(())
}

impl Limits {
    fn none() -> Limits {
        Limits { statement: "0".into(), lock: "0".into() }
    }

    fn is_set(&self) -> bool {
        self.statement != "0" || self.lock != "0"
    }
}
