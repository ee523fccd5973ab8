//! The options for claiming and releasing jobs.

use std::time::Duration;

use super::WorkerOptions;
use crate::worker::plan::LocalQueueConfig;

/// How a worker claims jobs, so that no other worker runs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claims {
    /// By a row lock, in a transaction that lasts at most for the hold budget. The claim is written into the row only
    /// if the job takes longer. This is several times faster. Jobs in a queue, and jobs of slow tasks, are still
    /// claimed durably.
    #[default]
    Held,
    /// Always by writing the worker's id and the time into the row.
    Durable,
}

impl WorkerOptions {
    /// How the worker claims jobs. Default: [`Claims::Held`].
    pub fn claims(mut self, claims: Claims) -> WorkerOptions {
        self.plan.claims = claims;
        self
    }

    /// How long claimed jobs wait for a statement that may bring a more urgent job. Default: 1 s. Hidden: tests of the
    /// order set it, so that a machine on which statements take seconds does not fail them.
    #[doc(hidden)]
    pub fn order_patience(mut self, patience: Duration) -> WorkerOptions {
        self.plan.order_patience = patience;
        self
    }

    /// Holds jobs even while the table of jobs has triggers or foreign keys, which may refuse to change a job. Hidden:
    /// tests that observe held jobs by triggers set it.
    #[doc(hidden)]
    pub fn trust_triggers(mut self, trusts: bool) -> WorkerOptions {
        self.plan.trusts_triggers = trusts;
        self
    }

    /// The longest time that a held claim stays held. From 1 ms to 1 s; default: 50 ms. If a job runs longer, its claim
    /// is promoted to a durable one.
    pub fn hold_budget(mut self, budget: Duration) -> WorkerOptions {
        self.plan.hold_budget = budget;
        self
    }

    /// How many bytes of payloads the worker may have claimed for jobs that are not running yet. Default: 16 MB. A
    /// larger job is claimed alone. At least 1. The payloads of running jobs, one per slot, are not included.
    pub fn max_claim_bytes(mut self, bytes: usize) -> WorkerOptions {
        self.plan.claim_bytes = bytes;
        self
    }

    /// Claims more jobs than there are free slots. Default: none. If the worker dies, that counts as a crash of each of
    /// these jobs.
    pub fn local_queue(mut self, config: LocalQueueConfig) -> WorkerOptions {
        self.plan.local_queue = Some(config);
        self
    }

    /// How long the outcome of a completed job may wait to be written together with others. Default: 0.
    pub fn complete_job_batch_delay(mut self, delay: Duration) -> WorkerOptions {
        self.plan.complete_job_batch_delay = delay;
        self
    }

    /// How long the outcome of a failed job may wait to be written together with others. Default: 0.
    pub fn fail_job_batch_delay(mut self, delay: Duration) -> WorkerOptions {
        self.plan.fail_job_batch_delay = delay;
        self
    }
}
