//! How a worker is set up. Everything is checked at once in [`WorkerOptions::init`].

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use deadpool_postgres::Pool;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::backoff::Backoff;
use super::flags::{FlagReader, ForbiddenFlags};
use super::hooks::HookBacklog;
use super::lanes;
use super::pause::PausedTasks;
use super::plan::{LocalQueueConfig, Plan};
use super::release;
use super::run::Tasks;
use super::shared::Statements;
use super::{Shared, Worker};
use crate::context::Extensions;
use crate::cron::{Cron, CronItems};
use crate::db::{ConnectionSettings, connection, link, pool};
use crate::event::{EventSender, HookList, Hooks, WorkerEvents};
use crate::migrate::Breaking;
use crate::recovery::{Continuity, Source};
use crate::task::IntoTaskHandlerResult;
use crate::testing::Clock;
use crate::{BatchTaskHandler, Error, Result, Schema, TaskHandler, WorkerContext, WorkerUtils};

/// More jobs at a time, or ahead of time, are a slip of the pen.
const MOST_JOBS: usize = 1_000_000;

/// How long a statement that releases several jobs may take, and how long any release may wait for a lock on a table. Far
/// more than it needs. What takes longer is tried again job by job, so that the others do not wait for it.
const TO_RELEASE: Duration = Duration::from_secs(1);

/// How long the server works on a poll, or on one statement of a recovery. They never wait for locks of rows.
const POLL_LIMITS: pool::StatementLimits =
    pool::StatementLimits { statement: Some(Duration::from_secs(30)), lock: Duration::from_secs(5) };

/// How a worker is set up.
///
/// Every length of time may be `Duration::MAX`, for never; what is longer than a hundred years is taken for that.
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
    /// The database, by its connection string, read as [`ConnectionSettings`] does. Default: the environment variable
    /// `DATABASE_URL`, or else `PGDATABASE`, `PGHOST` and so on.
    pub fn database_url(mut self, url: impl Into<String>) -> WorkerOptions {
        self.database_url = Some(connection::ConnectionText(url.into()));
        self
    }

    /// A pool of your own. Give the connection string as well: without it the worker can't LISTEN, and only polls. Heartbeats
    /// have a connection besides those of the pool, made by the pool's manager; the pool's hooks do not run for it.
    pub fn pg_pool(mut self, pool: Pool) -> WorkerOptions {
        self.pool = Some(pool);
        self
    }

    /// How many connections the pool for tasks and [`WorkerUtils`] may open. At least 2; default: 10. The worker itself
    /// has up to eleven more: six that claim, two that release, and one each for heartbeats, for polls and for LISTEN; and five
    /// for when statements are stuck.
    pub fn max_pg_conn(mut self, count: usize) -> WorkerOptions {
        self.max_pg_conn = count;
        self
    }

    /// The schema that the jobs are in. Default: `graphile_worker`.
    pub fn schema(mut self, schema: impl Into<String>) -> WorkerOptions {
        self.schema = schema.into();
        self
    }

    /// How many jobs run at a time. From 1 to a million; default: the number of cores.
    pub fn concurrency(mut self, slots: usize) -> WorkerOptions {
        self.concurrency = slots;
        self
    }

    /// How often the worker looks for jobs that nobody told it of. At least 1 ms; default: 2 s. New jobs are
    /// announced, and scheduled ones are waited for by their time, so this is for what other tools change by hand.
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

    /// Runs the jobs of a task by a function of the context, for identifiers that are known only at run time.
    pub fn define_raw_job<F, R>(mut self, identifier: &str, handler: F) -> WorkerOptions
    where
        F: Fn(WorkerContext) -> R + Send + Sync + 'static,
        R: Future<Output: IntoTaskHandlerResult> + Send + 'static,
    {
        self.tasks.define_raw(identifier, handler);
        self
    }

    /// Claims no jobs of the tasks in this set, which may change while the worker runs.
    pub fn paused_tasks(mut self, paused: PausedTasks) -> WorkerOptions {
        self.paused_tasks = paused;
        self
    }

    /// Never claims jobs that have this flag, besides those that were forbidden before.
    pub fn add_forbidden_flag(mut self, flag: impl Into<String>) -> WorkerOptions {
        self.forbidden_flags.push(flag.into());
        self
    }

    /// Never claims jobs that have any of these flags. Replaces what was forbidden before. Default: none.
    pub fn forbidden_flags(mut self, flags: ForbiddenFlags) -> WorkerOptions {
        self.forbidden_flags = flags;
        self
    }

    /// Gives the tasks a value of the application's, found by its type: see [`WorkerContext::get_ext`].
    pub fn add_extension<T: Send + Sync + 'static>(mut self, value: T) -> WorkerOptions {
        self.extensions.insert(value);
        self
    }

    /// Has the worker call these hooks.
    pub fn add_hooks(mut self, hooks: impl Hooks) -> WorkerOptions {
        self.hooks.push(hooks);
        self
    }

    /// How long a call of an `on_…` hook may take before it is abandoned. At least 1 ms; default: 30 s. See [`Hooks`].
    pub fn hook_timeout(mut self, timeout: Duration) -> WorkerOptions {
        self.hook_timeout = timeout;
        self
    }

    /// What happens in the worker, from its start on.
    pub fn subscribe(&self) -> WorkerEvents {
        self.events.subscribe()
    }

    /// Adds recurring jobs: a crontab as text, which may be wrong and so gives a `Result`, or typed items.
    pub fn with_cron<C: IntoCron>(self, cron: C) -> C::Output {
        cron.add_to(self)
    }

    /// Adds recurring jobs, as [`WorkerOptions::with_cron`] does with a `Vec`.
    pub fn with_crons(self, items: impl IntoIterator<Item = Cron>) -> WorkerOptions {
        self.with_cron(items.into_iter().collect::<Vec<_>>())
    }

    /// Adds the recurring jobs of a crontab file, which must exist. The file is read once, in this call.
    pub fn crontab_file(self, path: impl AsRef<Path>) -> Result<WorkerOptions> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::config(format!("can't read the crontab {}: {error}", path.display())))?;
        let items = crate::cron::parse_crontab(&text)
            .map_err(|errors| Error::config(format!("invalid crontab {}\n{errors}", path.display())))?;
        Ok(self.with_crons(items))
    }

    /// Goes by this machine's time instead of the database's, for jobs. Cron follows the database's clock all the same.
    /// Default: false.
    pub fn use_local_time(mut self, use_local_time: bool) -> WorkerOptions {
        self.clock = use_local_time.then(Clock::system);
        self
    }

    /// Goes by a clock that a test can move, for jobs and for cron.
    pub fn clock(mut self, clock: Clock) -> WorkerOptions {
        self.plan.cron_clock = Some(clock.clone());
        self.clock = Some(clock);
        self
    }

    /// Whether statements are prepared. Default: found out at the start; a pooler in transaction mode can't.
    pub fn use_prepared_statements(mut self, use_prepared: bool) -> WorkerOptions {
        self.use_prepared = Some(use_prepared);
        self
    }

    /// Ends in good order on SIGINT, SIGTERM and SIGHUP, and at once on the second of them. Default: false.
    pub fn listen_os_shutdown_signals(mut self, listen: bool) -> WorkerOptions {
        self.plan.listen_os_shutdown_signals = listen;
        self
    }

    /// How long running jobs may take to end after a shutdown was asked for. Default: 5 s.
    pub fn shutdown_grace_period(mut self, period: Duration) -> WorkerOptions {
        self.plan.shutdown_grace_period = period;
        self
    }

    /// How long jobs may take to end after their token has fired, before they are dropped. Default: 5 s.
    pub fn shutdown_abort_period(mut self, period: Duration) -> WorkerOptions {
        self.plan.shutdown_abort_period = period;
        self
    }

    /// How long a job that a shutdown interrupted waits before it may run again. Default: not at all.
    pub fn interrupted_job_retry_delay(mut self, delay: Duration) -> WorkerOptions {
        self.interrupted_job_retry_delay = delay;
        self
    }

    /// How long this worker may go without a heartbeat before others declare it dead and recover its jobs. At least 1 s;
    /// default: 30 s. Each worker is judged by its own threshold. One with a longer threshold waits longer for the others too:
    /// for the mean of both thresholds.
    pub fn recovery_threshold(mut self, threshold: Duration) -> WorkerOptions {
        self.recovery_threshold = threshold;
        self
    }

    /// How long the jobs of a dead worker wait before they run again, when this worker recovers them. Default: not at
    /// all; but if a dead worker had several jobs without a queue, they become due at different times within the first
    /// seconds, whatever this delay is. With a delay, the jobs behind a recovered job of the same queue may run before
    /// it.
    pub fn recovery_delay(mut self, delay: Duration) -> WorkerOptions {
        self.recovery_delay = delay;
        self
    }

    /// How many workers may die while they have a job before the job fails permanently, with an error that names them. At
    /// least 1; default: 3. A death costs the job no attempt. Should be the same in all workers of a schema.
    pub fn crash_limit(mut self, crashes: u32) -> WorkerOptions {
        self.crash_limit = crashes;
        self
    }

    /// How the worker keeps others away from its jobs. Default: [`Claims::Held`].
    pub fn claims(mut self, claims: Claims) -> WorkerOptions {
        self.plan.claims = claims;
        self
    }

    /// How long a transaction that holds jobs may last, at the most. From 1 ms to 1 s; default: 50 ms. A job that runs
    /// longer becomes a durable claim then.
    pub fn hold_budget(mut self, budget: Duration) -> WorkerOptions {
        self.plan.hold_budget = budget;
        self
    }

    /// How many bytes of payloads the worker may claim before it runs them. Default: 16 MB. A job that is larger is claimed
    /// alone. What runs comes on top of that: one payload per slot.
    pub fn max_claim_bytes(mut self, bytes: usize) -> WorkerOptions {
        self.plan.claim_bytes = bytes;
        self
    }

    /// Claims more jobs than there are slots. Default: none. They count as attempted when the worker dies.
    pub fn local_queue(mut self, config: LocalQueueConfig) -> WorkerOptions {
        self.plan.local_queue = Some(config);
        self
    }

    /// How long a completed job may wait for others to be written with it. Default: not at all.
    pub fn complete_job_batch_delay(mut self, delay: Duration) -> WorkerOptions {
        self.plan.complete_job_batch_delay = delay;
        self
    }

    /// How long a failed job may wait for others to be written with it. Default: not at all.
    pub fn fail_job_batch_delay(mut self, delay: Duration) -> WorkerOptions {
        self.plan.fail_job_batch_delay = delay;
        self
    }

    /// Whether a database that does not answer at the start is waited for, or is an error. Default: true.
    pub fn wait_for_database(mut self, waits: bool) -> WorkerOptions {
        self.waits_for_database = waits;
        self
    }

    /// Whether the start may migrate a schema although releases of graphile-worker that use it now can't work with it
    /// afterwards: see [`MigrationPlan::stops_working`](crate::MigrationPlan::stops_working). Default: false, and the start is
    /// refused until somebody has called [`migrate`](crate::migrate()) or run `atta migrate`.
    pub fn allow_breaking_migration(mut self, is_allowed: bool) -> WorkerOptions {
        self.breaking = if is_allowed { Breaking::Allowed } else { Breaking::Refused };
        self
    }

    /// Checks the options, connects, and installs or upgrades the schema, unless that would stop the workers of older releases
    /// ([`WorkerOptions::allow_breaking_migration`]).
    ///
    /// All mistakes in the options are in one error. A database that does not answer is waited for, unless
    /// [`WorkerOptions::wait_for_database`] says otherwise; a wrong password or a missing privilege is an error, since
    /// no waiting cures that.
    ///
    /// Cancel safe: the schema is migrated as a whole or not at all, and the connections are closed.
    pub async fn init(mut self) -> Result<Worker> {
        let mistakes = self.mistakes();
        if !mistakes.is_empty() {
            return Err(Error::config(format!("invalid worker options: {}", mistakes.join("; "))));
        }
        self.bound_times();
        let schema = Schema::new(self.schema.as_str())?;
        let worker_id: Arc<str> = format!("atta-{:016x}", fastrand::u64(..)).into();
        let config = match self.url() {
            Some(url) => Some(ConnectionSettings::new(&url)?.with_default_application_name(&worker_id)),
            None => None,
        };
        let connections = match (&self.pool, &config) {
            (Some(pool), _) => pool.clone(),
            (None, Some(config)) => pool::pool(config, self.max_pg_conn)?,
            (None, None) => return Err(Error::config("no database given")),
        };
        let utils = WorkerUtils::new(connections, schema.clone()).with_clock(self.clock.clone());
        let patience = Patience::new(self.waits_for_database);
        let probe = async {
            match &config {
                Some(config) => patience.ask(|| link::probe(config)).await,
                None => Ok(link::Link::Direct),
            }
        };
        // Side by side: neither needs the other, and each is mostly waiting.
        let (_, link) = tokio::try_join!(patience.ask(|| utils.migrate_with(self.breaking)), probe)?;
        let is_direct = link == link::Link::Direct;
        if !is_direct {
            tracing::info!(
                "behind a pooler in transaction mode: no prepared statements, and polling without LISTEN"
            );
        }
        // A pool that was given may have a pooler behind it that our own connections do not.
        let utils_prepare = self.use_prepared.unwrap_or(is_direct && self.pool.is_none());
        let utils = utils.with_prepared_statements(utils_prepare);
        // Tasks may have all connections of their pool for as long as they like, and the worker still works and lives.
        let own_pool = |size, limits| match &config {
            Some(config) if is_direct => pool::worker_pool(config, size, limits),
            Some(config) => pool::pool(config, size),
            None => Ok(utils.pool().clone()),
        };
        let release_pool = |size, statement_timeout| match &config {
            Some(config) if is_direct => {
                let limits = pool::StatementLimits { statement: statement_timeout, lock: TO_RELEASE };
                pool::worker_pool(config, size, Some(limits))
            }
            _ => own_pool(size, None),
        };
        let shared = Shared {
            lane_pool: own_pool(lanes::LANES, None)?,
            release_pool: release_pool(release::BATCHES, Some(TO_RELEASE))?,
            apart_pool: release_pool(release::APART, None)?,
            poll_pool: own_pool(1, Some(POLL_LIMITS))?,
            cron_pool: own_pool(1, Some(POLL_LIMITS))?,
            heartbeat_source: Source {
                pool: match &config {
                    Some(config) => pool::pool(&Source::settings(config, self.recovery_threshold), 1)?,
                    None => utils.pool().clone(),
                },
                is_own_session: is_direct && config.is_some(),
            },
            worker_id,
            utils,
            sql: Statements::new(&schema),
            // A plan that is kept on a connection of somebody else's could be one for an empty table.
            use_prepared: self.use_prepared.unwrap_or(is_direct && config.is_some()),
            is_own_session: is_direct && config.is_some(),
            task_identifiers: self.tasks.identifiers(),
            tasks: self.tasks,
            paused_tasks: self.paused_tasks,
            slots: self.concurrency,
            forbidden_flags: FlagReader::new(self.forbidden_flags, Handle::current()),
            extensions: self.extensions,
            events: self.events,
            hooks: self.hooks,
            hook_tasks: TaskTracker::new(),
            hook_backlog: HookBacklog::new(self.hook_timeout),
            app_runtime: Handle::current(),
            may_hold: AtomicBool::new(false),
            functions_are_ours: AtomicBool::new(false),
            check_schema: AtomicBool::new(false),
            announced: AtomicUsize::new(0),
            continuity: Continuity::new(self.recovery_threshold, Instant::now()),
            clock: self.clock,
            poll_interval: self.poll_interval,
            recovery_threshold: self.recovery_threshold,
            recovery_delay: self.recovery_delay,
            crash_limit: self.crash_limit,
            interrupted_job_retry_delay: self.interrupted_job_retry_delay,
            stop: CancellationToken::new(),
            cancel: CancellationToken::new(),
            abort: CancellationToken::new(),
            leave: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        let has_own_lanes = config.is_some();
        let database = config.as_ref().map(ConnectionSettings::place);
        let listen = config.filter(|_| is_direct);
        self.plan.cron.extend(self.cron)?;
        Worker::new(Plan { database, listen, has_own_lanes, patience, ..self.plan }, shared)
    }

    /// Never is a hundred years: with so many, times can still be added up, here and in PostgreSQL.
    fn bound_times(&mut self) {
        const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        let plan = &mut self.plan;
        let times = [
            &mut self.poll_interval,
            &mut self.recovery_threshold,
            &mut self.recovery_delay,
            &mut self.interrupted_job_retry_delay,
            &mut self.hook_timeout,
            &mut plan.shutdown_grace_period,
            &mut plan.shutdown_abort_period,
            &mut plan.complete_job_batch_delay,
            &mut plan.fail_job_batch_delay,
        ];
        let refetch = plan.local_queue.iter_mut().flat_map(|queue| {
            let delay = queue.refetch_delay.as_mut().map(|delay| &mut delay.duration);
            [Some(&mut queue.ttl), delay].into_iter().flatten()
        });
        times.into_iter().chain(refetch).for_each(|time| *time = (*time).min(LONGEST));
    }

    fn url(&self) -> Option<String> {
        self.database_url.as_ref().map(|text| text.0.clone()).or_else(|| match self.pool {
            Some(_) => None,
            None => connection::in_environment(|name| std::env::var(name).ok()),
        })
    }

    fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        let mut check = |is_fine: bool, mistake: String| {
            if !is_fine {
                mistakes.push(mistake);
            }
        };
        check(
            self.pool.is_some() || self.url().is_some(),
            "no database is given: call database_url or pg_pool, or set DATABASE_URL".into(),
        );
        check(self.concurrency >= 1, "concurrency is 0, and must be at least 1".into());
        check(
            self.concurrency <= MOST_JOBS,
            format!("concurrency is {}, and must be at most {MOST_JOBS}", self.concurrency),
        );
        check(self.max_pg_conn >= 2, format!("max_pg_conn is {}, and must be at least 2", self.max_pg_conn));
        check(
            self.max_pg_conn <= pool::MOST_CONNECTIONS,
            format!("max_pg_conn is {}, and must be at most {}", self.max_pg_conn, pool::MOST_CONNECTIONS),
        );
        check(self.poll_interval >= Duration::from_millis(1), "poll_interval must be at least 1 ms".into());
        check(
            self.recovery_threshold >= Duration::from_secs(1),
            "recovery_threshold must be at least 1 s".into(),
        );
        check(self.hook_timeout >= Duration::from_millis(1), "hook_timeout must be at least 1 ms".into());
        check(self.crash_limit >= 1, "crash_limit is 0, and must be at least 1".into());
        let budget = Duration::from_millis(1)..=Duration::from_secs(1);
        check(budget.contains(&self.plan.hold_budget), "hold_budget must be between 1 ms and 1 s".into());
        let identifiers = self.tasks.identifiers();
        check(!identifiers.is_empty(), "no task is defined: call define_job at least once".into());
        for identifier in identifiers.iter().filter(|identifier| identifier.chars().count() > 128) {
            check(false, format!("the task identifier {identifier:?} is longer than 128 characters"));
        }
        for identifier in identifiers.iter().filter(|identifier| identifier.contains('\0')) {
            check(false, format!("the task identifier {identifier:?} contains a NUL character"));
        }
        if let Err(error) = Schema::new(self.schema.as_str()) {
            check(false, error.message().to_owned());
        }
        if let Some(local_queue) = &self.plan.local_queue {
            check(local_queue.size >= 1, "the local queue's size is 0, and must be at least 1".into());
            check(
                local_queue.size <= MOST_JOBS,
                format!("the local queue's size is {}, and must be at most {MOST_JOBS}", local_queue.size),
            );
            let pause = local_queue.refetch_delay.as_ref().map_or(Duration::ZERO, |delay| delay.duration);
            check(
                pause <= self.poll_interval,
                "the local queue's refetch delay is longer than poll_interval".into(),
            );
        }
        let cron = CronItems::new();
        let known = self.plan.cron.list();
        for item in known.into_iter().chain(self.cron.iter().cloned()) {
            if let Err(error) = cron.add(item) {
                check(false, error.message().to_owned());
            }
        }
        mistakes
    }
}

/// Whether a database that does not answer is asked again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience {
    /// Until it answers, or says what no waiting cures.
    Endless,
    /// Not once.
    None,
}

impl Patience {
    fn new(waits: bool) -> Patience {
        if waits { Patience::Endless } else { Patience::None }
    }

    pub(super) async fn ask<T, F: Future<Output = Result<T>>>(self, mut ask: impl FnMut() -> F) -> Result<T> {
        let mut backoff = Backoff::default();
        loop {
            match (self, ask().await) {
                (Patience::Endless, Err(error)) if error.is_transient() => {
                    tracing::warn!(%error, "the database does not answer; retrying");
                    tokio::time::sleep(backoff.next()).await;
                }
                (_, answered) => return answered,
            }
        }
    }
}

/// How a worker keeps others away from a job that it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claims {
    /// By a row lock, in a transaction of at most the hold budget; only what takes longer is written into the row.
    /// Several times faster. Jobs in a queue, and those of slow tasks, are claimed durably all the same.
    #[default]
    Held,
    /// By writing the worker's name into the row, always.
    Durable,
}

/// What [`WorkerOptions::with_cron`] takes: text, whose `Output` is a `Result`, or typed items, whose is not.
pub trait IntoCron {
    /// The options, or a result with them.
    type Output;

    /// Adds the items to the options.
    fn add_to(self, options: WorkerOptions) -> Self::Output;
}

impl IntoCron for Cron {
    type Output = WorkerOptions;

    fn add_to(self, mut options: WorkerOptions) -> WorkerOptions {
        options.cron.push(self);
        options
    }
}

impl IntoCron for Vec<Cron> {
    type Output = WorkerOptions;

    fn add_to(self, mut options: WorkerOptions) -> WorkerOptions {
        options.cron.extend(self);
        options
    }
}

/// A list of the application's own, to which it may add while the worker runs.
impl IntoCron for CronItems {
    type Output = WorkerOptions;

    fn add_to(self, mut options: WorkerOptions) -> WorkerOptions {
        options.plan.cron = self;
        options.plan.cron_may_grow = true;
        options
    }
}

impl IntoCron for &str {
    type Output = Result<WorkerOptions>;

    fn add_to(self, mut options: WorkerOptions) -> Result<WorkerOptions> {
        options.cron.extend(crate::cron::parse_crontab(self)?);
        Ok(options)
    }
}
