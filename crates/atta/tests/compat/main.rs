//! Side by side with other tools on one schema: every release of Graphile Worker that brought revisions, run for real,
//! and what the Rust crate graphile_worker leaves behind. Needs npm once, for the packages in `node/`.
#![allow(missing_docs)]

mod catalog;
mod concurrent;
mod cron;
mod crontabs;
mod jobs;
mod lost_add;
mod node;
mod releases;
mod revisions;
mod roles;
mod rust_crate;
mod side_by_side;
mod workers;

use tokio_postgres::Client;

/// Brings the default schema to ours, and fails the test if that fails.
async fn migrate(client: &mut Client) -> atta::MigrationPlan {
    atta::migrate(client, &atta::Schema::default()).await.expect("the migration succeeds")
}
