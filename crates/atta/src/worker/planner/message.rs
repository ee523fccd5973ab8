//! What the planner learns ([`Event`]), and what it decides ([`Command`]).

use std::sync::Arc;
use std::time::Instant;

use super::super::claim::held::{Settlement, Wanted};
use super::super::claim::promote::Unsettled;
use super::super::claim::{Claimable, Claimed, KnownJobs, Left, Level, Times};
use super::super::release::{Entry, Report};
use super::super::run::Finished;
use super::scan::{Request, Seen};
use crate::event::WorkerEvent;
use crate::{Error, Job, Result};

/// Something that has happened.
pub(crate) enum Event {
    /// There may be due jobs, of any kind.
    Hint,
    /// This number of jobs was added.
    Announced(usize),
    /// A poll returned when the next jobs are due, in order.
    Due(Vec<Instant>),
    /// The tasks whose jobs may be claimed have changed.
    TasksChanged(Vec<String>),
    /// The durable claim that was sent at this time was answered. Its jobs are still being decoded.
    Answered {
        sent_at: Instant,
        epoch: u64,
        /// What it took, if that was of one level.
        level: Option<Level>,
    },
    /// A durable claim has ended.
    Claimed { wanted: Box<Claimable>, claimed: Result<Claimed> },
    /// A pick was answered. Its jobs are still being decoded.
    Seen { lane: u64, request: Request, seen: Seen },
    /// Jobs of a pick, in the order in which they are to run.
    Picked {
        lane: u64,
        jobs: Vec<Arc<Job>>,
        /// Held, but there was no room for their payloads. They become free with the others that are not begun.
        without_room: Vec<Arc<Job>>,
    },
    /// The transaction of a batch has ended, with this number of jobs.
    BatchEnded { lane: u64, picked: Result<usize>, left: Left },
    /// Jobs of a batch were claimed again, since its connection was lost.
    Promoted { lane: u64, left: Left },
    /// Jobs of a claim with a lost reply were searched for: how many were returned, and how many others keep locked.
    Searched(Result<(usize, usize)>),
    /// Since when running jobs are locked, after old locks were renewed.
    Renewed(Times),
    /// A task that claims has panicked.
    LanePanicked(Error),
    /// Jobs have ended in slots.
    Finished(Vec<Finished>),
    /// Outcomes are written, or their claims are lost.
    Released(Report),
    /// The application's runtime has ended, and slots with it.
    SlotsGone { are_all_gone: bool },
    /// The worker can't go on.
    Failed(Error),
    /// A shutdown was requested.
    Shutdown,
    /// The running tasks are being dropped.
    Abort,
    /// The time of [`super::Planner::next_timer`] has come, or the surroundings have changed.
    Timer,
}

/// Something to do.
pub(crate) enum Command {
    ClaimDurably(Claimable),
    Hold(Wanted),
    /// To the lane that holds the batch.
    CommitBatch {
        lane: u64,
        settlement: Settlement,
    },
    /// Claims the jobs of a batch again whose connection was lost.
    Promote {
        lane: u64,
        unsettled: Unsettled,
    },
    /// Searches for jobs that are locked by this worker and not among these, and returns them.
    Search {
        known: KnownJobs,
    },
    RenewLocks {
        ids: Vec<i64>,
    },
    Release(Vec<Entry>),
    Poll,
    Report(WorkerEvent),
    /// Requests the shutdown of this worker.
    Stop,
    /// Fires the token in the context of running tasks.
    CancelTasks,
    /// Drops running tasks.
    AbortTasks,
    /// Waits for no statement any longer.
    Leave,
}
