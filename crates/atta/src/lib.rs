//! atta: background jobs in the PostgreSQL that an application already has.
//!
//! A job is a row. The SQL function `add_job` adds it, from triggers, from `psql` and from any language, inside the
//! caller's own transaction; workers claim due jobs, run them and try again what failed. The schema is that of
//! Node's Graphile Worker, so both can work on one database side by side.
//!
//! # Features
//!
//! All are off by default.
//!
//! - `sqlx`, `diesel-async`, `sea-orm`: [`AddJobs`] for the transactions and connections of these libraries. sqlx 0.9
//!   and SeaORM 2 need Rust 1.94. Diesel does not pass SQLSTATEs on, so there [`Error::db_code`] knows only a few.
//! - `opentelemetry`: the current trace context travels with a job, as `_trace` in a payload that is an object, and
//!   the span of the run links to it. A payload with a `_trace` of its own stays as it is. A task whose payload type
//!   refuses fields that it does not know (`deny_unknown_fields`, or a map with values of one type) fails on it.

#![warn(clippy::print_stdout, clippy::print_stderr)]

// In reading order: what users write, the way of a job, what it stands on.
mod job;
mod task;
mod context;
mod payload;
mod utils;
mod worker;
mod recovery;
mod cron;
mod event;
mod trace;
mod run;
pub mod testing;
mod migrate;
mod db;
mod error;

pub use context::WorkerContext;
pub use cron::{
    Cron, CronDigest, CronEvent, CronItems, CrontabError, CrontabErrors, CrontabFill, parse_crontab,
};
pub use db::{ConnectionSettings, Schema};
pub use error::Error;
pub use event::{HookFuture, Hooks, WorkerEvent, WorkerEvents};
pub use job::{Job, JobKeyMode, JobSpec, JobSpecBuilder, RescheduleJobOptions};
pub use migrate::{GRAPHILE_REVISION, MigrationPlan, migrate, migration_sql, plan_migration, roles_sql};
pub use run::{quick_add_job, run, run_migrations, run_once};
pub use task::{
    BatchTaskHandler, IntoBatchResult, IntoTaskHandlerResult, Retry, RetryPolicy, TaskError, TaskHandler,
};
pub use utils::{
    AddJobs, CleanupCounts, CleanupTask, JobCounters, JobCounts, JobFilter, JobState, KnownCrontab,
    QueueSummary, RawJobSpec, Stats, TaskSummary, WorkerStatus, WorkerSummary, WorkerUtils,
};
pub use worker::{
    Claims, ForbiddenFlags, IntoCron, LocalQueueConfig, PausedTasks, RefetchDelay, Worker, WorkerHandle,
    WorkerOptions,
};

/// What most functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
