//! From the options to a worker: connects, migrates the schema, and opens the pools.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::backoff::Backoff;
use super::super::flags::FlagReader;
use super::super::fleet::ScanTurns;
use super::super::hooks::HookBacklog;
use super::super::plan::Plan;
use super::super::planner::DURABLE_LANES;
use super::super::queries::Texts;
use super::super::{Shared, Worker, claim, release};
use super::WorkerOptions;
use crate::db::{ConnectionSettings, connection, lease, link, pool};
use crate::recovery::{Continuity, Source};
use crate::{Error, Result, Schema, WorkerUtils};

/// How long a statement that releases several jobs may take, and how long any release may wait for a lock on a table. A
/// release normally takes far less. A batch that takes longer is split, so that one slow job does not delay the others.
const TO_RELEASE: Duration = Duration::from_secs(1);

/// How long the server may work on a durable claim. A claim that takes longer is made again job by job, since one of
/// the jobs may be the cause, by a trigger of the application (`claim/one_by_one.rs`).
const CLAIM_LIMITS: pool::StatementLimits =
    pool::StatementLimits { statement: Some(Duration::from_secs(5)), lock: lease::SERVER_LIMIT };

/// How long the server may work on a statement of a held batch.
const LANE_LIMITS: pool::StatementLimits =
    pool::StatementLimits { statement: Some(lease::SERVER_LIMIT), lock: lease::SERVER_LIMIT };

/// How long the server may work on a poll, or on one statement of a recovery. These statements never wait for row
/// locks.
const POLL_LIMITS: pool::StatementLimits =
    pool::StatementLimits { statement: Some(Duration::from_secs(30)), lock: Duration::from_secs(5) };

/// The same for cron. An add by key, or to a queue, may wait for another transaction. Cron then adds the jobs of the
/// other items first.
const CRON_LIMITS: pool::StatementLimits =
    pool::StatementLimits { statement: Some(Duration::from_secs(30)), lock: Duration::from_secs(1) };

impl WorkerOptions {
    /// Checks the options, connects, and installs or upgrades the schema. It does not upgrade a schema if that would
    /// stop the workers of older releases (see [`WorkerOptions::allow_breaking_migration`]).
    ///
    /// One error reports all mistakes in the options. If the database does not answer, this waits for it, unless
    /// [`WorkerOptions::wait_for_database`] is false. A wrong password or a missing privilege is an error, since
    /// waiting can't help.
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
        let probe = || async {
            match &config {
                Some(config) => link::probe(config).await,
                None => Ok(link::Link::Direct),
            }
        };
        // In parallel: neither needs the result of the other, and both mostly wait for the server.
        let migrate = || async {
            utils.migrate_with(self.breaking).await?;
            utils.check_jobs_visible().await
        };
        let ask = || async { tokio::try_join!(migrate(), probe()) };
        let (_, link) = patience.ask(ask).await?;
        let is_direct = link == link::Link::Direct;
        if !is_direct {
            tracing::info!(
                "behind a pooler in transaction mode: no prepared statements, and polling without LISTEN"
            );
        }
        // A pool that was given may connect through a pooler, even if our own connections do not.
        let utils_prepare = self.use_prepared.unwrap_or(is_direct && self.pool.is_none());
        let utils = utils.with_prepared_statements(utils_prepare);
        // The worker has its own pools, so that tasks may use all connections of theirs without delaying claims and
        // heartbeats.
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
            lane_pool: own_pool(claim::LANES, Some(LANE_LIMITS))?,
            claim_pool: own_pool(DURABLE_LANES, Some(CLAIM_LIMITS))?,
            release_pool: release_pool(release::BATCHES, Some(TO_RELEASE))?,
            apart_pool: release_pool(release::APART, Some(lease::SERVER_LIMIT))?,
            poll_pool: own_pool(1, Some(POLL_LIMITS))?,
            cron_pool: own_pool(1, Some(CRON_LIMITS))?,
            heartbeat_source: Source {
                pool: match &config {
                    Some(config) => pool::pool(&Source::settings(config, self.recovery_threshold), 1)?,
                    None => utils.pool().clone(),
                },
                is_own_session: is_direct && config.is_some(),
            },
            worker_id,
            utils,
            texts: Texts::new(schema.clone()),
            // On a connection that the worker shares with others, a plan may have been made while the table was empty.
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
            trusts_triggers: self.plan.trusts_triggers,
            functions_are_ours: AtomicBool::new(false),
            has_few_queues: AtomicBool::new(false),
            has_triggers: AtomicBool::new(true),
            stores_any_text: AtomicBool::new(false),
            fleet: Mutex::default(),
            scan_turns: ScanTurns::default(),
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

    pub(super) fn url(&self) -> Option<String> {
        self.database_url.as_ref().map(|text| text.0.clone()).or_else(|| match self.pool {
            Some(_) => None,
            None => connection::in_environment(|name| std::env::var(name).ok()),
        })
    }
}

/// How often a start that waits for the database logs this.
const BETWEEN_REPORTS: Duration = Duration::from_secs(30);

/// Whether to retry while the database does not answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Until it answers, or returns an error that waiting can't resolve.
    Endless,
    /// Never.
    None,
}

impl Patience {
    fn new(waits: bool) -> Patience {
        if waits { Patience::Endless } else { Patience::None }
    }

    pub(crate) async fn ask<T, F: Future<Output = Result<T>>>(self, mut ask: impl FnMut() -> F) -> Result<T> {
        let mut backoff = Backoff::default();
        let mut reported_at: Option<Instant> = None;
        loop {
            match (self, ask().await) {
                (Patience::Endless, Err(error)) if error.is_transient() => {
                    if reported_at.is_none_or(|time| time.elapsed() >= BETWEEN_REPORTS) {
                        tracing::warn!(%error, "the database does not answer; retrying");
                        reported_at = Some(Instant::now());
                    }
                    tokio::time::sleep(backoff.next()).await;
                }
                (_, answered) => {
                    if reported_at.is_some() && answered.is_ok() {
                        tracing::info!("the database answers again");
                    }
                    return answered;
                }
            }
        }
    }
}
