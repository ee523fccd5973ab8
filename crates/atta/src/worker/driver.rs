//! The driver: the loop of a worker. It turns what happens into events for the planner, and carries out the planner's
//! commands. It decides nothing.
//!
//! A *lane* is one task of this loop that uses a connection to claim: it ends with an event, and may report others
//! before.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};

use super::Shared;
use super::claim::held::Settlement;
use super::claim::{LaneEvents, durable, held, locks, promote};
use super::list::RunList;
use super::plan::Plan;
use super::planner::{
    Command, DURABLE_LANES, Event, HOLDING_LANES, Mode, Planner, Rules, SLOW_LANES, Surroundings,
};
use super::release::Releases;
use super::run::Finished;
use super::slots;
use super::wake::Wake;
use crate::{Error, Result};

pub(super) struct Driver {
    shared: Arc<Shared>,
    planner: Planner,
    wakes: mpsc::Receiver<Wake>,
    /// Requests a poll.
    poll: Arc<Notify>,
    paused_tasks: watch::Receiver<BTreeSet<String>>,
    slots: JoinSet<()>,
    finished: mpsc::Receiver<Vec<Finished>>,
    lanes: JoinSet<Event>,
    lane_event_sender: LaneEvents,
    lane_events: mpsc::Receiver<(Event, Option<oneshot::Sender<Settlement>>)>,
    /// By lane: the channel on which the lane waits for the settlement of its batch.
    batches: HashMap<u64, oneshot::Sender<Settlement>>,
    releases: Releases,
}

impl Driver {
    pub(super) fn new(
        shared: Arc<Shared>,
        plan: &Plan,
        mode: Mode,
        wakes: mpsc::Receiver<Wake>,
        poll: Arc<Notify>,
        app: &Handle,
    ) -> Driver {
        let list = Arc::new(RunList::new(shared.slots));
        let (finished_sender, finished) = mpsc::channel(slots::CHUNKS_AHEAD);
        // Each holding lane sends at most two events, and each durable lane one.
        let (lane_event_sender, lane_events) =
            mpsc::channel(2 * (HOLDING_LANES + SLOW_LANES) + DURABLE_LANES);
        let paused_tasks = shared.paused_tasks.changes();
        let rules = Rules::new(mode, &shared, plan);
        Driver {
            slots: slots::start(&shared, app, &list, &finished_sender),
            releases: Releases::start(&shared, plan),
            planner: Planner::new(Instant::now(), rules, list, shared.active_tasks()),
            wakes,
            poll,
            paused_tasks,
            finished,
            lanes: JoinSet::new(),
            lane_event_sender,
            lane_events,
            batches: HashMap::new(),
            shared,
        }
    }

    /// Runs until the planner has nothing left to do. Returns the result, and whether all jobs are released, so that
    /// other workers have nothing to recover.
    pub(super) async fn run(mut self) -> (Result<()>, bool) {
        loop {
            // One time for all three calls. Otherwise a job that becomes due between `plan` and `next_timer` would be
            // missed by both.
            let now = Instant::now();
            self.planner.observe(self.surroundings());
            self.planner.plan(now);
            let is_done = self.planner.is_done(now);
            self.carry_out_commands();
            if is_done {
                break;
            }
            let timer = self.planner.next_timer(now);
            let event = self.next_event(timer).await;
            self.planner.observe(self.surroundings());
            self.planner.handle(event, Instant::now());
        }
        self.slots.abort_all();
        let ended = self.planner.end(Instant::now());
        self.releases.end().await;
        ended
    }

    fn surroundings(&self) -> Surroundings {
        Surroundings {
            may_hold: self.shared.may_hold.load(Ordering::Relaxed),
            hooks_are_full: self.shared.hook_backlog.is_full(),
            has_few_queues: self.shared.has_few_queues.load(Ordering::Relaxed),
            has_triggers: self.shared.has_triggers.load(Ordering::Relaxed),
            stores_any_text: self.shared.stores_any_text.load(Ordering::Relaxed),
        }
    }

    async fn next_event(&mut self, timer: Instant) -> Event {
        let hooks_are_full = self.shared.hook_backlog.is_full();
        tokio::select! {
            Some(result) = self.lanes.join_next() => self.on_lane_ended(result),
            Some(finished) = self.finished.recv() => Event::Finished(finished),
            Some((event, batch)) = self.lane_events.recv() => self.note_batch(event, batch),
            Some(report) = self.releases.report() => Event::Released(report),
            // When hooks have ended, jobs may be claimed again.
            () = self.shared.hook_backlog.has_room(), if hooks_are_full => Event::Timer,
            Some(slot) = self.slots.join_next() => self.on_slot_ended(slot),
            Some(wake) = self.wakes.recv() => self.on_wake(wake),
            Ok(()) = self.paused_tasks.changed() => Event::TasksChanged(self.shared.active_tasks()),
            () = tokio::time::sleep_until(timer.into()) => Event::Timer,
            () = self.shared.stop.cancelled(), if !self.planner.has_shutdown_begun() => Event::Shutdown,
            () = self.shared.abort.cancelled(), if !self.planner.is_aborting() => Event::Abort,
        }
    }

    /// Handles the events that a lane has reported before the event of its end.
    fn on_lane_ended(&mut self, result: Result<Event, JoinError>) -> Event {
        while let Ok((event, batch)) = self.lane_events.try_recv() {
            let event = self.note_batch(event, batch);
            self.planner.handle(event, Instant::now());
        }
        match result {
            Ok(event) => event,
            // Not expected: nothing in a lane panics.
            Err(error) => Event::LanePanicked(broken("a task that claims jobs panicked", &error)),
        }
    }

    fn note_batch(&mut self, event: Event, batch: Option<oneshot::Sender<Settlement>>) -> Event {
        if let (Event::Picked { lane, .. }, Some(batch)) = (&event, batch) {
            self.batches.insert(*lane, batch);
        }
        event
    }

    fn on_slot_ended(&mut self, slot: Result<(), JoinError>) -> Event {
        match slot {
            Ok(()) => Event::Timer,
            Err(error) if error.is_cancelled() => Event::SlotsGone { are_all_gone: self.slots.is_empty() },
            // Not expected: panics of tasks are caught. If a slot panics, a shutdown returns its job.
            Err(error) => Event::Failed(broken("a slot panicked", &error)),
        }
    }

    fn on_wake(&mut self, wake: Wake) -> Event {
        match wake {
            Wake::Hint => Event::Hint,
            Wake::Announced => Event::Announced(self.shared.announced.swap(0, Ordering::Relaxed)),
            Wake::Due(times) => Event::Due(times),
            Wake::Stop(error) => Event::Failed(error),
        }
    }

    fn carry_out_commands(&mut self) {
        let shared = &self.shared;
        for command in self.planner.take_commands() {
            match command {
                Command::ClaimDurably(wanted) => {
                    let lane_events = self.lane_event_sender.clone();
                    self.lanes.spawn(durable::claim_durably(shared.clone(), wanted, lane_events));
                }
                Command::Hold(wanted) => {
                    self.lanes.spawn(held::hold(shared.clone(), wanted, self.lane_event_sender.clone()));
                }
                Command::CommitBatch { lane, settlement } => {
                    // An error means that the lane has ended, and its transaction with it.
                    let _ = self.batches.remove(&lane).map(|batch| batch.send(settlement));
                }
                Command::Promote { lane, unsettled } => {
                    self.lanes.spawn(promote::promote(shared.clone(), lane, unsettled));
                }
                Command::Search { known } => {
                    self.lanes.spawn(locks::search(shared.clone(), known));
                }
                Command::RenewLocks { ids } => {
                    self.lanes.spawn(locks::renew_locks(shared.clone(), ids));
                }
                Command::Release(entries) => self.releases.send(entries),
                Command::Poll => self.poll.notify_one(),
                Command::Report(event) => shared.events.send(|| event),
                Command::Stop => shared.stop.cancel(),
                Command::CancelTasks => shared.cancel.cancel(),
                Command::AbortTasks => shared.abort.cancel(),
                Command::Leave => {
                    shared.leave.cancel();
                    self.lanes.detach_all();
                }
            }
        }
    }
}

fn broken(what: &str, error: &JoinError) -> Error {
    let why = format!("running the worker: {what}: {error}");
    tracing::error!("{why}");
    Error::internal(why)
}
