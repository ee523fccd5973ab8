//! atta: background jobs in the PostgreSQL that an application already has.
//!
//! A job is a row. The SQL function `add_job` adds it, from triggers, from `psql` and from any language, inside the
//! caller's own transaction; workers claim due jobs, run them and try again what failed. The schema is that of
//! Node's Graphile Worker, so both can work on one database side by side.

#![warn(clippy::print_stdout, clippy::print_stderr)]

// In reading order.
mod context;
mod cron;
mod db;
mod error;
mod event;
mod job;
mod migrate;
mod recovery;
mod task;
pub mod testing;
mod utils;
mod worker;

pub use context::WorkerContext;
pub use cron::*;
pub use db::Schema;
pub use error::Error;
pub use event::{HookFuture, Hooks, WorkerEvent, WorkerEvents};
pub use job::{Job, JobKeyMode, JobSpec, JobSpecBuilder, RescheduleJobOptions};
pub use migrate::{GRAPHILE_REVISION, MigrationPlan, migrate, migration_sql, plan_migration};
pub use task::{
    BatchTaskHandler, IntoBatchResult, IntoTaskHandlerResult, Retry, RetryPolicy, TaskError, TaskHandler,
};
pub use utils::{AddJobs, CleanupTask, JobCounts, JobFilter, JobState, RawJobSpec, WorkerUtils};
pub use worker::{
    ForbiddenFlags, IntoCron, LocalQueueConfig, RefetchDelay, Worker, WorkerHandle, WorkerOptions,
};

/// What most functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
