//! The state that all parts of a worker share: settings that do not change, pools, and signals between the parts.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use deadpool_postgres::Pool;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::flags::FlagReader;
use super::fleet::{Fleet, ScanTurns};
use super::hooks::HookBacklog;
use super::pause::PausedTasks;
use super::queries::{Connection, Texts};
use super::run::Tasks;
use crate::context::Extensions;
use crate::db::lease::Lease;
use crate::event::{EventSender, HookList};
use crate::recovery::{Continuity, Source};
use crate::testing::Clock;
use crate::{Error, WorkerUtils};

pub(crate) struct Shared {
    pub(crate) worker_id: Arc<str>,
    pub(crate) utils: WorkerUtils,
    /// For held claims, and for the locks that a worker has.
    pub(crate) lane_pool: Pool,
    /// For durable claims. If the sessions are the worker's own, their statements have a time limit.
    pub(crate) claim_pool: Pool,
    /// For releases of several jobs. If the sessions are the worker's own, their statements have a time limit.
    pub(crate) release_pool: Pool,
    /// For releases of single jobs, which may take long.
    pub(crate) apart_pool: Pool,
    /// For polls and recovery.
    pub(crate) poll_pool: Pool,
    /// For cron.
    pub(crate) cron_pool: Pool,
    /// For the one connection that sends heartbeats.
    pub(crate) heartbeat_source: Source,
    pub(crate) texts: Texts,
    /// Whether statements are prepared: not behind a pooler that hands out another server for each transaction.
    pub(crate) use_prepared: bool,
    /// Whether the sessions of the worker's connections are its own. False behind such a pooler, and for a pool that
    /// the application gave.
    pub(crate) is_own_session: bool,
    pub(crate) tasks: Tasks,
    pub(crate) task_identifiers: Vec<String>,
    /// Tasks whose jobs are not claimed for now.
    pub(crate) paused_tasks: PausedTasks,
    pub(crate) slots: usize,
    pub(crate) forbidden_flags: FlagReader,
    pub(crate) extensions: Extensions,
    pub(crate) events: EventSender,
    pub(crate) hooks: HookList,
    pub(crate) hook_tasks: TaskTracker,
    pub(crate) hook_backlog: HookBacklog,
    /// The application's runtime, on which its code runs.
    pub(crate) app_runtime: Handle,
    /// Whether jobs may be held. Not after several workers have died recently, since one of the jobs may be the cause,
    /// not while the schema has another tool's functions, and not while triggers may refuse to change a job.
    pub(crate) may_hold: AtomicBool,
    /// Whether jobs are held although triggers may refuse to change a job.
    pub(crate) trusts_triggers: bool,
    /// Whether the schema had our functions at the last poll. Their notifications name the schema.
    pub(crate) functions_are_ours: AtomicBool,
    /// Whether at most about a hundred queues had jobs at the last poll.
    pub(crate) has_few_queues: AtomicBool,
    /// Whether the tables of jobs and queues had triggers on update or delete at the last poll. True before the first
    /// poll.
    pub(crate) has_triggers: AtomicBool,
    /// Whether the database can store every text, by the last poll. False before the first poll.
    pub(crate) stores_any_text: AtomicBool,
    /// The workers that have registered, as they were a few seconds ago.
    pub(crate) fleet: Mutex<Fleet>,
    pub(crate) scan_turns: ScanTurns,
    /// Whether the next poll should check the schema, because a notification announced a migration.
    pub(crate) check_schema: AtomicBool,
    /// How many jobs were announced since the driver last read this number.
    pub(crate) announced: AtomicUsize,
    /// This worker's own heartbeats.
    pub(crate) continuity: Continuity,
    /// The clock to use instead of the database's.
    pub(crate) clock: Option<Clock>,
    pub(crate) poll_interval: Duration,
    pub(crate) recovery_threshold: Duration,
    /// How long recovered jobs wait.
    pub(crate) recovery_delay: Duration,
    /// How many workers may die while they have a job before it fails permanently.
    pub(crate) crash_limit: u32,
    pub(crate) interrupted_job_retry_delay: Duration,
    /// Cancelled when the worker must start no new jobs.
    pub(crate) stop: CancellationToken,
    /// Cancelled when running jobs should end: the token of their contexts.
    pub(crate) cancel: CancellationToken,
    /// Cancelled when running jobs are dropped.
    pub(crate) abort: CancellationToken,
    /// Cancelled when the worker no longer waits for the database.
    pub(crate) leave: CancellationToken,
    /// Cancelled when all jobs are released.
    pub(crate) ended: CancellationToken,
}

impl Shared {
    /// The tasks whose jobs are claimed now.
    pub(crate) fn active_tasks(&self) -> Vec<String> {
        self.task_identifiers.iter().filter(|task| !self.paused_tasks.contains(task)).cloned().collect()
    }

    /// If a statement was not answered in time, the idle connections may be no better. They are closed, so that the
    /// next statements open others instead of waiting as long.
    pub(crate) fn on_error(&self, error: &Error) {
        if error.is_unanswered() {
            let claims = [&self.lane_pool, &self.claim_pool];
            let others = [&self.release_pool, &self.apart_pool, &self.poll_pool, &self.cron_pool];
            claims.iter().chain(&others).for_each(|pool| drop(pool.retain(|_, _| false)));
        }
    }

    /// The time to use instead of the database's, if any.
    pub(crate) fn local_now(&self) -> Option<DateTime<Utc>> {
        self.clock.as_ref().map(Clock::now)
    }

    /// A connection for the functions of statements.
    pub(crate) fn on<'a>(&'a self, client: &'a Lease) -> Connection<'a> {
        Connection { shared: self, client }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("worker_id", &self.worker_id).finish_non_exhaustive()
    }
}
