//! Pacing of durable claims: whether there may be jobs, what is known to be claimed, and when the next claim may be
//! sent.

mod asking;
mod claimed;
mod flagged;
mod freed;
mod known;
mod under_way;

use std::time::{Duration, Instant};

use super::super::backoff::Backoff;
use super::super::claim::{Claimable, Level};
use super::level::LevelPace;
use super::pauses::{Pauses, Why};
use super::rules::{Mode, Rules};
use super::scan::EVERYTHING;
use crate::job::Order;
use asking::Asking;
use flagged::FlaggedPace;
use freed::{Ask, Freed};
use known::Known;
use under_way::UnderWay;

/// While jobs are held, the pause after a claim that found nothing, as a multiple of its duration. Without it, claims
/// that read much and find nothing would slow down the held ones.
const REST: u32 = 3;

/// The longest pause after a claim that found nothing: jobs that come in meanwhile wait for its end.
const LONGEST_REST: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct DurableClaims {
    asking: Asking,
    /// What was asked for before jobs were announced that a pick searches for, if nothing has changed that since.
    asking_before_announced: Option<Asking>,
    /// The last claim brought all that it asked for, so that another can be sent beside the next one.
    was_full: bool,
    pub(super) pauses: Pauses,
    errors: Backoff,
    /// How many hints end the pause after a claim that brought few jobs.
    hints_to_cut: usize,
    known: Known,
    under_way: UnderWay,
    pub(super) level: LevelPace,
    flagged: FlaggedPace,
    freed: Freed,
    /// The average size of payloads, in bytes.
    payload_bytes: f64,
}

impl DurableClaims {
    pub(super) fn new() -> DurableClaims {
        DurableClaims {
            asking: Asking::LessUrgent,
            asking_before_announced: None,
            was_full: false,
            pauses: Pauses::default(),
            errors: Backoff::default(),
            hints_to_cut: 0,
            known: Known::new(),
            under_way: UnderWay::default(),
            level: LevelPace::default(),
            flagged: FlaggedPace::default(),
            freed: Freed::default(),
            payload_bytes: 0.0,
        }
    }

    /// How many claims are under way.
    pub(super) fn away(&self) -> usize {
        self.under_way.count()
    }

    pub(super) fn reserved(&self) -> usize {
        self.under_way.reserved()
    }

    pub(super) fn known_to(&self) -> Order {
        self.known.to()
    }

    pub(super) fn is_failing(&self) -> bool {
        self.errors.tries() > 0
    }

    pub(super) fn tries(&self) -> u32 {
        self.errors.tries()
    }

    /// Whether there may be due jobs, or jobs that are more urgent than those that wait.
    pub(super) fn asks(&self) -> bool {
        self.asking != Asking::Nothing
    }

    /// Whether there may be jobs that are more urgent than those that wait.
    pub(super) fn is_hinted(&self) -> bool {
        self.asking.has_more_urgent()
    }

    /// Whether there may be due jobs.
    pub(super) fn has_more(&self) -> bool {
        self.asking.has_less_urgent() || self.freed.has_any()
    }

    /// There may be due jobs, no more urgent than before.
    pub(super) fn ask(&mut self) {
        self.asking_mut().ask_less_urgent();
    }

    /// There may be due jobs of any urgency.
    pub(super) fn hint(&mut self) {
        self.asking_mut().ask_any();
    }

    fn asking_mut(&mut self) -> &mut Asking {
        self.asking_before_announced = None;
        &mut self.asking
    }

    /// Only jobs that are more urgent than this are known to be claimed.
    pub(super) fn forget(&mut self, known_to: Order) {
        self.known.forget(known_to);
        self.on_forgotten();
    }

    /// Jobs were announced while nothing waits to start: nothing is known until they are found.
    pub(super) fn forget_for_announced(&mut self) {
        if self.known.forget_for_announced() {
            let before = self.asking;
            self.on_forgotten();
            self.asking_before_announced = Some(before);
        }
    }

    fn on_forgotten(&mut self) {
        self.asking_mut().ask_more_urgent();
        self.level.forget_position();
    }

    /// A pick was answered after jobs were announced, and found all of them, or not. In the latter case everything that
    /// may have been added is asked for.
    pub(super) fn settle_announced(&mut self, found_all: bool) {
        if let Some(before) = self.asking_before_announced.take().filter(|_| found_all) {
            self.asking = before;
        }
        if self.known.settle_announced(found_all) {
            self.ask();
        }
    }

    /// A hint came in. With a local queue, enough of them end its pause.
    pub(super) fn cut_pause(&mut self, rules: &Rules) {
        if rules.local_queue.is_none() {
            return;
        }
        self.hints_to_cut = self.hints_to_cut.saturating_sub(1);
        if self.hints_to_cut == 0 {
            self.pauses.end_all_but_errors();
        }
    }

    /// Outcomes are written that make jobs due.
    pub(super) fn on_freed(&mut self) {
        self.freed.on_freed();
    }

    /// Decides whether the jobs that releases made due are asked for. `runs_ahead`: jobs are claimed ahead.
    pub(super) fn ask_for_freed(&mut self, now: Instant, runs_ahead: bool) {
        match self.freed.ask(now, self.was_full || !runs_ahead) {
            Ask::All => self.ask(),
            Ask::MoreUrgent => self.asking_mut().ask_more_urgent(),
            Ask::Nothing => {}
        }
    }

    /// Whether a claim under way that was not answered yet keeps others from being sent.
    pub(super) fn waits_for_answer(&self, now: Instant, patience: Duration) -> bool {
        self.under_way.waits_for_answer(now, patience)
    }

    /// When the oldest claim was sent that is under way.
    pub(super) fn sent_at(&self) -> Option<Instant> {
        self.under_way.oldest()
    }

    /// Whether the next claim reads all jobs with flags.
    pub(super) fn reads_all_flagged(&self, now: Instant, rules: &Rules) -> bool {
        rules.mode == Mode::UntilEmpty || self.flagged.reads_all(now)
    }

    /// How many jobs fit into this number of bytes, by their average size. At least one.
    pub(super) fn fitting(&self, count: usize, bytes: usize) -> usize {
        count.min((bytes as f64 / self.payload_bytes.max(1.0)) as usize).max(1)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.known.epoch()
    }

    pub(super) fn on_sent(&mut self, wanted: &Claimable) {
        self.level.on_sent(wanted, self.is_hinted());
        match wanted.before == EVERYTHING {
            true => {
                let was_full = self.was_full;
                self.asking_mut().on_sent(was_full);
            }
            false => self.asking_mut().on_sent_more_urgent(),
        }
        self.under_way.on_sent(wanted);
    }

    /// A claim was answered, and its jobs are still being decoded.
    pub(super) fn on_answered(&mut self, sent_at: Instant, epoch: u64, level: Option<Level>) {
        self.under_way.on_answered(sent_at);
        if let Some(level) = level {
            self.level.on_answered(level, self.known.is_current(epoch));
        }
    }

    /// A claim has ended, with or without success.
    pub(super) fn on_back(&mut self, wanted: &Claimable) {
        self.under_way.on_back(wanted);
    }

    /// These jobs of a lost batch were claimed again.
    pub(super) fn note_taken_over(&mut self, now: Instant, ids: impl Iterator<Item = i64>) {
        self.under_way.note_taken_over(now, ids);
    }

    /// Whether the job was claimed again for a lost batch after this claim was sent.
    pub(super) fn is_taken_over(&self, wanted: &Claimable, id: i64) -> bool {
        self.under_way.is_taken_over(wanted, id)
    }

    /// A claim failed.
    pub(super) fn on_error(&mut self, now: Instant) {
        self.pauses.begin(Why::Errors, now + self.errors.next());
        self.ask();
        self.level.forget();
    }

    /// A claim found nothing, in this time, while jobs are held.
    pub(super) fn rest(&mut self, now: Instant, took: Duration) {
        self.pauses.begin(Why::FoundNothing, now + (took * REST).min(LONGEST_REST));
    }

    pub(super) fn on_timer(&mut self, now: Instant) {
        if self.flagged.take_due(now) {
            self.ask();
        }
    }

    pub(super) fn next_timer(&self, now: Instant) -> Option<Instant> {
        let times = [
            self.pauses.until(now).filter(|_| self.asking.has_less_urgent()),
            self.freed.next_timer(now),
            self.flagged.next_timer(now),
        ];
        times.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
