//! The owner: one task that has the worker's state, and selects over a closed set of events.
//!
//! It decides, and lanes act (`lanes.rs`). There are two kinds. A durable one releases what has finished and claims for
//! the slots that are free. A holding one (`hold.rs`) picks a batch, waits while it runs, and settles it, all in one
//! transaction; three of them take turns, so that PostgreSQL and the tasks work at the same time. Jobs in a queue, and
//! those of slow tasks, are always claimed durably.
//!
//! What each kind may still find is known apart. Held claims have a [`Scan`]. Durable claims have a [`Source`], whose `more`
//! says that there may be due jobs: hints set it, a claim that came back short of what it asked for leaves it unset, unless
//! a hint came in while it was away. So no wake-up is lost between "found nothing" and "go to sleep".
//!
//! Jobs start in the order of their priority, run_at and id, whatever kind of claim they need. Claimed jobs wait in one list
//! in that order, and the owner opens it as far as both kinds of claims are known to have brought everything
//! ([`Owner::open_list`]).

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use super::backoff::Backoff;
use super::batches::{Batch, Batches, Kept, Known};
use super::claim::{Claimable, Claimed, Level};
use super::hold::{self, Durations, News, Picked, Settlement, Size, Wanted};
use super::lanes::{self, DURABLE_LANES, HOLDING_LANES, LaneResult, Left, SLOW, SLOW_LANES, Times};
use super::plan::Plan;
use super::promote;
use super::release::{Releases, Report};
use super::run::{Claim, Failure, Finished, Outcome};
use super::scan::{EVERYTHING, NOTHING, Request, Scan, Seen, before};
use super::shutdown::{self, Shutdown};
use super::slots::{self, RunList};
use super::wake::Wake;
use super::{Claims, Shared};
use crate::event::WorkerEvent;
use crate::job::Order;
use crate::{Error, Job, Result, Retry};

/// A claim that found nothing is not repeated before so many times its own duration have passed, while jobs are held:
/// so it can't slow them down, however much it has to look through.
const REST: u32 = 3;

/// How long a durable claim that found nothing pauses at the most: what comes in meanwhile waits for so long.
const LONGEST_REST: Duration = Duration::from_millis(50);

/// A durable claim reads all jobs with flags, of which most may be forbidden, not before so many times its own duration have
/// passed. Others read the first thousand of each task and priority.
const REST_FLAGGED: u32 = 50;

/// The shortest pause between durable claims that read a level from its start, while there is more than can be taken.
const LEVEL_REST: Duration = Duration::from_millis(50);

/// One that is as quick as this needs no pause.
const LEVEL_QUICK: Duration = Duration::from_millis(2);

/// With a local queue, releases are followed by a claim of more urgent jobs at most this often.
const FREED_HINTS: Duration = Duration::from_millis(50);

/// How long jobs that are claimed wait for a claim that is under way and may bring a more urgent one. One that takes longer
/// delays nothing but itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// Durable jobs that wait for more urgent ones are returned after this time, so that other workers can run them.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// How long a durable claim waits for a pick that was sent at the same time.
const PICK_FIRST: Duration = Duration::from_millis(3);

/// In one-shot mode there is nobody to wait for a database that has gone.
const ONCE_TRIES: u32 = 8;

/// After so many poll intervals, or this time, the locks of running jobs are looked at, and those that are an hour old are
/// renewed: Graphile takes those of four hours for dead.
const REFRESH: u32 = 30;
const REFRESH_AT_LEAST: Duration = Duration::from_secs(30 * 60);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    UntilShutdown,
    UntilEmpty,
}

/// Whether a claim whose answer was lost may have taken jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doubt {
    No,
    /// It may: they are looked for, and given back, before the next claim.
    Now,
    /// They were looked for. But a server that had not ended the statement by then may have done so since, and once more is
    /// looked at this time.
    Later(Instant),
    /// That time has come. Until this one the lanes have to come back, or it is put off: one of them may wait for somebody
    /// else's transaction. None when the look is under way.
    Again(Option<Instant>),
}

/// How long the end of the worker waits for jobs that can't be released, when nothing else is left and the grace period is
/// over.
const TO_COME_FREE: Duration = Duration::from_secs(1);

/// So long a second look holds everything else up.
const TO_COME_BACK: Duration = Duration::from_secs(1);

/// One of the two kinds of claims.
#[derive(Default)]
struct Source {
    /// There may be due jobs.
    more: bool,
    /// The last claim brought all that it asked for, so that another can go at the same time as the next.
    is_rich: bool,
    /// Lanes of this kind that are away to claim.
    away: usize,
    not_before: Option<Instant>,
    errors: Backoff,
}

impl Source {
    /// Whether it makes no pause.
    fn is_time(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|time| time <= now)
    }

    /// When it may claim again, if only the time holds it back.
    fn next_timer(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|time| self.more && *time > now)
    }
}

/// A job that is claimed durably, and since when. None while its promotion from a held claim is not committed.
struct Running {
    job: Arc<Job>,
    locked_at: Option<DateTime<Utc>>,
}

/// The state of a running worker.
pub(super) struct Owner {
    shared: Arc<Shared>,
    mode: Mode,
    plan: Plan,
    wakes: mpsc::Receiver<Wake>,
    look: Arc<Notify>,
    list: Arc<RunList>,
    finished: mpsc::Receiver<Vec<Finished>>,
    slots: JoinSet<()>,
    lanes: JoinSet<LaneResult>,
    durable: Source,
    /// Every due job that is claimed durably and is more urgent than this has been claimed, as far as is known.
    durable_known_to: Order,
    /// When each claim that is under way was sent.
    durable_in_flight: Vec<Instant>,
    /// The same for the one that was not answered yet. It may take any job, so that no other such claim is sent.
    durable_unanswered: Option<Instant>,
    /// The task and priority of all jobs without a queue that are claimed durably, if there is one only.
    durable_level: Option<Level>,
    /// When the last claim that read it from the start came back, and how long that took.
    level_start: Option<(Instant, Duration)>,
    /// Jobs may have come in since, also before the position.
    level_is_hinted: bool,
    /// When a durable claim may read all jobs with flags again.
    flagged_not_before: Option<Instant>,
    /// One did not, and found too little.
    owes_flagged: bool,
    /// Jobs may have come in that are more urgent than those that wait.
    is_hinted: bool,
    /// When a release may count as such a hint again.
    freed_hint_at: Option<Instant>,
    /// How often that was put back.
    durable_epoch: u64,
    /// The same before the jobs were announced that a pick is looking for. If it finds all of them, that still holds.
    known_to_before: Option<(Order, u64)>,
    /// Jobs whose releases make due what is as urgent as this, and until when that is waited for.
    returning: HashMap<i64, (Order, Instant)>,
    /// The claims that are under way and must answer before less urgent jobs start: when they were sent.
    durable_sent_at: Option<Instant>,
    pick_sent_at: Option<Instant>,
    held: Source,
    /// Changes of the tasks that are paused, and the tasks that are not.
    paused_tasks: watch::Receiver<BTreeSet<String>>,
    active_tasks: Vec<String>,
    /// The tasks whose jobs without a queue are held, and those whose jobs are always claimed durably.
    held_tasks: Vec<Arc<str>>,
    durable_tasks: Vec<String>,
    /// Which tasks are slow has changed, or whether jobs are held at all.
    tasks_changed: bool,
    held_before: bool,
    /// The average size of claimed payloads, in bytes.
    payload_bytes: f64,
    /// The highest id of all jobs that were picked: higher ones were added later.
    highest_id: i64,
    /// Claimed durably and not yet back from a slot.
    running: HashMap<i64, Running>,
    /// Ended while locks are being renewed, so that the time of their claim is not known. None: nothing is renewed.
    renewing: Option<Vec<Finished>>,
    /// Asked for by lanes that are away.
    reserved: usize,
    /// Ended, and not yet known to be released.
    releases: Releases,
    /// A release has made something due: the next job of a queue, or the same job.
    has_freed: bool,
    news_sender: mpsc::Sender<News>,
    news: mpsc::Receiver<News>,
    batches: Batches,
    /// Batches that are claimed anew, since their connections were lost.
    promoting: usize,
    next_lane: u64,
    size: Size,
    durations: Durations,
    scan: Scan,
    doubt: Doubt,
    /// When an answer was lost last, without a word of the server.
    lost_at: Option<Instant>,
    /// A claim came back short, so only a look can tell when the next job is due.
    due_unknown: bool,
    /// When the next jobs are due, in order.
    next_due: VecDeque<Instant>,
    /// Jobs were claimed since all was last asked for.
    has_found: bool,
    /// Claims that found nothing although a job was due: others hold it.
    in_vain: Backoff,
    /// Added, as notices say, and not picked yet. When a pick brings as many, nothing else needs to be asked for: no
    /// durable claim, and no look at when the next job is due.
    announced: usize,
    /// After a wake-up, a pick goes first, and a durable claim waits until it is back, or this time: most jobs are
    /// held, and two statements at once take longer to answer than one.
    pick_first_until: Option<Instant>,
    refresh_at: Instant,
    shutdown: Shutdown,
    /// Since when nothing holds up the end but jobs that can't be released.
    stuck_since: Option<Instant>,
    error: Option<Error>,
}

impl Owner {
    pub(super) fn new(
        shared: Arc<Shared>,
        plan: Plan,
        mode: Mode,
        wakes: mpsc::Receiver<Wake>,
        look: Arc<Notify>,
        app: &Handle,
    ) -> Owner {
        let list = Arc::new(RunList::new(shared.slots));
        let (finished_sender, finished) = mpsc::channel(slots::CHUNKS_AHEAD);
        let slots = slots::start(&shared, app, &list, &finished_sender);
        // Two from each lane at the most.
        let (news_sender, news) = mpsc::channel(2 * (HOLDING_LANES + SLOW_LANES) + DURABLE_LANES);
        Owner {
            shutdown: Shutdown::new(&plan),
            size: Size::new(shared.slots),
            releases: Releases::start(&shared, &plan),
            mode,
            wakes,
            look,
            list,
            finished,
            slots,
            lanes: JoinSet::new(),
            durable: Source { more: true, ..Source::default() },
            durable_known_to: NOTHING,
            returning: HashMap::new(),
            durable_in_flight: Vec::new(),
            durable_unanswered: None,
            durable_level: None,
            level_start: None,
            level_is_hinted: false,
            flagged_not_before: None,
            owes_flagged: false,
            is_hinted: false,
            freed_hint_at: None,
            durable_epoch: 0,
            known_to_before: None,
            durable_sent_at: None,
            pick_sent_at: None,
            held: Source { more: true, ..Source::default() },
            paused_tasks: shared.paused_tasks.changes(),
            active_tasks: Vec::new(),
            held_tasks: Vec::new(),
            durable_tasks: Vec::new(),
            tasks_changed: true,
            held_before: false,
            payload_bytes: 0.0,
            highest_id: 0,
            running: HashMap::new(),
            renewing: None,
            reserved: 0,
            has_freed: false,
            news_sender,
            news,
            batches: Batches::default(),
            promoting: 0,
            next_lane: 0,
            durations: Durations::new(plan.hold_budget),
            refresh_at: next_refresh(shared.poll_interval),
            plan,
            shared,
            // One that ends when nothing is left must have seen that.
            scan: Scan::new(mode == Mode::UntilShutdown),
            doubt: Doubt::No,
            lost_at: None,
            due_unknown: false,
            next_due: VecDeque::new(),
            has_found: false,
            in_vain: Backoff::default(),
            announced: 0,
            pick_first_until: None,
            stuck_since: None,
            error: None,
        }
    }

    /// Gives back how it ended, and whether nothing is left that others have to find.
    pub(super) async fn run(mut self) -> (Result<()>, bool) {
        loop {
            // One moment for both, or what becomes due in between would be sent by neither.
            let now = Instant::now();
            self.send_lanes(now);
            if self.asks_once_more() {
                continue;
            }
            if self.is_done() {
                break;
            }
            let timer = self.next_timer(now);
            let hooks_are_behind = self.shared.hook_backlog.is_full();
            tokio::select! {
                Some(result) = self.lanes.join_next() => self.on_lane_result(result),
                Some(finished) = self.finished.recv() => self.on_finished(finished),
                Some(news) = self.news.recv() => self.on_news(news),
                Some(report) = self.releases.report() => self.on_released(report),
                // Then jobs may be claimed again.
                () = self.shared.hook_backlog.has_room(), if hooks_are_behind => {}
                Some(slot) = self.slots.join_next() => self.on_slot_ended(slot),
                Some(wake) = self.wakes.recv() => self.on_wake(wake),
                Ok(()) = self.paused_tasks.changed() => (self.tasks_changed, self.due_unknown) = (true, true),
                () = tokio::time::sleep_until(timer.into()) => self.on_timer(),
                () = self.shared.stop.cancelled(), if !self.shutdown.has_begun() => self.begin_shutdown(),
                () = self.shared.abort.cancelled(), if !self.shutdown.is_aborting() => self.begin_abort(),
            }
        }
        self.slots.abort_all();
        let is_clear = self.knows_all();
        self.releases.end().await;
        (self.error.map_or(Ok(()), Err), is_clear)
    }

    /// Sends out what there is to do, as far as lanes are free.
    fn send_lanes(&mut self, now: Instant) {
        self.releases.flush();
        self.stuck_since = self.is_stuck().then(|| self.stuck_since.unwrap_or(now));
        if self.shared.leave.is_cancelled() {
            return;
        }
        if matches!(self.doubt, Doubt::Again(Some(until)) if until <= now && self.lanes.len() > self.promoting)
        {
            self.doubt = Doubt::Later(now + self.shared.recovery_threshold);
        }
        if self.is_in_doubt() {
            // Only when no lane is away is everything known that this worker has. Those that claim lost jobs anew may be away for
            // long, and what they claim is known.
            if self.lanes.len() == self.promoting && self.durable.not_before.is_none_or(|time| time <= now) {
                let known = self.running.keys().copied();
                let known = known.chain(self.releases.ids()).chain(self.batches.settling_ids()).collect();
                self.lanes.spawn(lanes::clear_up(self.shared.clone(), known));
                if self.doubt != Doubt::Now {
                    self.doubt = Doubt::Again(None);
                }
            }
            return;
        }
        // If the last claim found less than it asked for, this is all that there may be, and can't begin before what was
        // claimed ahead: a claim for each release would bring a job or two at the price of hundreds.
        if self.has_freed && (self.durable.is_rich || self.running.len() <= self.shared.slots) {
            (self.has_freed, self.durable.more) = (false, true);
        }
        // What they freed may still be more urgent than what was claimed ahead. That is asked for now and then.
        if self.has_freed && self.freed_hint_at.is_none_or(|time| time <= now) {
            (self.freed_hint_at, self.is_hinted) = (Some(now + FREED_HINTS), true);
        }
        self.refresh_tasks();
        // What waits in the list can't start before a claim has answered.
        let is_needed = self.list.first().is_some_and(|first| first > self.durable_known_to);
        self.durable.more |= is_needed && self.durable.away == 0;
        let is_late = |sent_at: Instant| sent_at + PATIENCE <= now;
        while self.durable.away < self.durable_lanes() && self.durable_unanswered.is_none_or(is_late) {
            let Some(wanted) = self.claimable(now) else { break };
            self.send_durable(wanted, now);
        }
        while self.held.away < self.holding_lanes(now) && self.may_hold() && self.held.is_time(now) {
            let before = self.hold_before();
            if !self.scan.may_send(now, before) {
                break;
            }
            self.send_holding(now, before);
        }
        self.open_list(now);
        let is_asking = self.durable.more || self.has_freed || (self.holds() && self.scan.is_asking());
        let is_quiet = !is_asking && self.durable.away + self.held.away == 0;
        if self.due_unknown && is_quiet {
            self.due_unknown = false;
            self.look.notify_one();
        }
    }

    /// Which tasks are held, and which are claimed durably. A change makes unknown what either kind of claims may find.
    fn refresh_tasks(&mut self) {
        let holds = self.holds();
        self.tasks_changed |= self.held_before != holds;
        // A claim that is under way keeps jobs locked that a pick would then pass by.
        if !self.tasks_changed || self.durable.away > 0 {
            return;
        }
        (self.tasks_changed, self.held_before) = (false, holds);
        self.active_tasks = self.shared.active_tasks();
        let (durable, held): (Vec<&String>, Vec<&String>) =
            self.active_tasks.iter().partition(|task| !holds || self.durations.is_slow(task));
        self.held_tasks = held.iter().map(|task| task.as_str().into()).collect();
        self.durable_tasks = durable.into_iter().cloned().collect();
        self.scan.set_tasks(&self.held_tasks);
        self.durable.more = true;
        self.forget_durable(NOTHING);
    }

    /// Only what is more urgent than this is known to be claimed. A claim that is under way was sent too early to change that.
    fn forget_durable(&mut self, known_to: Order) {
        self.durable_known_to = self.durable_known_to.min(known_to);
        self.durable_epoch += 1;
        self.is_hinted = true;
        self.forget_position();
    }

    fn forget_position(&mut self) {
        if let Some(level) = &mut self.durable_level {
            (level.position, level.ahead) = (None, None);
        }
    }

    /// Whether a claim has to read the known level from its start, because a job may have come in before the position. That may
    /// take long while many completed jobs can't be removed, so it is not done each time.
    fn is_level_start_due(&self, now: Instant) -> bool {
        let rest = |took: Duration| match self.level_is_hinted || self.is_hinted {
            _ if took <= LEVEL_QUICK => Duration::ZERO,
            true => LEVEL_REST.max(2 * took),
            false => 20 * took.max(LEVEL_REST),
        };
        self.level_start.is_none_or(|(ended, took)| ended + rest(took) <= now)
    }

    /// One more if what is held can't start before another pick has answered.
    fn holding_lanes(&self, now: Instant) -> usize {
        let is_blocked = self.list.first().is_some_and(|first| first > self.scan.known_to());
        HOLDING_LANES + self.slow_lanes(now).max(usize::from(is_blocked))
    }

    /// Two claims at a time bring jobs in any order, which does not matter where many wait.
    fn durable_lanes(&self) -> usize {
        if self.plan.local_queue.is_none() || self.shared.slots == 1 { 1 } else { DURABLE_LANES }
    }

    /// Opens the list of claimed jobs as far as both kinds of claims are known to have brought everything. A claim that fails,
    /// or takes long, or can't be sent, delays nothing but itself.
    fn open_list(&mut self, now: Instant) {
        let is_late = |sent_at: Option<Instant>| sent_at.is_some_and(|time| time + PATIENCE <= now);
        let is_failing = |source: &Source| source.errors.tries() > 0;
        let is_stuck = self.is_held_up();
        let is_asked =
            self.durable.away > 0 || self.pick_first_until.is_some() || self.waits_for_release(now);
        let cannot_ask = !is_asked && self.has_free_slot();
        let durable_is_open = is_stuck || is_failing(&self.durable) || is_late(self.durable_sent_at);
        let held_is_open = is_stuck || !self.holds() || is_failing(&self.held) || is_late(self.pick_sent_at);
        let returning = self.returning.values().filter(|(_, until)| *until > now).map(|(order, _)| *order);
        let durable = match (durable_is_open, cannot_ask) {
            (true, _) => EVERYTHING,
            (_, true) => self.durable_known_to.max(self.list.durable_after(0).unwrap_or(EVERYTHING)),
            (false, false) => self.durable_known_to,
        };
        let durable = returning.fold(durable, Order::min);
        let held = if held_is_open { EVERYTHING } else { self.scan.known_to() };
        self.list.open_to(durable.min(held));
    }

    fn waits_for_release(&self, now: Instant) -> bool {
        self.returning.values().any(|(_, until)| *until > now)
    }

    fn send_durable(&mut self, wanted: Claimable, now: Instant) {
        let has_position = wanted.level.as_ref().is_some_and(|level| level.position.is_some());
        self.level_is_hinted = has_position && (self.level_is_hinted || self.is_hinted);
        self.is_hinted = false;
        if wanted.before == EVERYTHING {
            self.durable.more = self.durable.is_rich;
        }
        self.reserved += wanted.count;
        self.shared.events.send(|| WorkerEvent::ClaimStarted);
        self.durable.away += 1;
        self.durable_in_flight.push(wanted.sent_at);
        self.durable_sent_at.get_or_insert(now);
        match self.durable_level.as_mut().filter(|_| wanted.is_of_seen()) {
            Some(level) => level.position = level.ahead.take().map(|(position, _)| position),
            None => self.durable_unanswered = Some(wanted.sent_at),
        }
        self.lanes.spawn(lanes::claim_durably(self.shared.clone(), wanted, self.news_sender.clone()));
    }

    /// Jobs that are less urgent than those that wait already can't start soon, so they are not picked.
    fn hold_before(&mut self) -> Order {
        let window = self.size.get().max(4 * self.shared.slots);
        let limited_to = self.scan.limited_to();
        if limited_to < EVERYTHING && self.list.durable_before(limited_to, window / 2) < window / 2 {
            self.scan.ask_beyond_limit();
        }
        self.list.durable_after(window).unwrap_or(EVERYTHING)
    }

    fn send_holding(&mut self, now: Instant, before: Order) {
        self.held.away += 1;
        self.next_lane += 1;
        self.pick_sent_at = Some(now);
        let request = self.scan.send(now, self.size.get(), before);
        let (lane, bytes) = (self.next_lane, self.plan.claim_bytes / HOLDING_LANES);
        let wanted = Wanted { lane, request, bytes };
        let (shared, news) = (self.shared.clone(), self.news_sender.clone());
        self.shared.events.send(|| WorkerEvent::ClaimStarted);
        self.lanes.spawn(async move {
            let mut left = Left::default();
            let picked = hold::hold(&shared, wanted, &news, &mut left).await;
            LaneResult::Held { lane, picked, left }
        });
    }

    /// Whether jobs are held at all, now.
    fn holds(&self) -> bool {
        self.plan.claims == Claims::Held && self.shared.may_hold.load(Ordering::Relaxed)
    }

    /// Whether a batch may be picked now: only if a slot can begin it.
    fn may_hold(&self) -> bool {
        self.holds() && !self.is_held_up() && self.has_free_slot()
    }

    /// Jobs that have ended and wait for the settlement of their batch have no slot.
    fn in_slots(&self) -> usize {
        self.running.len().saturating_sub(self.batches.ended_while_settling())
    }

    /// Durable jobs that only wait in the list take no slot.
    fn has_free_slot(&self) -> bool {
        self.in_slots().saturating_sub(self.list.durable_waiting()) < self.shared.slots
    }

    /// Lanes whose settlement takes so long that others may hold instead of them.
    fn slow_lanes(&self, now: Instant) -> usize {
        let slow = self.batches.settling_since().filter(|since| *since + SLOW <= now).count();
        // Batches that are claimed anew have no lane.
        slow.saturating_sub(self.promoting).min(SLOW_LANES)
    }

    /// Whether nothing may be claimed: the worker ends, or too many jobs wait for their release or their hooks.
    fn is_held_up(&self) -> bool {
        let is_full = self.releases.is_full() || self.shared.hook_backlog.is_full();
        self.shutdown.has_begun() || self.error.is_some() || is_full
    }

    /// What may be claimed durably now.
    fn claimable(&self, now: Instant) -> Option<Claimable> {
        let picks_first = self.pick_first_until.is_some_and(|time| time > now);
        let releases_first = self.shared.slots == 1 && self.waits_for_release(now);
        let is_first = !picks_first && !releases_first && !self.tasks_changed;
        if !(self.durable.more || self.is_hinted) || !is_first || self.is_held_up() {
            return None;
        }
        // What waits in the list may not start before a claim has answered: then there is no pause.
        let is_needed = self.list.first().is_some_and(|first| first > self.durable_known_to);
        if !self.durable.is_time(now) && (!is_needed || self.durable.errors.tries() > 0) {
            return None;
        }
        let (count, before) = match self.room() {
            0 if self.is_hinted || is_needed => (self.shared.slots, self.more_urgent_than_waiting()?),
            0 => return None,
            room => (room, EVERYTHING),
        };
        let bytes = self.plan.claim_bytes.saturating_sub(self.list.durable_bytes());
        if bytes == 0 && before == EVERYTHING {
            return None;
        }
        let fitting = (bytes as f64 / self.payload_bytes.max(1.0)) as usize;
        let count = count.min(fitting).max(1);
        let (tasks, unqueued) = (self.active_tasks.clone(), self.durable_tasks.clone());
        let reads_all_flagged =
            self.mode == Mode::UntilEmpty || self.flagged_not_before.is_none_or(|time| time <= now);
        let level = match self.durable_level.clone().filter(|_| before == EVERYTHING) {
            Some(level) if self.is_level_start_due(now) => {
                Some(Level { position: None, ahead: None, ..level })
            }
            Some(level) => Some(Level { ahead: level.ahead.filter(|(_, seen)| *seen <= count), ..level }),
            None => None,
        };
        let looks_ahead = self.durable_lanes() > 1;
        let epoch = self.durable_epoch;
        Some(Claimable {
            count,
            tasks,
            unqueued,
            before,
            bytes,
            reads_all_flagged,
            looks_ahead,
            level,
            epoch,
            sent_at: now,
        })
    }

    /// As many jobs as there is room for, and none before a quarter of the local queue has gone, since few at a time cost almost
    /// as much as many. A quarter: two claims are under way, while the jobs of the two before them start.
    fn room(&self) -> usize {
        let ahead = self.plan.local_queue_size();
        let room = (self.shared.slots + ahead).saturating_sub(self.in_slots() + self.reserved);
        let most = self.shared.slots.max(ahead / 4);
        match ahead {
            0 => room,
            _ if room < most.min(ahead / 4 + 1) => 0,
            _ => room.min(most),
        }
    }

    /// Without room, more is claimed only if it is more urgent than the last of what waits.
    fn more_urgent_than_waiting(&self) -> Option<Order> {
        let most = 2 * self.shared.slots + self.plan.local_queue_size();
        let has_room = self.reserved == 0 && self.running.len() < most;
        self.list.last_durable().filter(|_| has_room)
    }

    fn on_lane_result(&mut self, result: Result<LaneResult, tokio::task::JoinError>) {
        match result {
            Ok(LaneResult::Durable { wanted, claimed }) => {
                self.durable.away -= 1;
                self.reserved -= wanted.count;
                let index = self.durable_in_flight.iter().position(|sent_at| *sent_at == wanted.sent_at);
                index.map(|index| self.durable_in_flight.swap_remove(index));
                if !wanted.is_of_seen() {
                    self.durable_unanswered.take_if(|sent_at| *sent_at == wanted.sent_at);
                }
                // One that takes long stays late, whatever the others do.
                self.durable_sent_at = self.durable_in_flight.iter().min().copied();
                match claimed {
                    Ok(claimed) => self.on_claimed(&wanted, claimed),
                    Err(error) => self.on_claim_error(error, Claims::Durable),
                }
            }
            Ok(LaneResult::Held { lane, picked, left }) => {
                self.held.away -= 1;
                // What this lane has reported comes first.
                while let Ok(news) = self.news.try_recv() {
                    self.on_news(news);
                }
                self.on_left(lane, left);
                self.on_batch_gone(lane);
                match picked {
                    Ok(count) => self.on_settled(count),
                    Err(error) => self.on_claim_error(error, Claims::Held),
                }
            }
            Ok(LaneResult::Promoted { lane, left }) => {
                self.promoting -= 1;
                self.on_left(lane, left);
            }
            Ok(LaneResult::ClearedUp(Ok((found, blocked)))) => self.on_cleared_up(found, blocked),
            Ok(LaneResult::ClearedUp(Err(error))) => self.on_claim_error(error, Claims::Durable),
            Ok(LaneResult::Refreshed(times)) => self.on_refreshed(times),
            // Nothing in a lane panics; if it does, nobody knows what it had claimed.
            Err(error) => {
                self.doubt = Doubt::Now;
                self.break_down(format!("running the worker: a task that claims jobs panicked: {error}"));
            }
        }
    }

    /// A lane has settled its batch, or has left some of it to be claimed anew. Until nothing is left, the batch is known.
    fn on_left(&mut self, lane: u64, left: Left) {
        for finished in left.finished {
            let locked_at = left.locked_at.get(&finished.job.id).copied();
            self.releases.add(finished, locked_at, left.is_unknown);
        }
        self.note_claims(left.locked_at);
        if let Some(unsettled) = left.unsettled {
            self.promoting += 1;
            self.lanes.spawn(promote::promote(self.shared.clone(), lane, unsettled));
            return;
        }
        for finished in self.batches.end_settling(lane) {
            self.on_durable_finished(finished);
        }
    }

    /// The transaction of a batch has ended: what it had not begun is free.
    fn on_batch_gone(&mut self, lane: u64) {
        self.scan.on_delivered(lane);
        if let Some(order) = self.scan.end_letting_go(lane) {
            // They are claimed durably from now on.
            self.forget_durable(before(order));
            self.durable.more = true;
        }
    }

    /// Nothing in a slot panics that is not caught; if it does, a shutdown returns what it ran. If the application's runtime
    /// ends, all slots do, and their jobs are returned.
    fn on_slot_ended(&mut self, slot: Result<(), tokio::task::JoinError>) {
        match slot {
            Err(error) if error.is_cancelled() => {
                self.shared.stop.cancel();
                self.shared.abort.cancel();
                if !self.shutdown.is_aborting() {
                    self.begin_abort();
                }
                if self.slots.is_empty() {
                    let jobs: Vec<Arc<Job>> =
                        self.running.values().map(|running| running.job.clone()).collect();
                    self.give_back(jobs, || Outcome::Interrupted);
                }
            }
            Err(error) => self.break_down(format!("running the worker: a slot panicked: {error}")),
            Ok(()) => {}
        }
    }

    fn break_down(&mut self, why: String) {
        tracing::error!("{why}");
        self.error = Some(Error::internal(why));
        self.shared.stop.cancel();
    }

    fn is_in_doubt(&self) -> bool {
        matches!(self.doubt, Doubt::Now | Doubt::Again(_))
    }

    /// Whether there is no lock of this worker's, nor can be, that it does not know of.
    fn knows_all(&self) -> bool {
        let is_late = |lost_at: Instant| lost_at.elapsed() < self.shared.recovery_threshold;
        !self.is_in_doubt() && !self.shared.leave.is_cancelled() && !self.lost_at.is_some_and(is_late)
    }

    fn on_cleared_up(&mut self, found: usize, blocked: usize) {
        if blocked > 0 {
            // Looked for again later, by this worker or, if it ends, by others.
            self.lost_at = Some(Instant::now());
        }
        let is_last = self.doubt != Doubt::Now && found + blocked == 0;
        self.doubt = match is_last || self.shutdown.has_begun() || self.lost_at.is_none() {
            true => Doubt::No,
            false => Doubt::Later(Instant::now() + self.shared.recovery_threshold),
        };
        if found > 0 {
            self.wake_sources();
        }
    }

    /// The second look, at its time or because this worker ends.
    fn look_again(&mut self, doubt: Doubt) {
        self.doubt = doubt;
        // That is for claims.
        self.durable.not_before = None;
    }

    fn on_claimed(&mut self, wanted: &Claimable, claimed: Claimed) {
        let Claimed { jobs, without_room, unreadable, asked_at, took, level, has_forbidden } = claimed;
        self.durable.errors = Backoff::default();
        if wanted.epoch == self.durable_epoch {
            self.known_to_before = None;
        }
        let count = jobs.len() + without_room.len() + unreadable.len();
        let is_full = count == wanted.count;
        if wanted.before == EVERYTHING && !wanted.is_of_seen() {
            self.durable.is_rich = is_full && without_room.is_empty();
        }
        self.learn_level(wanted, level.filter(|_| without_room.is_empty()), took);
        let known_to = if is_full {
            self.durable.more = true;
            self.is_hinted |= wanted.before < EVERYTHING;
            let last = jobs.last().map_or(NOTHING, |last| last.order());
            // Of two claims at a time, the later one may answer first. What the other brings is in the list soon enough.
            if self.durable_lanes() > 1 { self.durable_known_to.max(last) } else { last }
        } else if wanted.before < EVERYTHING {
            self.durable_known_to.max(wanted.before)
        } else if wanted.is_of_seen() {
            // Others have taken some of them.
            self.durable.more = true;
            self.durable_known_to.max(jobs.last().map_or(NOTHING, |last| last.order()))
        } else if wanted.level.is_some() {
            // There may be jobs before the position, or others than those of the level.
            (self.durable.more, self.is_hinted) = (true, true);
            self.durable_known_to.max(jobs.last().map_or(NOTHING, |last| last.order()))
        } else {
            self.due_unknown = true;
            self.durable.not_before = self.plan.pause_after_short_claim(count);
            EVERYTHING
        };
        match wanted.epoch == self.durable_epoch {
            true => self.durable_known_to = known_to,
            false => (self.durable.more, self.is_hinted) = (true, true),
        }
        if wanted.level.is_some() {
            // It reads no flagged jobs, and takes nothing if there are any.
        } else if wanted.reads_all_flagged {
            let until = Instant::now() + took * REST_FLAGGED;
            (self.owes_flagged, self.flagged_not_before) = (false, has_forbidden.then_some(until));
        } else {
            self.owes_flagged |= !is_full && !wanted.unqueued.is_empty();
        }
        self.learn_bytes(&jobs, !without_room.is_empty());
        if count == 0 {
            if self.holds() && self.mode == Mode::UntilShutdown {
                self.durable.not_before = Some(Instant::now() + (took * REST).min(LONGEST_REST));
            }
            self.shared.events.send(|| WorkerEvent::ClaimEmpty);
            return;
        }
        self.in_vain = Backoff::default();
        self.has_found = true;
        let without_room: Vec<Arc<Job>> = without_room.into_iter().map(Arc::new).collect();
        self.return_not_started(without_room, false);
        self.fail_unreadable(unreadable);
        let jobs = self.give_back_known(jobs.into_iter().map(Arc::new).collect());
        let running = |job: &Arc<Job>| (job.id, Running { job: job.clone(), locked_at: job.locked_at });
        self.running.extend(jobs.iter().map(running));
        self.list.push_durable(jobs, asked_at);
        if self.shutdown.has_begun() {
            self.give_back_unstarted();
        }
    }

    /// The next claim begins where this one ended, if it brought all that it asked for, and nothing but jobs of one level.
    fn learn_level(&mut self, wanted: &Claimable, found: Option<Level>, took: Duration) {
        if wanted.before < EVERYTHING || wanted.is_of_seen() {
            return;
        }
        if wanted.level.as_ref().is_none_or(|level| level.position.is_none()) {
            self.level_start = Some((Instant::now(), took));
        }
        match found {
            Some(found) => self.note_level(found, wanted.epoch),
            None => self.durable_level = None,
        }
    }

    fn note_level(&mut self, found: Level, epoch: u64) {
        if epoch != self.durable_epoch {
            self.durable_level = None;
            return;
        }
        // It may be known from the claim's answer, and more by now.
        let is_known = |level: &Level| level.is_same(&found) && level.position >= found.position;
        if !self.durable_level.as_ref().is_some_and(is_known) {
            self.durable_level = Some(found);
        }
    }

    /// The next claims are as large as their payloads allow.
    fn learn_bytes(&mut self, jobs: &[Job], was_too_much: bool) {
        if jobs.is_empty() {
            return;
        }
        let average =
            jobs.iter().map(|job| job.payload_json().len()).sum::<usize>() as f64 / jobs.len() as f64;
        self.payload_bytes = match was_too_much {
            true => average,
            false => self.payload_bytes + (average - self.payload_bytes) / 4.0,
        };
    }

    fn fail_unreadable(&mut self, unreadable: Vec<(Job, Error)>) {
        for (job, error) in unreadable {
            let error = format!("the text of this job can't be converted to UTF-8: {error}").into();
            let outcome = Outcome::Failed(Failure { error, retry: Retry::Never, payload: None });
            let (job, duration, claim) = (Arc::new(job), Duration::ZERO, Claim::Durable);
            let locked_at = job.locked_at;
            self.releases.add(Finished { job, outcome, duration, claim }, locked_at, false);
        }
    }

    /// Until they are free again, nothing that is less urgent starts.
    fn return_not_started(&mut self, jobs: Vec<Arc<Job>>, is_unknown: bool) {
        let until = Instant::now() + PATIENCE;
        for job in jobs {
            self.returning.insert(job.id, (before(job.order()), until));
            let (outcome, duration, claim) = (Outcome::NotStarted, Duration::ZERO, Claim::Durable);
            let locked_at = job.locked_at;
            self.releases.add(Finished { job, outcome, duration, claim }, locked_at, is_unknown);
        }
    }

    /// A held job whose connection was lost can be claimed by anybody. If that is this worker, the job has run already, or
    /// runs, so the claim is returned; for a while no other is made, so that the lane that had the job can claim it anew. It
    /// may have done so already, and then this claim is the older one.
    fn give_back_known(&mut self, jobs: Vec<Arc<Job>>) -> Vec<Arc<Job>> {
        let mut known: HashSet<i64> = self.batches.known(&jobs).into_keys().collect();
        let is_newer = |id: i64, time| {
            let running = self.running.get(&id).and_then(|running| running.locked_at);
            running.max(self.releases.locked_at(id)).is_some_and(|newer| Some(newer) >= time)
        };
        known.extend(jobs.iter().filter(|job| is_newer(job.id, job.locked_at)).map(|job| job.id));
        if known.is_empty() {
            return jobs;
        }
        let (back, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| known.contains(&job.id));
        // The lane that had it may have taken this claim over.
        self.return_not_started(back, true);
        self.durable.not_before = Some(Instant::now() + self.plan.hold_budget);
        jobs
    }

    fn on_news(&mut self, news: News) {
        match news {
            News::Seen { lane, request, seen } => self.on_seen(lane, &request, seen),
            News::Picked(picked) => self.on_picked(picked),
            News::Answered { sent_at, epoch, level } => {
                self.durable_unanswered.take_if(|time| *time == sent_at);
                if let Some(level) = level {
                    self.note_level(level, epoch);
                }
            }
        }
    }

    fn on_seen(&mut self, lane: u64, request: &Request, seen: Seen) {
        self.pick_sent_at = None;
        self.scan.on_seen(lane, request, seen);
    }

    fn on_picked(&mut self, Picked { lane, mut jobs, without_room, settle }: Picked) {
        self.count_picked(&jobs);
        self.scan.on_delivered(lane);
        if self.shutdown.has_begun() {
            // Too late to begin them: the end of the transaction frees them.
            let _ = settle.send(Settlement::default());
            return;
        }
        self.in_vain = Backoff::default();
        self.has_found = true;
        self.scan.begin_letting_go(lane, without_room);
        let Known { untouched, changed } = self.batches.take_known(&mut jobs);
        self.scan.begin_letting_go(lane, changed);
        self.list.push_held(&jobs, lane);
        let (began, finished) = (Instant::now(), Vec::with_capacity(jobs.len()));
        let is_empty = jobs.is_empty();
        self.batches.open(Batch { lane, jobs, known: untouched, finished, began, settle });
        if is_empty {
            self.settle(lane);
        }
    }

    /// Compares what a pick brought with what was announced. What is left may be in a queue, due later, or another
    /// worker's. Jobs that were there before do not count.
    fn count_picked(&mut self, jobs: &[Arc<Job>]) {
        let new = jobs.iter().filter(|job| job.id > self.highest_id).count();
        self.highest_id = jobs.iter().map(|job| job.id).fold(self.highest_id, i64::max);
        // If there are more, some of them were announced by a notification that is still to come.
        let is_all = new > 0 && new == self.announced;
        self.announced = self.announced.saturating_sub(new);
        if self.scan.is_full() {
            // The rest may be behind what was picked: the timer decides.
            return;
        }
        self.pick_first_until = None;
        self.due_unknown |= !is_all;
        // What else may have come is asked for as well, unless all of it was found.
        self.durable.more |= self.known_to_before.is_some() && !is_all;
        if let Some((known_to, epoch)) = self.known_to_before.take()
            && is_all
        {
            (self.durable_known_to, self.durable_epoch) = (known_to, epoch);
        }
        self.scan.settle_announced(is_all);
        if std::mem::take(&mut self.announced) > 0 {
            (self.durable.more, self.is_hinted) = (true, true);
        }
    }

    /// Ends a batch: what has finished is written, what runs becomes durable, and the rest is free.
    fn settle(&mut self, lane: u64) {
        let unstarted = self.list.take_held(lane);
        let Some(batch) = self.batches.begin_settling(lane, &unstarted) else { return };
        let running = batch.rest(&unstarted);
        self.scan.begin_letting_go(lane, unstarted);
        let part = batch.began.elapsed().as_secs_f64() / self.plan.hold_budget.as_secs_f64().max(0.000_001);
        self.size.learn(batch.jobs.len(), batch.finished.len(), part);
        self.due_unknown |= batch.finished.iter().any(|one| !matches!(one.outcome, Outcome::Completed));
        let promoted = |job: &Arc<Job>| (job.id, Running { job: job.clone(), locked_at: None });
        self.running.extend(running.iter().map(promoted));
        // The lane waits for this until it is done.
        let known = batch.known;
        let _ = batch.settle.send(Settlement { finished: batch.finished, running, known });
    }

    fn on_settled(&mut self, picked: usize) {
        self.held.errors = Backoff::default();
        if picked == 0 {
            self.count_picked(&[]);
            self.shared.events.send(|| WorkerEvent::ClaimEmpty);
        }
    }

    fn on_claim_error(&mut self, error: Error, kind: Claims) {
        self.shared.events.send(|| WorkerEvent::ClaimFailed { error: error.to_string().into() });
        let source = match kind {
            Claims::Durable => &mut self.durable,
            Claims::Held => {
                self.pick_sent_at = None;
                self.scan.on_error();
                &mut self.held
            }
        };
        if source.errors.tries() == 0 {
            tracing::warn!(%error, "could not claim jobs; retrying");
        }
        source.not_before = Some(Instant::now() + source.errors.next());
        source.more = true;
        if kind == Claims::Durable {
            self.durable_level = None;
        }
        // A refusal took nothing, and a pick never does; an end of the connection may have come after the commit.
        if kind == Claims::Durable && error.may_have_happened() {
            self.doubt = Doubt::Now;
            if error.db_code().is_none() {
                self.lost_at = Some(Instant::now());
            }
        }
        if self.mode == Mode::UntilEmpty && source.errors.tries() >= ONCE_TRIES {
            self.error = Some(error);
        }
    }

    fn on_finished(&mut self, finished: Vec<Finished>) {
        for one in finished {
            if !matches!(one.outcome, Outcome::Interrupted | Outcome::NotStarted) {
                self.tasks_changed |= self.durations.learn(one.job.task_identifier(), one.duration);
            }
            match one.claim {
                Claim::Held(lane) => self.on_held_finished(lane, one),
                Claim::Durable => self.on_durable_finished(one),
            }
        }
    }

    /// One that was given back in the meantime, because it would not end, is no longer ours to release; nor is one
    /// that was taken from us while we were silent, and that we have claimed again since.
    fn on_durable_finished(&mut self, finished: Finished) {
        let id = finished.job.id;
        let is_exact = self.shared.slots == 1 && finished.job.job_queue_id.is_some();
        if is_exact {
            // Whatever became of its claim: it has ended.
            self.list.open_to(NOTHING);
            self.list.unshut();
        }
        if !self.running.get(&id).is_some_and(|running| Arc::ptr_eq(&running.job, &finished.job)) {
            return;
        }
        // A release that waits for others by choice is not waited for.
        let is_delayed = match finished.outcome {
            Outcome::Completed => !self.plan.complete_job_batch_delay.is_zero(),
            Outcome::Failed(_) => !self.plan.fail_job_batch_delay.is_zero(),
            Outcome::Interrupted | Outcome::NotStarted => false,
        };
        if is_exact && !is_delayed {
            // The next job of its queue may be the most urgent one now.
            self.returning.insert(id, (NOTHING, Instant::now() + PATIENCE));
        }
        if let Some(waiting) = &mut self.renewing {
            waiting.push(finished);
        } else if let Some(running) = self.running.remove(&id) {
            self.releases.add(finished, running.locked_at, false);
        }
    }

    /// Since when claims are durable, or renewed.
    fn note_claims(&mut self, times: Times) {
        for (id, locked_at) in times {
            if let Some(running) = self.running.get_mut(&id) {
                running.locked_at = Some(locked_at);
            }
        }
    }

    fn on_refreshed(&mut self, times: Times) {
        self.note_claims(times);
        for finished in self.renewing.take().into_iter().flatten() {
            self.on_durable_finished(finished);
        }
    }

    fn on_held_finished(&mut self, lane: u64, finished: Finished) {
        match self.batches.keep(lane, finished) {
            Kept::InBatch => {}
            Kept::AsLast => self.settle(lane),
            Kept::Nowhere(finished) => self.on_durable_finished(finished),
        }
    }

    /// Outcomes are written: queues are free for their next jobs, and jobs that were not completed are due again.
    fn on_released(&mut self, report: Report) {
        self.has_freed |= report.frees_queue || report.returns_jobs;
        if report.returns_jobs {
            self.scan.hint();
        }
        self.due_unknown |= report.due_unknown;
        for id in &report.ids {
            if let Some((order, _)) = self.returning.remove(id) {
                self.forget_durable(order);
                self.durable.more = true;
            }
        }
    }

    fn on_wake(&mut self, wake: Wake) {
        match wake {
            Wake::Hint => {
                self.wake_sources();
                self.plan.cut_pause_short(&mut self.durable.not_before);
            }
            Wake::Announced => {
                self.on_announced();
                self.plan.cut_pause_short(&mut self.durable.not_before);
            }
            Wake::Due(times) => self.on_due(times),
            Wake::Stop(error) => {
                self.error.get_or_insert(error);
                self.shared.stop.cancel();
            }
        }
    }

    fn on_announced(&mut self) {
        let count = self.shared.announced.swap(0, Ordering::Relaxed);
        if count > 0 && self.may_hold() {
            self.announced += count;
            let is_idle = self.forget_if_idle();
            self.scan.hint_announced(is_idle);
            self.pick_first_until.get_or_insert(Instant::now() + PICK_FIRST);
        } else if count > 0 {
            self.wake_sources();
        }
    }

    fn on_due(&mut self, times: Vec<Instant>) {
        let now = Instant::now();
        let is_due = times.first().is_some_and(|time| *time <= now);
        self.next_due = times.into_iter().filter(|time| *time > now).collect();
        if is_due {
            // Due, and yet not claimed: the first time at once, then less and less often.
            let pause = if self.in_vain.tries() == 0 { Duration::ZERO } else { self.in_vain.next() };
            self.in_vain.next();
            let again = now + pause.min(self.shared.poll_interval);
            let place = self.next_due.partition_point(|time| *time < again);
            self.next_due.insert(place, again);
        }
    }

    /// There may be jobs of both kinds, and anywhere.
    fn wake_sources(&mut self) {
        (self.durable.more, self.is_hinted) = (true, true);
        let is_idle = self.forget_if_idle();
        // If nothing can be asked now, nothing is known when a slot becomes free.
        match self.has_free_slot() && !is_idle {
            true => self.scan.hint(),
            false => self.scan.forget(),
        }
        if !self.has_free_slot() && self.plan.local_queue.is_none() {
            self.forget_durable(NOTHING);
        }
        if self.may_hold() && self.held.away == 0 {
            self.pick_first_until = Some(Instant::now() + PICK_FIRST);
        }
    }

    /// While nothing waits to start, it costs nothing to wait for the answers of both kinds of claims: what comes in together
    /// then starts in its order.
    fn forget_if_idle(&mut self) -> bool {
        // A claim that is under way would become worthless, and what it brings would wait for the next one. With hints that come
        // more often than answers, nothing would ever start.
        let is_idle = self.list.first().is_none() && !self.scan.is_scanning() && self.durable.away == 0;
        if is_idle && self.durable_known_to > NOTHING {
            self.known_to_before = Some((self.durable_known_to, self.durable_epoch));
            self.forget_durable(NOTHING);
        }
        is_idle
    }

    fn next_timer(&self, now: Instant) -> Instant {
        let times = [
            self.next_due.front().copied(),
            self.pick_first_until,
            self.returning.values().map(|(_, until)| *until).filter(|time| *time > now).min(),
            self.durable.next_timer(now),
            self.freed_hint_at.filter(|time| self.has_freed && *time > now),
            self.flagged_not_before.filter(|time| self.owes_flagged && *time > now),
            self.held.not_before.filter(|time| *time > now),
            self.scan.next_timer(now).filter(|_| self.may_hold()),
            self.durable_sent_at.map(|time| time + PATIENCE).filter(|time| *time > now),
            self.pick_sent_at.map(|time| time + PATIENCE).filter(|time| *time > now),
            self.batches.settling_since().map(|since| since + SLOW).filter(|time| *time > now).min(),
            self.batches.oldest().map(|began| began + self.plan.hold_budget),
            self.plan.oldest_wait(now),
            (self.list.durable_waiting() > 0).then(|| now + LONGEST_WAIT / 2),
            self.shutdown.next_step(),
            self.stuck_since.map(|since| since + TO_COME_FREE).filter(|time| *time > now),
            match self.doubt {
                Doubt::Later(time) => Some(time),
                Doubt::Again(until) => until.filter(|time| *time > now),
                Doubt::No | Doubt::Now => None,
            },
            Some(self.refresh_at),
        ];
        times.into_iter().flatten().min().unwrap_or(self.refresh_at)
    }

    fn on_timer(&mut self) {
        let now = Instant::now();
        if self.pick_first_until.is_some_and(|time| time <= now) {
            self.pick_first_until = None;
            if std::mem::take(&mut self.announced) > 0 {
                (self.durable.more, self.is_hinted) = (true, true);
            }
            self.scan.settle_announced(false);
        }
        if self.owes_flagged && self.flagged_not_before.is_none_or(|time| time <= now) {
            (self.owes_flagged, self.durable.more) = (false, true);
        }
        let due = self.next_due.partition_point(|time| *time <= now);
        if due > 0 {
            self.next_due.drain(..due);
            // There may be more than a look tells of.
            self.due_unknown |= self.next_due.is_empty();
            self.wake_sources();
        }
        for lane in self.batches.older_than(self.plan.hold_budget, now) {
            self.settle(lane);
        }
        self.return_what_waits_for_long(now);
        if matches!(self.doubt, Doubt::Later(time) if time <= now) {
            self.look_again(Doubt::Again(Some(now + TO_COME_BACK)));
        }
        if self.refresh_at <= now {
            self.refresh_at = next_refresh(self.shared.poll_interval);
            let ids: Vec<i64> = self.running.keys().copied().collect();
            if !ids.is_empty() && self.renewing.is_none() {
                self.renewing = Some(Vec::new());
                self.lanes.spawn(lanes::refresh(self.shared.clone(), ids));
            }
        }
        if self.shutdown.has_begun() {
            self.step_shutdown(now);
        }
        let is_late = self.stuck_since.is_some_and(|since| since + TO_COME_FREE <= now);
        if is_late && !self.shutdown.is_in_grace() {
            self.leave();
        }
    }

    /// Durable jobs that wait for more urgent ones, or for a slot, are returned after a while: other workers may have time.
    fn return_what_waits_for_long(&mut self, now: Instant) {
        let longest = self.plan.local_queue_ttl().unwrap_or(LONGEST_WAIT);
        let old = now.checked_sub(longest).map(|since| self.list.take_durable(since)).unwrap_or_default();
        let old: Vec<Arc<Job>> =
            old.into_iter().filter(|job| self.running.remove(&job.id).is_some()).collect();
        if !old.is_empty() && self.plan.local_queue.is_none() {
            self.durable.not_before = Some(now + LONGEST_WAIT);
        }
        self.return_not_started(old, false);
    }

    /// Whether there may be due jobs.
    fn has_more(&self) -> bool {
        self.durable.more || self.has_freed || (self.holds() && self.scan.has_more())
    }

    /// A run until nothing is left has seen so when nothing of its own was under way any more: before, a job may have
    /// been passed by because a batch was just letting go of it, or because its task became a slow one meanwhile.
    fn asks_once_more(&mut self) -> bool {
        let ends = self.mode == Mode::UntilEmpty && self.is_done() && !self.shutdown.has_begun();
        let asks = ends && self.error.is_none() && std::mem::take(&mut self.has_found);
        if asks {
            self.durable.not_before = None;
            self.wake_sources();
        }
        asks
    }

    fn is_done(&self) -> bool {
        let is_clear = !self.is_in_doubt() || self.error.is_some() || self.shared.leave.is_cancelled();
        let is_idle = self.running.is_empty() && self.releases.is_idle() && self.lanes.is_empty() && is_clear;
        is_idle
            && match self.mode {
                Mode::UntilShutdown => self.shutdown.has_begun(),
                Mode::UntilEmpty => self.shutdown.has_begun() || !self.has_more() || self.error.is_some(),
            }
    }

    fn begin_shutdown(&mut self) {
        self.shutdown.begin();
        if matches!(self.doubt, Doubt::Later(_) | Doubt::Again(Some(_))) {
            self.look_again(Doubt::Now);
        }
        self.give_back_unstarted();
        for lane in self.batches.lanes() {
            self.settle(lane);
        }
    }

    fn begin_abort(&mut self) {
        self.begin_shutdown();
        self.shutdown.abort_now();
    }

    fn give_back_unstarted(&mut self) {
        let unstarted = self.list.take_durable(Instant::now());
        self.give_back(unstarted, || Outcome::NotStarted);
    }

    fn give_back(&mut self, jobs: Vec<Arc<Job>>, outcome: impl Fn() -> Outcome) {
        for job in jobs {
            if let Some(Running { locked_at, .. }) = self.running.remove(&job.id) {
                let (duration, claim) = (Duration::ZERO, Claim::Durable);
                self.releases.add(Finished { job, outcome: outcome(), duration, claim }, locked_at, false);
            }
        }
    }

    fn step_shutdown(&mut self, now: Instant) {
        match self.shutdown.step(now) {
            shutdown::Step::Wait => {}
            shutdown::Step::Tell => self.shared.cancel.cancel(),
            shutdown::Step::Abort => {
                self.shared.cancel.cancel();
                self.shared.abort.cancel();
            }
            shutdown::Step::Abandon => {
                // They do not even yield. What they hold is given back, and what they do later changes nothing.
                let jobs: Vec<Arc<Job>> = self.running.values().map(|running| running.job.clone()).collect();
                tracing::error!(
                    jobs = jobs.len(),
                    "tasks did not end when they were aborted; their jobs are returned"
                );
                self.give_back(jobs, || Outcome::Interrupted);
            }
            shutdown::Step::Leave => {
                self.leave();
            }
        }
    }

    /// Whether the worker ends, and nothing is left but jobs that can't be released: others keep their rows locked, or the
    /// database refuses them.
    fn is_stuck(&self) -> bool {
        let is_idle = self.running.is_empty() && self.lanes.len() == self.promoting;
        self.shutdown.has_begun() && is_idle && self.releases.is_stuck()
    }

    /// Ends with locks that are left to the recovery.
    fn leave(&mut self) {
        tracing::error!(
            "some jobs could not be released in time: the database does not answer, or another transaction has locked \
             them; other workers will recover them"
        );
        self.shared.leave.cancel();
        // A statement may wait for somebody else's transaction, for ever. If that ends, so does the lane.
        self.lanes.detach_all();
        self.running.clear();
        self.releases.leave();
        self.stuck_since = None;
    }
}

fn next_refresh(poll_interval: Duration) -> Instant {
    Instant::now() + poll_interval.saturating_mul(REFRESH).min(REFRESH_AT_LEAST)
}
