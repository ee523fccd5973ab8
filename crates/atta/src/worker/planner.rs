//! The planner: decides what a worker does next. It has no tokio, no database and no clock: events and times come in,
//! commands go out, and the driver (`driver.rs`) carries them out.
//!
//! It is composed of small machines, one per file:
//!
//! - [`durable`] and [`level`]: pacing of durable claims;
//! - [`held`], with [`scan`], [`size`] and [`batches`]: pacing of held claims;
//! - [`due`]: due times, and announced jobs that are not found yet;
//! - [`jobs`] and [`unreleased`]: the jobs that this worker has;
//! - [`lost`]: claims whose reply was lost; [`refused`]: jobs whose claim the database refuses;
//! - [`shutdown`]: the phases of the end;
//! - [`tasks`]: which tasks' jobs are held; [`pauses`]: why no claim is sent for a while.
//!
//! Decisions that concern several machines are in four files: [`woken`] handles wake-ups, [`send`] decides what is sent
//! now, [`claimed`] handles the answers of claims, and [`ended`] handles jobs that have ended, and the end of the
//! worker.
//!
//! Jobs start by priority, run_at and id, whatever kind of claim they need. Claimed jobs wait in one list in that order
//! (`list.rs`), and the planner opens the list as far as both kinds of claims are known to have brought everything.

mod batches;
mod claimed;
mod due;
mod durable;
mod ended;
mod held;
mod jobs;
mod level;
mod lost;
mod message;
mod pauses;
mod refused;
mod rules;
pub(crate) mod scan;
mod send;
mod shutdown;
mod size;
mod tasks;
mod unreleased;
mod woken;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use held::{HOLDING_LANES, SLOW_LANES};
pub(crate) use message::{Command, Event};
pub(crate) use rules::{Mode, Rules};
pub(crate) use send::DURABLE_LANES;

use super::Claims;
use super::list::RunList;
use super::release::Entry;
use crate::Error;
use due::{Announced, DueTimes};
use durable::DurableClaims;
use held::HeldClaims;
use jobs::{ClaimedJobs, Returning};
use lost::LostReplies;
use refused::RefusedJobs;
use shutdown::Shutdown;
use tasks::TaskSplit;
use unreleased::Unreleased;

/// Durable jobs that wait for more urgent ones are returned after this time, so that other workers can run them.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// How long the end of the worker waits for jobs that can't be released, if nothing else is left and the grace period
/// is over.
const TO_COME_FREE: Duration = Duration::from_secs(1);

/// Facts that other parts of the worker have found out, as of now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings {
    /// Whether the last poll allows held claims: the functions are ours, the table of jobs has no triggers, and the
    /// fleet is not under suspicion.
    pub(crate) may_hold: bool,
    /// Whether too many outcomes wait for their hooks.
    pub(crate) hooks_are_full: bool,
    /// Whether at most about a hundred queues had jobs at the last poll.
    pub(crate) has_few_queues: bool,
    /// Whether the tables of jobs and queues have triggers, which may cancel a part of what a claim writes.
    pub(crate) has_triggers: bool,
    /// Whether the database can store every text: its encoding is UTF-8, or it has none.
    pub(crate) stores_any_text: bool,
}

impl Surroundings {
    /// Before the first poll.
    const UNKNOWN: Surroundings = Surroundings {
        may_hold: false,
        hooks_are_full: false,
        has_few_queues: false,
        has_triggers: false,
        stores_any_text: false,
    };
}

pub(crate) struct Planner {
    rules: Rules,
    surroundings: Surroundings,
    list: Arc<RunList>,
    tasks: TaskSplit,
    durable: DurableClaims,
    held: HeldClaims,
    due: DueTimes,
    announced: Announced,
    jobs: ClaimedJobs,
    returning: Returning,
    unreleased: Unreleased,
    /// Outcomes that are handed over together by the next [`Planner::plan`].
    releasing: Vec<Entry>,
    lost: LostReplies,
    refused: RefusedJobs,
    shutdown: Shutdown,
    /// Statements under way that claim, commit or search.
    lanes: usize,
    /// Jobs were claimed since a run until no job is left has last asked for all jobs.
    has_found: bool,
    /// Why the database has rejected an outcome several times.
    refused_release: Option<Arc<str>>,
    /// Since when the worker's end waits only for jobs that can't be released.
    stuck_since: Option<Instant>,
    error: Option<Error>,
    commands: Vec<Command>,
}

impl Planner {
    /// `list` is that of the worker's slots; `tasks` are those whose jobs may be claimed.
    pub(crate) fn new(now: Instant, rules: Rules, list: Arc<RunList>, tasks: Vec<String>) -> Planner {
        Planner {
            surroundings: Surroundings::UNKNOWN,
            list,
            tasks: TaskSplit::new(tasks, rules.hold_budget),
            durable: DurableClaims::new(),
            held: HeldClaims::new(&rules),
            due: DueTimes::default(),
            announced: Announced::default(),
            jobs: ClaimedJobs::new(now, rules.poll_interval),
            returning: Returning::default(),
            unreleased: Unreleased::default(),
            releasing: Vec::new(),
            lost: LostReplies::new(rules.recovery_threshold),
            refused: RefusedJobs::default(),
            shutdown: Shutdown::new(rules.grace_period, rules.abort_period),
            lanes: 0,
            has_found: false,
            refused_release: None,
            stuck_since: None,
            error: None,
            commands: Vec::new(),
            rules,
        }
    }

    /// Updates the surroundings. Call it before the other functions.
    pub(crate) fn observe(&mut self, surroundings: Surroundings) {
        self.surroundings = surroundings;
    }

    /// Takes in an event.
    pub(crate) fn handle(&mut self, event: Event, now: Instant) {
        match event {
            Event::Hint => {
                self.wake_up(now);
                self.durable.cut_pause(&self.rules);
            }
            Event::Announced(count) => {
                self.on_announced(now, count);
                self.durable.cut_pause(&self.rules);
            }
            Event::Due(times) => {
                self.due.on_polled(now, times, self.rules.poll_interval);
                if self.surroundings.has_triggers {
                    self.lost.search_later(now);
                }
            }
            Event::TasksChanged(tasks) => {
                self.tasks.set_active(tasks);
                self.due.forget();
            }
            Event::Answered { sent_at, epoch, level } => self.durable.on_answered(sent_at, epoch, level),
            Event::Claimed { wanted, claimed } => self.on_durable_claim(now, &wanted, claimed),
            Event::Seen { lane, request, seen } => {
                self.held.on_answered(now);
                self.held.scan.on_seen(now, lane, &request, seen);
            }
            Event::Picked { lane, jobs, without_room } => self.on_picked(now, lane, jobs, without_room),
            Event::BatchEnded { lane, picked, left } => self.on_batch_ended(now, lane, picked, left),
            Event::Promoted { lane, left } => self.on_promoted(now, lane, left),
            Event::Searched(found) => self.on_searched(now, found),
            Event::Renewed(times) => self.on_renewed(now, times),
            Event::LanePanicked(error) => {
                self.lanes -= 1;
                self.lost.on_panic();
                self.fail(error);
            }
            Event::Finished(finished) => self.on_finished(now, finished),
            Event::Released(report) => self.on_released(now, &report),
            Event::SlotsGone { are_all_gone } => self.on_slots_gone(now, are_all_gone),
            Event::Failed(error) => self.fail(error),
            Event::Shutdown => self.begin_shutdown(now),
            Event::Abort => self.begin_abort(now),
            Event::Timer => self.on_timer(now),
        }
    }

    /// The commands that were decided on since the last call.
    pub(crate) fn take_commands(&mut self) -> impl Iterator<Item = Command> + '_ {
        self.commands.drain(..)
    }

    /// When [`Planner::handle`] is to be called with [`Event::Timer`], if nothing else happens before.
    pub(crate) fn next_timer(&self, now: Instant) -> Instant {
        let patience = |sent_at: Instant| sent_at + self.rules.patience;
        let ttl = self.rules.local_queue_ttl();
        let times = [
            self.due.next_timer(),
            self.announced.next_timer(),
            self.returning.next_timer(now),
            self.durable.next_timer(now),
            self.durable.sent_at().map(patience).filter(|time| *time > now),
            self.held.next_timer(now, self.rules.hold_budget),
            self.held.pick_sent_at().map(patience).filter(|time| *time > now),
            self.held.scan.next_timer(now).filter(|_| self.may_hold()),
            ttl.map(|ttl| now + (ttl / 4).max(Duration::from_millis(10))),
            (self.list.durable_waiting() > 0).then(|| now + LONGEST_WAIT / 2),
            self.lost.next_timer(now),
            self.refused.next_timer(now),
            self.shutdown.next_timer(),
            self.stuck_since.map(|since| since + TO_COME_FREE).filter(|time| *time > now),
        ];
        times.into_iter().flatten().fold(self.jobs.next_timer(), Instant::min)
    }

    pub(crate) fn has_shutdown_begun(&self) -> bool {
        self.shutdown.has_begun()
    }

    pub(crate) fn is_aborting(&self) -> bool {
        self.shutdown.is_aborting()
    }

    /// Whether the worker has this job: it has claimed it, and its outcome is not known to be written.
    #[cfg(test)]
    pub(crate) fn knows(&self, id: i64) -> bool {
        self.jobs.ids().any(|known| known == id)
            || self.unreleased.ids().any(|known| known == id)
            || self.held.batches.settling_ids().any(|known| known == id)
    }

    /// Whether there may be due jobs.
    fn has_more(&self) -> bool {
        self.durable.has_more() || (self.holds() && self.held.scan.has_more())
    }

    /// Whether jobs are held at all, now.
    fn holds(&self) -> bool {
        self.rules.claims == Claims::Held && self.surroundings.may_hold && !self.held.is_refused()
    }

    fn on_timer(&mut self, now: Instant) {
        if let Some(is_missing) = self.announced.on_timer(now) {
            if is_missing {
                self.durable.hint();
            }
            self.held.scan.settle_announced(false);
        }
        self.durable.on_timer(now);
        self.held.on_timer(now);
        if self.refused.take_due(now) {
            self.durable.hint();
        }
        if self.due.on_timer(now) {
            self.wake_up(now);
        }
        for lane in self.held.batches.older_than(self.rules.hold_budget, now) {
            self.commit_batch(now, lane);
        }
        self.return_what_waits_for_long(now);
        self.lost.on_timer(now);
        if let Some(ids) = self.jobs.begin_renewing(now) {
            self.lanes += 1;
            self.commands.push(Command::RenewLocks { ids });
        }
        if self.shutdown.has_begun() {
            self.step_shutdown(now);
        }
        let is_late = self.stuck_since.is_some_and(|since| since + TO_COME_FREE <= now);
        if is_late && !self.shutdown.is_in_grace(now) {
            self.leave();
        }
    }

    /// The worker can't go on.
    fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
        self.commands.push(Command::Stop);
    }
}

#[cfg(test)]
mod tests;
