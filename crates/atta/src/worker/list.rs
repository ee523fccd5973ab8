//! The list of claimed jobs that wait for a slot.
//!
//! Jobs start in the order of the list: by priority, run_at and id, whatever the kind of their claims. The list is open
//! up to a point that the planner sets: all due jobs that are more urgent than this point have been claimed. Jobs
//! behind it wait, since a claim that is under way may return a more urgent one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::planner::scan::{NOTHING, before};
use super::run::Claim;
use crate::Job;
use crate::job::Order;

/// Claimed jobs that wait for a slot. A job that a slot has taken from here is running.
pub(crate) struct RunList {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

struct Waiting {
    durable: BTreeMap<Order, (Arc<Job>, Instant)>,
    /// One entry per open batch; its jobs are in order. There are few batches.
    held: Vec<HeldJobs>,
    /// Jobs up to here may start.
    open_to: Order,
    /// With one slot the order is exact: when a queued job starts, the list is suspended until the job has ended and
    /// the next job of its queue could be claimed.
    is_exact: bool,
    is_suspended: bool,
}

struct HeldJobs {
    lane: u64,
    jobs: VecDeque<Arc<Job>>,
    claimed_at: Instant,
}

/// A job for a slot.
pub(crate) struct Next {
    pub(crate) job: Arc<Job>,
    pub(crate) claim: Claim,
    pub(crate) claimed_at: Instant,
}

impl RunList {
    pub(crate) fn new(slots: usize) -> RunList {
        let waiting = Waiting {
            durable: BTreeMap::new(),
            held: Vec::new(),
            open_to: NOTHING,
            is_exact: slots == 1,
            is_suspended: false,
        };
        RunList { waiting: Mutex::new(waiting), arrived: Notify::new() }
    }

    /// Lets jobs start again after a queued job has suspended the list. The planner calls this when it knows that the
    /// job has ended, after it has set `open_to` accordingly.
    pub(crate) fn resume(&self) {
        self.lock().is_suspended = false;
    }

    /// Jobs up to this point may start.
    pub(crate) fn open_to(&self, order: Order) {
        let startable = {
            let mut waiting = self.lock();
            let is_wider = order > waiting.open_to;
            waiting.open_to = order;
            if is_wider { waiting.startable() } else { 0 }
        };
        self.announce(startable);
    }

    /// Adds durable jobs that were claimed by a statement sent at `asked_at`. The time of the reply would be too late:
    /// if the process was stopped meanwhile, the reply has waited for it.
    pub(crate) fn push_durable(&self, jobs: Vec<Arc<Job>>, asked_at: Instant) {
        let count = jobs.len();
        self.lock().durable.extend(jobs.into_iter().map(|job| (job.order(), (job, asked_at))));
        self.announce(count);
    }

    /// Adds held jobs, in order. The time limit of their transaction counts from the reply at `claimed_at`, however
    /// long the statement took.
    pub(crate) fn push_held(&self, jobs: &[Arc<Job>], lane: u64, claimed_at: Instant) {
        let (jobs, count) = (jobs.iter().cloned().collect(), jobs.len());
        self.lock().held.push(HeldJobs { lane, jobs, claimed_at });
        self.announce(count);
    }

    /// Takes the durable jobs off the list that have waited since `before` or longer.
    pub(crate) fn take_durable(&self, before: Instant) -> Vec<Arc<Job>> {
        let mut waiting = self.lock();
        let old = waiting.durable.iter().filter(|(_, (_, since))| *since <= before);
        let old: Vec<Order> = old.map(|(order, _)| *order).collect();
        waiting.close_before(old.first().copied());
        old.iter().filter_map(|order| waiting.durable.remove(order)).map(|(job, _)| job).collect()
    }

    /// Takes out the least urgent durable jobs that wait, this many at the most.
    pub(crate) fn take_last_durable(&self, count: usize) -> Vec<Arc<Job>> {
        let mut waiting = self.lock();
        let last = (0..count).map_while(|_| waiting.durable.pop_last());
        let last: Vec<Arc<Job>> = last.map(|(_, (job, _))| job).collect();
        waiting.close_before(last.last().map(|job| job.order()));
        last
    }

    /// Takes the held jobs of this lane off the list.
    pub(crate) fn take_held(&self, lane: u64) -> Vec<Arc<Job>> {
        let mut waiting = self.lock();
        let Some(index) = waiting.held.iter().position(|held| held.lane == lane) else { return Vec::new() };
        let jobs = waiting.held.swap_remove(index).jobs;
        waiting.close_before(jobs.front().map(|job| job.order()));
        jobs.into()
    }

    /// The bytes of the payloads of all durable jobs that wait.
    pub(crate) fn durable_bytes(&self) -> usize {
        self.lock().durable.values().map(|(job, _)| job.payload_json().len()).sum()
    }

    /// The most urgent job of all that wait.
    pub(crate) fn first(&self) -> Option<Order> {
        let waiting = self.lock();
        let held = waiting.held.iter().filter_map(|held| held.jobs.front()).map(|job| job.order());
        held.chain(waiting.durable.keys().next().copied()).min()
    }

    /// How many durable jobs wait.
    pub(crate) fn durable_waiting(&self) -> usize {
        self.lock().durable.len()
    }

    /// The position of the durable job that has this many others before it.
    pub(crate) fn durable_after(&self, others: usize) -> Option<Order> {
        self.lock().durable.keys().nth(others).copied()
    }

    /// The least urgent durable job that waits.
    pub(crate) fn last_durable(&self) -> Option<Order> {
        self.lock().durable.last_key_value().map(|(order, _)| *order)
    }

    /// How many durable jobs that are more urgent than this wait, counted up to `most`.
    pub(crate) fn durable_before(&self, order: Order, most: usize) -> usize {
        self.lock().durable.keys().take_while(|waiting| **waiting < order).take(most).count()
    }

    pub(crate) async fn pop(&self) -> Next {
        loop {
            if let Some(next) = self.next() {
                return next;
            }
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            // From here on no arrival is missed, not even one between the check below and the wait.
            arrived.as_mut().enable();
            if let Some(next) = self.next() {
                return next;
            }
            arrived.await;
        }
    }

    pub(crate) fn next(&self) -> Option<Next> {
        self.lock().next()
    }

    /// Wakes idle slots for this many jobs. Busy slots check the list after their current job.
    fn announce(&self, count: usize) {
        match count {
            0 => {}
            1 => self.arrived.notify_one(),
            _ => {
                self.arrived.notify_waiters();
                // Stores a permit for a slot that has found the list empty and does not wait yet.
                self.arrived.notify_one();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // No code panics while it holds this lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Keeps less urgent jobs from starting: jobs that were taken off the list are returned, and will be claimed again.
    fn close_before(&mut self, order: Option<Order>) {
        if let Some(order) = order {
            self.open_to = self.open_to.min(before(order));
        }
    }

    /// The most urgent job, if it may start.
    fn next(&mut self) -> Option<Next> {
        if self.is_suspended {
            return None;
        }
        let durable = self.durable.first_key_value().map(|(order, _)| *order);
        let fronts = self
            .held
            .iter()
            .enumerate()
            .filter_map(|(index, held)| Some((held.jobs.front()?.order(), index)));
        match (durable, fronts.min()) {
            (Some(order), held) if held.is_none_or(|(held, _)| order < held) => {
                if order > self.open_to {
                    return None;
                }
                let (_, (job, claimed_at)) = self.durable.pop_first()?;
                self.is_suspended = self.is_exact && job.job_queue_id.is_some();
                Some(Next { job, claim: Claim::Durable, claimed_at })
            }
            (_, Some((order, index))) if order <= self.open_to => {
                let held = &mut self.held[index];
                let (lane, claimed_at, job) = (held.lane, held.claimed_at, held.jobs.pop_front()?);
                Some(Next { job, claim: Claim::Held(lane), claimed_at })
            }
            _ => None,
        }
    }

    /// How many jobs may start, roughly: each kind is counted up to two, since all slots are woken for more than one
    /// job.
    fn startable(&self) -> usize {
        let durable = self.durable.keys().take_while(|order| **order <= self.open_to).take(2).count();
        let held = self.held.iter().flat_map(|held| held.jobs.iter().take(2));
        durable + held.filter(|job| job.order() <= self.open_to).count()
    }
}
