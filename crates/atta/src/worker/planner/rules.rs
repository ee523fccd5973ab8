//! The settings by which the planner decides. They do not change while a worker runs.

use std::sync::Arc;
use std::time::Duration;

use super::super::plan::{LocalQueueConfig, Plan};
use super::super::{Claims, Shared};

/// When a run of the worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    UntilShutdown,
    UntilEmpty,
}

#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) mode: Mode,
    pub(crate) slots: usize,
    pub(crate) claims: Claims,
    /// How many bytes of payloads may be claimed and not begun.
    pub(crate) claim_bytes: usize,
    pub(crate) hold_budget: Duration,
    /// How long jobs that are claimed wait for a claim that is under way and may bring a more urgent one, and for a
    /// release that may make a more urgent one due. A statement that takes longer delays only its own jobs.
    pub(crate) patience: Duration,
    pub(crate) local_queue: Option<LocalQueueConfig>,
    pub(crate) complete_job_batch_delay: Duration,
    pub(crate) fail_job_batch_delay: Duration,
    pub(crate) grace_period: Duration,
    pub(crate) abort_period: Duration,
    pub(crate) recovery_threshold: Duration,
    pub(crate) poll_interval: Duration,
    /// The worker's id, for the log.
    pub(crate) worker: Arc<str>,
}

impl Rules {
    pub(crate) fn new(mode: Mode, shared: &Shared, plan: &Plan) -> Rules {
        Rules {
            mode,
            slots: shared.slots,
            claims: plan.claims,
            claim_bytes: plan.claim_bytes,
            hold_budget: plan.hold_budget,
            patience: plan.order_patience,
            local_queue: plan.local_queue.clone(),
            complete_job_batch_delay: plan.complete_job_batch_delay,
            fail_job_batch_delay: plan.fail_job_batch_delay,
            grace_period: plan.shutdown_grace_period,
            abort_period: plan.shutdown_abort_period,
            recovery_threshold: shared.recovery_threshold,
            poll_interval: shared.poll_interval,
            worker: shared.worker_id.clone(),
        }
    }

    /// How many jobs are claimed beyond those that run.
    pub(super) fn ahead(&self) -> usize {
        self.local_queue.as_ref().map_or(0, |queue| queue.size)
    }

    /// How long a job may stay in the local queue before it is returned.
    pub(super) fn local_queue_ttl(&self) -> Option<Duration> {
        self.local_queue.as_ref().map(|queue| queue.ttl)
    }

    #[cfg(test)]
    pub(crate) fn for_tests(slots: usize) -> Rules {
        let second = Duration::from_secs(1);
        Rules {
            mode: Mode::UntilShutdown,
            slots,
            claims: Claims::Held,
            claim_bytes: 16 << 20,
            hold_budget: Duration::from_millis(50),
            patience: Duration::from_secs(1),
            local_queue: None,
            complete_job_batch_delay: Duration::ZERO,
            fail_job_batch_delay: Duration::ZERO,
            grace_period: 5 * second,
            abort_period: 5 * second,
            recovery_threshold: 30 * second,
            poll_interval: 2 * second,
            worker: "w".into(),
        }
    }
}
