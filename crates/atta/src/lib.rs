//! atta: background jobs in the PostgreSQL database that an application already has.
//!
//! A job is a row. The SQL function `add_job` adds it inside the caller's own transaction: from triggers, from `psql`
//! and from any language. Workers claim due jobs, run them and retry those that failed. The schema is that of Node's
//! Graphile Worker, so both can work on one database side by side.
//!
//! # Quickstart
//!
//! A task is a type: its fields are the payload, and [`Task::run`] is the code. The worker installs the schema when it
//! starts.
//!
//! ```no_run
//! use atta::{JobSpec, Task, TaskResult, WorkerContext, WorkerOptions};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct SendEmail {
//!     to: String,
//! }
//!
//! impl Task for SendEmail {
//!     const IDENTIFIER: &'static str = "send_email";
//!
//!     async fn run(self, ctx: WorkerContext) -> TaskResult {
//!         println!("to {}, attempt {}", self.to, ctx.job().attempts());
//!         Ok(())
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> atta::Result<()> {
//!     let worker = WorkerOptions::default()
//!         .database_url("postgres://localhost/app")
//!         .concurrency(10)
//!         .listen_os_shutdown_signals(true)
//!         .define_job::<SendEmail>()
//!         .init()
//!         .await?;
//!     worker.create_utils().add_job(SendEmail { to: "ada@example.com".into() }, JobSpec::default()).await?;
//!     worker.run().await
//! }
//! ```
//!
//! A program that only adds jobs uses [`WorkerUtils::connect`]. In a transaction, [`WorkerUtils::add_job_in`] adds a
//! job that exists only if the transaction is committed. A job runs at least once, and more than once if a worker
//! crashes after the task has ended and before its outcome is written: write idempotent tasks.
//!
//! # Overview
//!
//! - Running jobs: [`WorkerOptions`], [`Worker`], [`Task`], [`TaskError`], [`BatchTask`], [`Cron`]
//! - Adding and managing jobs: [`WorkerUtils`], [`JobSpec`], [`AddJobs`]
//! - Observing: [`WorkerEvents`], [`Hooks`], and logs and spans by the crate `tracing`
//! - Tests of applications: [`testing`], [`WorkerContext::builder`]
//!
//! # Cancel safety
//!
//! The documentation of every public async function states what happens when its future is dropped. A statement that
//! changes jobs takes effect completely or not at all.
//!
//! # Features
//!
//! All features are off by default.
//!
//! - `sqlx`, `diesel-async`, `sea-orm`: [`AddJobs`] for the transactions and connections of these libraries. sqlx 0.9
//!   and SeaORM 2 need Rust 1.94. Diesel does not pass SQLSTATEs on, so [`Error::db_code`] returns only a few of them
//!   there.
//! - `opentelemetry`: a job carries the trace context in which it was added, as `_trace` in its payload, if the payload
//!   is an object. The span of the run links to it. A payload that already has a `_trace` is not changed. A task fails
//!   if its payload type rejects unknown fields (`deny_unknown_fields`, or a map with values of one type).

#![warn(clippy::print_stdout, clippy::print_stderr)]

// In reading order: the types that users write, then the life of a job, then the modules that both rely on.
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

pub use context::{WorkerContext, WorkerContextBuilder};
pub use cron::{
    Cron, CronDigest, CronEvent, CronItems, CrontabError, CrontabErrors, CrontabFill, parse_crontab,
};
pub use db::{ConnectionData, ConnectionSettings, Schema};
pub use error::Error;
pub use event::{HookFuture, Hooks, WorkerEvent, WorkerEvents};
pub use job::{Job, JobBuilder, JobKeyMode, JobSpec, JobSpecBuilder, RescheduleJobOptions};
pub use migrate::{GRAPHILE_REVISION, MigrationPlan, migrate, migration_sql, plan_migration, roles_sql};
pub use run::{quick_add_job, run, run_migrations, run_once};
pub use task::{
    BatchTask, BatchTaskHandler, IntoBatchResult, IntoTaskHandlerResult, Retry, RetryPolicy, Task, TaskError,
    TaskHandler, TaskResult,
};
pub use utils::{
    AddJobs, CleanupCounts, CleanupTask, JobCounters, JobCounts, JobFilter, JobState, KnownCrontab,
    QueueSummary, RawJobSpec, Stats, TaskSummary, WorkerStatus, WorkerSummary, WorkerUtils,
};
pub use worker::{
    Claims, ForbiddenFlags, IntoCron, LocalQueueConfig, PausedTasks, RefetchDelay, Worker, WorkerHandle,
    WorkerOptions,
};

// The crates whose types are in public signatures, in the versions that this crate uses.
#[doc(no_inline)]
pub use tokio_util::sync::CancellationToken;
#[doc(no_inline)]
pub use {
    bytes, chrono, chrono_tz, deadpool_postgres, futures_util::Stream, serde, serde_json, tokio_postgres,
};

/// The result type of most functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Compiles the code in the README of this crate as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
