//! A worker of the simulation: the planner, the list, the releases and the continuity of a real one, without its driver.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::Claims;
use super::super::backoff::Backoff;
use super::super::claim::held::LONGEST_SILENCE;
use super::super::list::{Next, RunList};
use super::super::plan::LocalQueueConfig;
use super::super::planner::{Mode, Planner, Rules};
use super::super::release::Pending;
use super::super::run::Claim;
use super::cron::Schedule;
use super::model::Cause;
use super::setup::{POLL_INTERVAL, Setup, TASKS, THRESHOLD};
use crate::Job;
use crate::recovery::Continuity;

/// A job in a slot.
pub(super) struct Run {
    pub(super) job: Arc<Job>,
    pub(super) claim: Claim,
    pub(super) began: Duration,
    /// Why the worker no longer has the job.
    pub(super) lost: Option<Cause>,
}

/// What the task that polls is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polling {
    UnderWay,
    Resting,
    /// The number tells whether the timer is still the latest.
    Waiting(u64),
}

/// The planner's timer. The planner sets it anew with each event, mostly to a later time. The agenda has only one entry for
/// it: if the timer was set to a later time meanwhile, the entry is made anew when its time has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timer {
    wanted: Duration,
    /// The time of the entry that counts, and its number.
    entry: Option<Duration>,
    number: u64,
}

impl Timer {
    /// Sets the timer. Returns the number of an entry that must be made for this time, if any.
    pub(super) fn set(&mut self, at: Duration) -> Option<u64> {
        self.wanted = at;
        if self.entry.is_some_and(|entry| entry <= at) {
            return None;
        }
        self.entry = Some(at);
        self.number += 1;
        Some(self.number)
    }

    /// The time of an entry has come.
    pub(super) fn on_entry(&mut self, number: u64, now: Duration) -> TimerEntry {
        if number != self.number {
            return TimerEntry::Obsolete;
        }
        self.entry = None;
        match self.wanted <= now {
            true => TimerEntry::Due,
            false => TimerEntry::Early(self.wanted),
        }
    }
}

/// What an entry of the agenda means for its timer.
pub(super) enum TimerEntry {
    Due,
    /// The timer was set to this later time.
    Early(Duration),
    Obsolete,
}

pub(super) struct Worker {
    pub(super) planner: Planner,
    pub(super) list: Arc<RunList>,
    pub(super) continuity: Continuity,
    /// It is registered, and its driver runs.
    pub(super) has_started: bool,
    pub(super) may_hold: bool,
    pub(super) has_triggers: bool,
    /// Jobs in slots, by the number of the run.
    pub(super) runs: BTreeMap<u64, Run>,
    pub(super) timer: Timer,

    pub(super) pending: Pending,
    /// When the releases of several jobs that are under way were sent.
    pub(super) batches: Vec<Instant>,
    pub(super) apart: usize,
    pub(super) stuck: usize,
    pub(super) release_timer: u64,

    pub(super) heartbeat_backoff: Backoff,
    pub(super) polling: Polling,
    pub(super) poll_timer: u64,
    pub(super) is_poll_asked: bool,
    pub(super) has_polled: bool,
    pub(super) recovered_at: Option<Duration>,

    /// None if the run has no cron, or before the start.
    pub(super) cron: Option<Schedule>,

    /// How many jobs each batch has that is not committed yet.
    pub(super) picked: BTreeMap<u64, usize>,
    /// Since when a slot is free.
    pub(super) idle_since: Duration,
    /// No job may start any more.
    pub(super) is_stopping: bool,
    pub(super) stopped_until: Duration,
    pub(super) cut_until: Duration,
    /// When something last went wrong for it, or will have.
    pub(super) disturbed_at: Duration,
    /// The same for what did not concern all workers.
    pub(super) singled_out_at: Duration,
}

impl Worker {
    pub(super) fn new(setup: &Setup, since_start: Duration, now: Instant) -> Worker {
        let list = Arc::new(RunList::new(setup.slots));
        let tasks = TASKS.map(str::to_owned).to_vec();
        let mut rules = Rules::for_tests(setup.slots);
        if !setup.patience.is_zero() {
            rules.patience = setup.patience;
        }
        (rules.recovery_threshold, rules.poll_interval) = (THRESHOLD, POLL_INTERVAL);
        rules.local_queue = setup.local_queue.map(LocalQueueConfig::new);
        if setup.is_durable {
            rules.claims = Claims::Durable;
        }
        if setup.until_empty {
            rules.mode = Mode::UntilEmpty;
        }
        Worker {
            planner: Planner::new(now, rules, list.clone(), tasks),
            list,
            continuity: Continuity::new(THRESHOLD, now),
            has_started: false,
            may_hold: false,
            has_triggers: false,
            runs: BTreeMap::new(),
            timer: Timer::default(),
            pending: Pending::default(),
            batches: Vec::new(),
            apart: 0,
            stuck: 0,
            release_timer: 0,
            heartbeat_backoff: Backoff::default(),
            polling: Polling::UnderWay,
            poll_timer: 0,
            is_poll_asked: false,
            has_polled: false,
            recovered_at: None,
            cron: None,
            picked: BTreeMap::new(),
            idle_since: since_start,
            is_stopping: false,
            stopped_until: Duration::ZERO,
            cut_until: Duration::ZERO,
            disturbed_at: since_start,
            singled_out_at: since_start,
        }
    }

    /// When the oldest release of several jobs was sent that is under way.
    pub(super) fn under_way(&self) -> Option<Instant> {
        self.batches.iter().min().copied()
    }

    /// Whether a slot must not begin this job: see `slots.rs`.
    pub(super) fn is_too_late(&self, next: &Next, now: Instant) -> bool {
        self.is_stopping
            || match next.claim {
                Claim::Durable => self.continuity.may_have_lost(next.claimed_at, now),
                Claim::Held(_) => now.saturating_duration_since(next.claimed_at) > LONGEST_SILENCE,
            }
    }

    /// Something goes wrong for this worker until then.
    pub(super) fn disturb(&mut self, until: Duration) {
        self.disturbed_at = self.disturbed_at.max(until);
    }

    /// The same, but not for all workers.
    pub(super) fn single_out(&mut self, until: Duration) {
        self.disturb(until);
        self.singled_out_at = self.singled_out_at.max(until);
    }
}
