//! Which outcomes are written now, and which are tried again when. No database in here.
//!
//! Outcomes of one kind are written together. An outcome that fails for a reason of its own is written alone from then
//! on, so that it delays no other: because the database refuses it, or because its statement took too long.

use std::time::{Duration, Instant};

use super::super::backoff::Backoff;
use super::super::run::{Finished, Outcome};
use super::write::without_what_is_refused;
use crate::Error;

/// The most jobs that one statement releases.
const MOST: usize = 1_000;

/// The pauses before an outcome is tried again: the first, and the longest.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);

/// The longest pause for an outcome that the database refuses.
const LONGEST_REFUSED: Duration = Duration::from_secs(30);

/// Outcomes of one kind are written by one statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Complete,
    Fail,
    /// Returns jobs that had begun: they may have to wait.
    Interrupt,
    /// Returns jobs that had not begun.
    Return,
}

/// Why an outcome is not written yet. A change of it is logged, a further try is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Blocked,
    Refused,
}

/// An outcome on its way into the database.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) finished: Finished,
    /// A reply was lost, so this may have been written already. A job that is no longer ours then was released by us.
    pub(super) is_unknown: bool,
    /// Written by a statement of its own.
    is_alone: bool,
    state: State,
    tries: u32,
    not_before: Instant,
}

impl Entry {
    pub(super) fn new(finished: Finished, is_unknown: bool) -> Entry {
        let (state, not_before) = (State::New, Instant::now());
        Entry { finished, is_unknown, is_alone: false, state, tries: 0, not_before }
    }

    pub(super) fn kind(&self) -> Kind {
        match self.finished.outcome {
            Outcome::Completed => Kind::Complete,
            Outcome::Failed(_) => Kind::Fail,
            Outcome::Interrupted => Kind::Interrupt,
            Outcome::NotStarted => Kind::Return,
        }
    }

    /// What outcomes have in common that one statement writes.
    fn shape(&self) -> (Kind, i16, bool) {
        (self.kind(), self.finished.job.attempts, self.finished.job.key.is_some())
    }

    fn pause(&mut self, now: Instant, longest: Duration) {
        let pause = FIRST.saturating_mul(1 << self.tries.min(20)).min(longest);
        self.tries += 1;
        self.not_before = now + pause;
    }

    fn block(&mut self, now: Instant) {
        if self.state != State::Blocked {
            self.state = State::Blocked;
            let (job, task) = (self.finished.job.id, self.finished.job.task_identifier());
            tracing::warn!(
                job,
                task,
                "a job can't be released yet: another transaction keeps it or its queue locked"
            );
        }
        self.pause(now, LONGEST);
    }

    fn refuse(mut self, now: Instant, error: &Error) -> Entry {
        if self.state != State::Refused {
            self.state = State::Refused;
            let (job, task) = (self.finished.job.id, self.finished.job.task_identifier());
            tracing::error!(job, task, %error, "the database refuses to release a job, trying again");
        }
        self.finished = without_what_is_refused(self.finished, error);
        self.pause(now, LONGEST_REFUSED);
        self
    }
}

/// How long outcomes wait for others to be written with them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delays {
    pub(super) complete: Duration,
    pub(super) fail: Duration,
}

/// What became of one outcome of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Written,
    /// Another transaction keeps the job or its queue locked.
    Blocked,
    /// The claim was lost.
    Absent,
}

/// All outcomes that are not written and not on their way.
#[derive(Debug, Default)]
pub(super) struct Pending {
    delays: Delays,
    entries: Vec<Entry>,
    /// While the database does not answer.
    errors: Backoff,
    pause_until: Option<Instant>,
}

impl Pending {
    pub(super) fn new(delays: Delays) -> Pending {
        Pending { delays, ..Pending::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes over new outcomes.
    pub(super) fn add(&mut self, now: Instant, entries: Vec<Entry>) {
        for mut entry in entries {
            entry.not_before = now
                + match entry.kind() {
                    Kind::Complete => self.delays.complete,
                    Kind::Fail => self.delays.fail,
                    Kind::Interrupt | Kind::Return => Duration::ZERO,
                };
            self.entries.push(entry);
        }
    }

    /// Ends all batch delays: the worker stops.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.delays = Delays::default();
        for entry in self.entries.iter_mut().filter(|entry| entry.state == State::New) {
            entry.not_before = entry.not_before.min(now);
        }
    }

    /// Takes out what the next statement writes, if there is something due: outcomes of one kind. Those that wait for
    /// company go with the first of them that is due.
    pub(super) fn next_batch(&mut self, now: Instant) -> Option<Vec<Entry>> {
        if self.pause_until.is_some_and(|time| time > now) {
            return None;
        }
        let is_due = |entry: &Entry| !entry.is_alone && entry.not_before <= now;
        // The oldest decides which kind is next, so that no kind waits for ever.
        let shape = self.entries.iter().find(|entry| is_due(entry))?.shape();
        let goes = |it: &mut Entry| {
            !it.is_alone && it.shape() == shape && (it.not_before <= now || it.state == State::New)
        };
        Some(self.entries.extract_if(.., goes).take(MOST).collect())
    }

    /// Takes out the next outcome that is written alone.
    pub(super) fn next_alone(&mut self, now: Instant) -> Option<Entry> {
        let index = self.entries.iter().position(|entry| entry.is_alone && entry.not_before <= now)?;
        Some(self.entries.remove(index))
    }

    /// When something becomes due that is not due yet.
    pub(super) fn next_timer(&self, now: Instant) -> Option<Instant> {
        let times = self.entries.iter().map(|entry| entry.not_before).chain(self.pause_until);
        times.filter(|time| *time > now).min()
    }

    /// A statement was answered. Returns the outcomes that are done with, and keeps the others for another try.
    pub(super) fn on_answer(
        &mut self,
        now: Instant,
        entries: Vec<Entry>,
        fate_of: impl Fn(i64) -> Fate,
    ) -> Vec<(Entry, Fate)> {
        (self.errors, self.pause_until) = (Backoff::default(), None);
        let mut done = Vec::with_capacity(entries.len());
        for mut entry in entries {
            match fate_of(entry.finished.job.id) {
                Fate::Blocked => {
                    entry.block(now);
                    self.entries.push(entry);
                }
                fate => done.push((entry, fate)),
            }
        }
        done
    }

    /// A statement failed.
    pub(super) fn on_error(&mut self, now: Instant, mut entries: Vec<Entry>, error: &Error) {
        let is_alone = entries.iter().all(|entry| entry.is_alone);
        for entry in &mut entries {
            entry.is_unknown |= error.may_have_happened();
        }
        if is_about_one(error) && !is_alone {
            tracing::warn!(%error, jobs = entries.len(), "could not release jobs together, trying one by one");
            for entry in &mut entries {
                (entry.is_alone, entry.not_before) = (true, now);
            }
            self.entries.extend(entries);
        } else if error.is_transient() && !is_alone {
            if self.errors.tries() == 0 {
                tracing::warn!(%error, jobs = entries.len(), "could not release jobs, trying again");
            }
            self.pause_until = Some(now + self.errors.next());
            self.entries.extend(entries);
        } else if error.is_transient() {
            let paused = entries.into_iter().map(|mut entry| {
                entry.pause(now, LONGEST);
                entry
            });
            self.entries.extend(paused);
        } else {
            self.entries.extend(entries.into_iter().map(|entry| entry.refuse(now, error)));
        }
    }
}

/// Whether one of several outcomes may be the reason, so that each is tried by itself: the database refuses the statement,
/// or it took too long, or waited too long for a lock.
fn is_about_one(error: &Error) -> bool {
    !error.is_transient() || error.db_code() == Some("55P03")
}
