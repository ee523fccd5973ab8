//! atta: background jobs in the PostgreSQL that an application already has.
//!
//! A job is a row. The SQL function `add_job` adds it, from triggers, from `psql` and from any language, inside the
//! caller's own transaction; workers claim due jobs, run them and try again what failed. The schema is that of
//! Node's Graphile Worker, so both can work on one database side by side.

mod db;
mod error;
mod migrate;

pub use db::Schema;
pub use error::Error;
pub use migrate::{GRAPHILE_REVISION, MigrationPlan, migrate, migration_sql, plan_migration};

/// What most functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
