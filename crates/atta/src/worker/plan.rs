//! The part of a worker's options that its driver and planner use.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::options::Patience;
use super::{Claims, Shared};
use crate::ConnectionSettings;
use crate::cron::{CronClock, CronItems};
use crate::event::WorkerEvent;
use crate::testing::Clock;

/// Settings of the local queue: jobs that are claimed before a slot is free for them.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub struct LocalQueueConfig {
    /// How many jobs are claimed beyond those that run. At least 1; default: 100. The next jobs are claimed when a
    /// quarter of them have started.
    pub size: usize,
    /// How long a job may wait in the local queue before it is returned. Default: 5 minutes.
    pub ttl: Duration,
    /// Waits before the next claim when one returned few jobs. Default: none, it does not wait.
    pub refetch_delay: Option<RefetchDelay>,
}

impl Default for LocalQueueConfig {
    fn default() -> LocalQueueConfig {
        LocalQueueConfig::new(100)
    }
}

impl LocalQueueConfig {
    /// A local queue of this many jobs beyond those that run.
    pub fn new(size: usize) -> LocalQueueConfig {
        LocalQueueConfig { size, ttl: Duration::from_secs(300), refetch_delay: None }
    }

    /// Sets [`LocalQueueConfig::size`].
    pub fn with_size(mut self, size: usize) -> LocalQueueConfig {
        self.size = size;
        self
    }

    /// Sets [`LocalQueueConfig::ttl`].
    pub fn with_ttl(mut self, ttl: Duration) -> LocalQueueConfig {
        self.ttl = ttl;
        self
    }

    /// Sets [`LocalQueueConfig::refetch_delay`].
    pub fn with_refetch_delay(mut self, delay: RefetchDelay) -> LocalQueueConfig {
        self.refetch_delay = Some(delay);
        self
    }
}

/// Waits before the next claim when one returned few jobs, so that many workers do not ask for each single job.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub struct RefetchDelay {
    /// The mean of the delay, which is chosen at random between half and one and a half of it. At most the poll
    /// interval.
    pub duration: Duration,
    /// The delay follows a claim that returned at most this number of jobs. Default: 0.
    pub threshold: usize,
    /// At most this number of announced jobs ends the delay early. Default: five times the size of the local queue.
    pub max_abort_threshold: Option<usize>,
}

impl RefetchDelay {
    /// A delay of this mean, after claims that returned no job.
    pub fn new(duration: Duration) -> RefetchDelay {
        RefetchDelay { duration, threshold: 0, max_abort_threshold: None }
    }

    /// Sets [`RefetchDelay::threshold`].
    pub fn with_threshold(mut self, threshold: usize) -> RefetchDelay {
        self.threshold = threshold;
        self
    }

    /// Sets [`RefetchDelay::max_abort_threshold`].
    pub fn with_max_abort_threshold(mut self, threshold: usize) -> RefetchDelay {
        self.max_abort_threshold = Some(threshold);
        self
    }
}

/// The options that the driver and the planner use.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) claims: Claims,
    /// How many bytes of payloads may be claimed for jobs that have not started.
    pub(super) claim_bytes: usize,
    pub(super) hold_budget: Duration,
    pub(super) order_patience: Duration,
    /// Whether jobs are held although triggers may refuse to change a job.
    pub(super) trusts_triggers: bool,
    /// Servers and name of the database, for the log. None if the application gave a pool, which does not name them.
    pub(super) database: Option<String>,
    pub(super) listen: Option<ConnectionSettings>,
    /// Whether the worker has connections of its own for its lanes.
    pub(super) has_own_lanes: bool,
    pub(super) listen_os_shutdown_signals: bool,
    pub(super) patience: Patience,
    pub(super) shutdown_grace_period: Duration,
    pub(super) shutdown_abort_period: Duration,
    pub(super) cron: CronItems,
    /// Whether the application can add items later, so that cron must run even without items.
    pub(super) cron_may_grow: bool,
    /// A clock that a test controls, which cron follows instead of the database's.
    pub(super) cron_clock: Option<Clock>,
    pub(super) local_queue: Option<LocalQueueConfig>,
    pub(super) complete_job_batch_delay: Duration,
    pub(super) fail_job_batch_delay: Duration,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            claims: Claims::Held,
            claim_bytes: 16 << 20,
            hold_budget: Duration::from_millis(50),
            order_patience: Duration::from_secs(1),
            trusts_triggers: false,
            database: None,
            listen: None,
            has_own_lanes: false,
            listen_os_shutdown_signals: false,
            patience: Patience::Endless,
            shutdown_grace_period: Duration::from_secs(5),
            shutdown_abort_period: Duration::from_secs(5),
            cron: CronItems::default(),
            cron_may_grow: false,
            cron_clock: None,
            local_queue: None,
            complete_job_batch_delay: Duration::ZERO,
            fail_job_batch_delay: Duration::ZERO,
        }
    }
}

impl Plan {
    pub(super) fn start_cron(&self, shared: &Arc<Shared>, background: &mut JoinSet<()>) {
        if !self.cron_may_grow && self.cron.list().is_empty() {
            return;
        }
        let events = shared.events.clone();
        background.spawn(crate::cron::run_schedule(
            shared.cron_pool.clone(),
            shared.utils.schema().clone(),
            self.cron.clone(),
            CronClock::new(self.cron_clock.clone()),
            shared.stop.clone(),
            move |event| events.send(|| WorkerEvent::Cron(Arc::new(event))),
        ));
    }
}
