//! Slots: tasks of the runtime that run one job at a time each, from one list of claimed jobs.
//!
//! The list is in the order in which jobs start: priority, run_at, id, whatever kind of claim they are. It is open up to a
//! point that the owner sets: everything that is more urgent has been claimed. What is behind that point waits, since a
//! claim that is under way may bring a more urgent job.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::run::{Claim, Finished, Outcome, run_job};
use super::scan::{NOTHING, before};
use super::{Shared, hold};
use crate::Job;
use crate::job::Order;

/// Claimed jobs that wait for a slot. A job that a slot has taken from here is running.
pub(crate) struct RunList {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

struct Waiting {
    durable: BTreeMap<Order, (Arc<Job>, Instant)>,
    /// One for each open batch; within a batch in order. There are few.
    held: Vec<HeldJobs>,
    /// Jobs up to here may start.
    open_to: Order,
    /// With one slot the order is exact: a queued job that starts shuts the list until what its end makes due is claimed.
    is_exact: bool,
    is_shut: bool,
}

struct HeldJobs {
    lane: u64,
    jobs: VecDeque<Arc<Job>>,
    claimed_at: Instant,
}

/// A job for a slot.
struct Next {
    job: Arc<Job>,
    claim: Claim,
    claimed_at: Instant,
}

impl RunList {
    pub(crate) fn new(slots: usize) -> RunList {
        let waiting = Waiting {
            durable: BTreeMap::new(),
            held: Vec::new(),
            open_to: NOTHING,
            is_exact: slots == 1,
            is_shut: false,
        };
        RunList { waiting: Mutex::new(waiting), arrived: Notify::new() }
    }

    /// The owner knows that the job has ended which shut the list, and has closed the list up to what is known.
    pub(crate) fn unshut(&self) {
        self.lock().is_shut = false;
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

    /// Claimed by a statement that was sent at `asked_at`: the answer may have waited for a process that stood still.
    pub(crate) fn push_durable(&self, jobs: Vec<Arc<Job>>, asked_at: Instant) {
        let count = jobs.len();
        self.lock().durable.extend(jobs.into_iter().map(|job| (job.order(), (job, asked_at))));
        self.announce(count);
    }

    /// The server waits for us from its answer on, however long that took. The jobs are in order.
    pub(crate) fn push_held(&self, jobs: &[Arc<Job>], lane: u64) {
        let (jobs, claimed_at, count) = (jobs.iter().cloned().collect(), Instant::now(), jobs.len());
        self.lock().held.push(HeldJobs { lane, jobs, claimed_at });
        self.announce(count);
    }

    /// Durable jobs that have not been begun, and have waited since before `time`.
    pub(crate) fn take_durable(&self, before: Instant) -> Vec<Arc<Job>> {
        let mut waiting = self.lock();
        let old = waiting.durable.iter().filter(|(_, (_, since))| *since <= before);
        let old: Vec<Order> = old.map(|(order, _)| *order).collect();
        waiting.close_before(old.first().copied());
        old.iter().filter_map(|order| waiting.durable.remove(order)).map(|(job, _)| job).collect()
    }

    /// Jobs of this lane that have not been begun.
    pub(crate) fn take_held(&self, lane: u64) -> Vec<Arc<Job>> {
        let mut waiting = self.lock();
        let Some(index) = waiting.held.iter().position(|held| held.lane == lane) else { return Vec::new() };
        let jobs = waiting.held.swap_remove(index).jobs;
        waiting.close_before(jobs.front().map(|job| job.order()));
        jobs.into()
    }

    /// How many bytes the payloads of durable jobs have that wait.
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

    /// The durable job that this many others wait before.
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

    async fn pop(&self) -> Next {
        loop {
            if let Some(next) = self.next() {
                return next;
            }
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            // From here on no arrival is missed, also one between the question and the wait.
            arrived.as_mut().enable();
            if let Some(next) = self.next() {
                return next;
            }
            arrived.await;
        }
    }

    fn next(&self) -> Option<Next> {
        self.lock().next()
    }

    /// Wakes as many slots as there are jobs; slots that are busy ask for themselves.
    fn announce(&self, count: usize) {
        match count {
            0 => {}
            1 => self.arrived.notify_one(),
            _ => {
                self.arrived.notify_waiters();
                // One permit is kept for a slot that has asked and not yet begun to wait.
                self.arrived.notify_one();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while it is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// What is taken off the list comes back: nothing that is less urgent may start meanwhile.
    fn close_before(&mut self, order: Option<Order>) {
        if let Some(order) = order {
            self.open_to = self.open_to.min(before(order));
        }
    }

    /// The most urgent job, if it may start.
    fn next(&mut self) -> Option<Next> {
        if self.is_shut {
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
                self.is_shut = self.is_exact && job.job_queue_id.is_some();
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

    /// How many may start. Counted up to the first two: more slots than that are woken all at once.
    fn startable(&self) -> usize {
        let durable = self.durable.keys().take_while(|order| **order <= self.open_to).take(2).count();
        let held = self.held.iter().flat_map(|held| held.jobs.iter().take(2));
        durable + held.filter(|job| job.order() <= self.open_to).count()
    }
}

/// Outcomes are handed over in company, if they come quickly: so many at most.
const COMPANY: usize = 256;

/// And none waits longer for it than this.
const COMPANY_TIME: Duration = Duration::from_millis(1);

/// Chunks of outcomes that wait for the loop; a slot with one more waits until it has caught up.
pub(crate) const CHUNKS_AHEAD: usize = 64;

/// Starts the slots on the application's runtime. They end when the set is dropped or aborted, between two jobs or in one.
pub(crate) fn start(
    shared: &Arc<Shared>,
    app: &Handle,
    list: &Arc<RunList>,
    finished: &mpsc::Sender<Vec<Finished>>,
) -> JoinSet<()> {
    let mut slots = JoinSet::new();
    for _ in 0..shared.slots {
        let slot = Slot {
            shared: shared.clone(),
            list: list.clone(),
            finished: finished.clone(),
            ended: Vec::new(),
            ended_in: Duration::ZERO,
        };
        slots.spawn_on(slot.run(), app);
    }
    slots
}

struct Slot {
    shared: Arc<Shared>,
    list: Arc<RunList>,
    finished: mpsc::Sender<Vec<Finished>>,
    /// Not yet handed over.
    ended: Vec<Finished>,
    /// How long they took together.
    ended_in: Duration,
}

impl Slot {
    async fn run(mut self) {
        loop {
            let next = match self.list.next() {
                Some(next) => next,
                None => {
                    self.hand_over().await;
                    self.list.pop().await
                }
            };
            let finished = self.run_one(next).await;
            self.ended_in += finished.duration;
            self.ended.push(finished);
            if self.ended.len() >= COMPANY || self.ended_in >= COMPANY_TIME {
                self.hand_over().await;
                // Jobs that never wait for anything must not keep the other tasks of this thread from running.
                tokio::task::yield_now().await;
            }
        }
    }

    async fn run_one(&mut self, next: Next) -> Finished {
        // Whatever was claimed, or left waiting, when the shutdown came or its task was paused: it is too late to begin it.
        let is_paused = self.shared.paused_tasks.contains(next.job.task_identifier());
        let is_too_late = self.shared.stop.is_cancelled() || is_paused || self.may_be_lost(&next);
        let Next { job, claim, .. } = next;
        if is_too_late {
            return Finished { job, outcome: Outcome::NotStarted, duration: Duration::ZERO, claim };
        }
        let shared = self.shared.clone();
        let run = run_job(&shared, job, claim);
        tokio::pin!(run);
        match futures_util::poll!(run.as_mut()) {
            Poll::Ready(finished) => finished,
            // It waits for something, and those that have ended do not wait for it.
            Poll::Pending => futures_util::future::join(self.hand_over(), run).await.1,
        }
    }

    /// A process that stood still, or had no database, may have lost its claims meanwhile.
    fn may_be_lost(&self, next: &Next) -> bool {
        match next.claim {
            Claim::Durable => self.shared.continuity.may_have_lost(next.claimed_at, Instant::now()),
            Claim::Held(_) => next.claimed_at.elapsed() > hold::LONGEST_SILENCE,
        }
    }

    async fn hand_over(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        self.ended_in = Duration::ZERO;
        // Its receiver lives as long as the slots do.
        let _ = self.finished.send(std::mem::take(&mut self.ended)).await;
    }
}
