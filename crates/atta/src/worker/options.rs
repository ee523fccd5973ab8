//! The options of a worker. [`WorkerOptions::init`] checks all of them and reports all mistakes in one error.

mod check;
mod claims;
mod cron;
mod init;

use std::time::Duration;

use deadpool_postgres::Pool;

use super::flags::ForbiddenFlags;
use super::pause::PausedTasks;
use super::plan::Plan;
use super::run::Tasks;
use crate::context::Extensions;
use crate::cron::Cron;
use crate::db::{ConnectionSettings, connection};
use crate::event::{EventSender, HookList, Hooks, WorkerEvents};
use crate::migrate::Breaking;
use crate::task::IntoTaskHandlerResult;
use crate::testing::Clock;
use crate::{BatchTaskHandler, Result, Schema, TaskHandler, WorkerContext};

pub use claims::Claims;
pub use cron::IntoCron;
pub(super) use init::Patience;

/// How a worker is set up.
///
/// Every duration may be `Duration::MAX`, which means no limit. Durations of more than a hundred years have the same
/// effect.
///
/// ```no_run
/// # use atta::{IntoTaskHandlerResult, TaskHandler, WorkerContext, WorkerOptions};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct SendEmail {}
/// # impl TaskHandler for SendEmail {
/// #     const IDENTIFIER: &'static str = "send_email";
/// #     async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {}
/// # }
/// # async fn example() -> atta::Result<()> {
/// let worker = WorkerOptions::default()
///     .database_url("postgres://localhost/app")
///     .concurrency(10)
///     .define_job::<SendEmail>()
///     .init()
///     .await?;
/// worker.run().await
/// # }
/// ```
#[derive(Debug)]
#[must_use]
pub struct WorkerOptions {
    database_url: Option<connection::ConnectionText>,
    pool: Option<Pool>,
    max_pg_conn: usize,
    schema: String,
    concurrency: usize,
    poll_interval: Duration,
    tasks: Tasks,
    forbidden_flags: ForbiddenFlags,
    paused_tasks: PausedTasks,
    extensions: Extensions,
    events: EventSender,
    hooks: HookList,
    hook_timeout: Duration,
    clock: Option<Clock>,
    use_prepared: Option<bool>,
    recovery_threshold: Duration,
    recovery_delay: Duration,
    crash_limit: u32,
    interrupted_job_retry_delay: Duration,
    waits_for_database: bool,
    breaking: Breaking,
    cron: Vec<Cron>,
    plan: Plan,
}

impl Default for WorkerOptions {
    fn default() -> WorkerOptions {
        WorkerOptions {
            database_url: None,
            pool: None,
            max_pg_conn: 10,
            schema: Schema::default().name().to_owned(),
            concurrency: std::thread::available_parallelism().map_or(1, usize::from),
            poll_interval: Duration::from_secs(2),
            tasks: Tasks::default(),
            forbidden_flags: ForbiddenFlags::default(),
            paused_tasks: PausedTasks::default(),
            extensions: Extensions::default(),
            events: EventSender::default(),
            hooks: HookList::default(),
            hook_timeout: Duration::from_secs(30),
            clock: None,
            use_prepared: None,
            recovery_threshold: Duration::from_secs(30),
            recovery_delay: Duration::ZERO,
            crash_limit: 3,
            interrupted_job_retry_delay: Duration::ZERO,
            waits_for_database: true,
            breaking: Breaking::Refused,
            cron: Vec::new(),
            plan: Plan::default(),
        }
    }
}

impl WorkerOptions {
    /// The connection string of the database; [`ConnectionSettings`] describes its syntax. Default: the environment
    /// variable `DATABASE_URL`, or else `PGDATABASE`, `PGHOST` and so on.
    pub fn database_url(mut self, url: impl Into<String>) -> WorkerOptions {
        self.database_url = Some(connection::ConnectionText(url.into()));
        self
    }

    /// A pool that the application created. Set `database_url` as well: without it the worker can't LISTEN, and only
    /// polls. Heartbeats use a separate connection, which the pool's manager opens; the pool's hooks do not run for it.
    pub fn pg_pool(mut self, pool: Pool) -> WorkerOptions {
        self.pool = Some(pool);
        self
    }

    /// How many connections the pool for tasks and [`WorkerUtils`](crate::WorkerUtils) may open. At least 2; default: 10.
    /// The worker itself has up to eleven more: six for claims, two for releases, and one each for heartbeats, for polls
    /// and for LISTEN. While statements are stuck, it opens up to five others.
    pub fn max_pg_conn(mut self, count: usize) -> WorkerOptions {
        self.max_pg_conn = count;
        self
    }

    /// The schema that contains the jobs. Default: `graphile_worker`.
    pub fn schema(mut self, schema: impl Into<String>) -> WorkerOptions {
        self.schema = schema.into();
        self
    }

    /// How many jobs run at a time. From 1 to a million; default: the number of cores.
    pub fn concurrency(mut self, slots: usize) -> WorkerOptions {
        self.concurrency = slots;
        self
    }

    /// How often the worker polls for jobs that were not announced by NOTIFY. At least 1 ms; default: 2 s. New jobs are
    /// announced, and the worker wakes up when a scheduled job becomes due, so the poll mostly finds jobs that were
    /// changed without the SQL functions.
    pub fn poll_interval(mut self, interval: Duration) -> WorkerOptions {
        self.poll_interval = interval;
        self
    }

    /// Runs the jobs of this task.
    pub fn define_job<T: TaskHandler>(mut self) -> WorkerOptions {
        self.tasks.define::<T>();
        self
    }

    /// Runs the jobs of this batch task.
    pub fn define_batch_job<T: BatchTaskHandler>(mut self) -> WorkerOptions {
        self.tasks.define_batch::<T>();
        self
    }

    /// Runs the jobs of a task with a function that takes the context. For identifiers that are known only at run time.
    pub fn define_raw_job<F, R>(mut self, identifier: &str, handler: F) -> WorkerOptions
    where
        F: Fn(WorkerContext) -> R + Send + Sync + 'static,
        R: Future<Output: IntoTaskHandlerResult> + Send + 'static,
    {
        self.tasks.define_raw(identifier, handler);
        self
    }

    /// The worker claims no jobs of the tasks in this set. The set may change while the worker runs.
    pub fn paused_tasks(mut self, paused: PausedTasks) -> WorkerOptions {
        self.paused_tasks = paused;
        self
    }

    /// The worker never claims jobs that have this flag. Adds to the flags that were forbidden before.
    pub fn add_forbidden_flag(mut self, flag: impl Into<String>) -> WorkerOptions {
        self.forbidden_flags.push(flag.into());
        self
    }

    /// The worker never claims jobs that have one of these flags. Replaces the flags that were forbidden before.
    /// Default: none.
    pub fn forbidden_flags(mut self, flags: ForbiddenFlags) -> WorkerOptions {
        self.forbidden_flags = flags;
        self
    }

    /// Makes a value of the application available to tasks. They get it by its type: see [`WorkerContext::get_ext`].
    pub fn add_extension<T: Send + Sync + 'static>(mut self, value: T) -> WorkerOptions {
        self.extensions.insert(value);
        self
    }

    /// Adds hooks that the worker calls. May be called several times.
    pub fn add_hooks(mut self, hooks: impl Hooks) -> WorkerOptions {
        self.hooks.push(hooks);
        self
    }

    /// How long a call of an `on_…` hook may take before it is abandoned. At least 1 ms; default: 30 s. See [`Hooks`].
    pub fn hook_timeout(mut self, timeout: Duration) -> WorkerOptions {
        self.hook_timeout = timeout;
        self
    }

    /// Returns the worker's events, including those of its start.
    pub fn subscribe(&self) -> WorkerEvents {
        self.events.subscribe()
    }

    /// Uses this machine's clock instead of the database's for jobs. Cron always follows the database's clock. Default:
    /// false.
    pub fn use_local_time(mut self, use_local_time: bool) -> WorkerOptions {
        self.clock = use_local_time.then(Clock::system);
        self
    }

    /// Uses a clock that a test can move, for jobs and for cron.
    pub fn clock(mut self, clock: Clock) -> WorkerOptions {
        self.plan.cron_clock = Some(clock.clone());
        self.clock = Some(clock);
        self
    }

    /// Whether to prepare statements. Default: detected at the start; a pooler in transaction mode does not support it.
    pub fn use_prepared_statements(mut self, use_prepared: bool) -> WorkerOptions {
        self.use_prepared = Some(use_prepared);
        self
    }

    /// Whether SIGINT, SIGTERM and SIGHUP start a shutdown. Another signal more than 5 s later aborts the worker.
    /// Default: false.
    pub fn listen_os_shutdown_signals(mut self, listen: bool) -> WorkerOptions {
        self.plan.listen_os_shutdown_signals = listen;
        self
    }

    /// How long running jobs may take to finish after a shutdown was requested. Default: 5 s.
    pub fn shutdown_grace_period(mut self, period: Duration) -> WorkerOptions {
        self.plan.shutdown_grace_period = period;
        self
    }

    /// How long jobs may take to end after their token has fired, before they are dropped. Default: 5 s.
    pub fn shutdown_abort_period(mut self, period: Duration) -> WorkerOptions {
        self.plan.shutdown_abort_period = period;
        self
    }

    /// How long a job that a shutdown interrupted waits before it may run again. Default: 0.
    pub fn interrupted_job_retry_delay(mut self, delay: Duration) -> WorkerOptions {
        self.interrupted_job_retry_delay = delay;
        self
    }

    /// How long this worker may go without a heartbeat before others declare it dead and recover its jobs. At least 1
    /// s; default: 30 s. Each worker is judged by its own threshold. A worker with a longer threshold than another also
    /// waits longer before it declares that one dead: for the mean of both thresholds.
    pub fn recovery_threshold(mut self, threshold: Duration) -> WorkerOptions {
        self.recovery_threshold = threshold;
        self
    }

    /// How long jobs of a dead worker that this worker recovers wait before they run again. Default: 0. If the dead
    /// worker had several jobs without a queue, they become due at different times within the first seconds, whatever
    /// this delay is. With a delay, later jobs of the same queue may run before a recovered job.
    pub fn recovery_delay(mut self, delay: Duration) -> WorkerOptions {
        self.recovery_delay = delay;
        self
    }

    /// After this number of crashes a job fails permanently, with an error that names the workers. At least 1; default:
    /// 3. A crash is the death of a worker that had claimed the job; it costs the job no attempt. Should be the same in
    /// all workers of a schema.
    pub fn crash_limit(mut self, crashes: u32) -> WorkerOptions {
        self.crash_limit = crashes;
        self
    }

    /// Whether the start waits for a database that does not answer. If false, this is an error. Default: true.
    pub fn wait_for_database(mut self, waits: bool) -> WorkerOptions {
        self.waits_for_database = waits;
        self
    }

    /// Whether the start may migrate a schema even if releases of graphile-worker that can use it now stop working with
    /// it: see [`MigrationPlan::stops_working`](crate::MigrationPlan::stops_working). Default: false; the start then
    /// fails until the schema is migrated by [`migrate`](crate::migrate()) or `atta migrate`.
    pub fn allow_breaking_migration(mut self, is_allowed: bool) -> WorkerOptions {
        self.breaking = if is_allowed { Breaking::Allowed } else { Breaking::Refused };
        self
    }

    /// The settings of the connection, if there is a connection string, or the environment names a database. `None` if
    /// there is only a pool. For crates that extend a worker, as are the next four methods: call them when all options
    /// are set.
    pub fn connection_settings(&self) -> Result<Option<ConnectionSettings>> {
        self.url().map(|url| ConnectionSettings::new(&url)).transpose()
    }

    /// The name of the schema that the jobs are in: see [`WorkerOptions::schema`].
    pub fn schema_name(&self) -> &str {
        &self.schema
    }

    /// How many jobs run at a time: see [`WorkerOptions::concurrency`].
    pub fn slots(&self) -> usize {
        self.concurrency
    }

    /// The identifiers of the tasks that are defined, in alphabetical order.
    pub fn task_identifiers(&self) -> Vec<String> {
        self.tasks.identifiers()
    }

    /// The set of paused tasks: see [`WorkerOptions::paused_tasks`].
    pub fn shared_paused_tasks(&self) -> PausedTasks {
        self.paused_tasks.clone()
    }
}
