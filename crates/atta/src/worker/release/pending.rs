//! Decides which outcomes are written now, and when others are tried again. Pure: no database.
//!
//! Outcomes of one kind are written together. If the database rejects the statement, or it takes too long, one of the
//! outcomes may be the cause: then each half is tried, and so on. An outcome that fails alone is written apart from
//! then on: on other connections and with growing pauses, so that it delays no other. An outcome whose job another
//! transaction keeps locked is tried again, also with pauses. After a statement that took too long, the next ones are
//! smaller.

mod entry;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::backoff::Backoff;
use crate::Error;
pub(crate) use entry::Entry;
pub(in super::super) use entry::Kind;
use entry::{Grouping, LONGEST, State, is_too_slow};

/// The most jobs that one statement releases.
const MOST: usize = 4_000;

/// The fewest jobs to which a statement is limited, however long statements take.
const LEAST: usize = 50;

/// While a statement is under way, completed jobs wait for this long, so that more of them are written together: larger
/// statements take less time per job.
const FOR_OTHERS: Duration = Duration::from_millis(20);

/// After this many attempts, the rejection of an outcome is reported. They take about three seconds.
const REPORTED_AFTER: u32 = 6;

/// How long outcomes wait for others, to be written together with them.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Delays {
    pub(super) complete: Duration,
    pub(super) fail: Duration,
}

/// The result of a statement for one of its outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Fate {
    Written,
    /// A failure was written, and the job has no attempt left.
    FailedPermanently,
    /// Another transaction keeps the job or its queue locked.
    Blocked,
    /// The claim was lost.
    Absent,
}

/// All outcomes that are not written, and are not in a statement that is under way.
#[derive(Debug)]
pub(in super::super) struct Pending {
    /// The worker's id, for the log.
    worker: Arc<str>,
    delays: Delays,
    entries: Vec<Entry>,
    /// The pauses while the database does not answer.
    errors: Backoff,
    pause_until: Option<Instant>,
    /// The most outcomes that the next statement writes.
    most: usize,
    parts: u64,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending::new(Delays::default(), "w".into())
    }
}

impl Pending {
    pub(in super::super) fn new(delays: Delays, worker: Arc<str>) -> Pending {
        let (entries, errors) = (Vec::new(), Backoff::default());
        Pending { worker, delays, entries, errors, pause_until: None, most: MOST, parts: 0 }
    }

    /// How many outcomes wait because of a problem of their own: a lock, a rejection, or slowness.
    pub(in super::super) fn stuck(&self) -> usize {
        self.entries.iter().filter(|entry| entry.state != State::New).count()
    }

    /// The error of an outcome that the database has rejected several times.
    pub(in super::super) fn refused(&self) -> Option<&Arc<str>> {
        let entry =
            self.entries.iter().find(|entry| entry.tries >= REPORTED_AFTER && entry.refusal.is_some());
        entry.and_then(|entry| entry.refusal.as_ref())
    }

    /// Takes over new outcomes.
    pub(in super::super) fn add(&mut self, now: Instant, entries: Vec<Entry>) {
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

    /// Ends all batch delays, because the worker stops. Outcomes that could not be written are tried at once, too, and
    /// their pauses begin again with the shortest: the worker will not wait for long ones.
    pub(in super::super) fn hurry(&mut self, now: Instant) {
        self.delays = Delays::default();
        for entry in &mut self.entries {
            (entry.not_before, entry.tries) = (entry.not_before.min(now), 0);
        }
    }

    /// Takes out the outcomes for the next statement, all of one kind, if any is due. When one is due, others that
    /// still wait to be written together with it are included. `under_way` is the time at which the oldest statement
    /// without a reply was sent.
    pub(in super::super) fn next_batch(
        &mut self,
        now: Instant,
        under_way: Option<Instant>,
    ) -> Option<Vec<Entry>> {
        if self.pause_until.is_some_and(|time| time > now) {
            return None;
        }
        let is_early = under_way.is_some_and(|sent| now < sent + FOR_OTHERS);
        let is_due = |entry: &Entry| {
            entry.grouping != Grouping::Apart && entry.not_before <= now && !(is_early && entry.may_wait())
        };
        // The oldest outcome determines the kind, so that no kind waits forever.
        let index = self.entries.iter().position(is_due)?;
        let first = &self.entries[index];
        if let grouping @ Grouping::Part(_) = first.grouping {
            return Some(self.entries.extract_if(.., |it| it.grouping == grouping).collect());
        }
        let kind = first.kind();
        let goes = |it: &mut Entry| {
            let is_due = it.not_before <= now || it.state == State::New;
            it.grouping == Grouping::Together && it.kind() == kind && is_due
        };
        Some(self.entries.extract_if(.., goes).take(self.most).collect())
    }

    /// Takes out the next outcome that is to be written alone.
    pub(in super::super) fn next_apart(&mut self, now: Instant) -> Option<Entry> {
        let is_due = |entry: &Entry| entry.grouping == Grouping::Apart && entry.not_before <= now;
        let index = self.entries.iter().position(is_due)?;
        Some(self.entries.remove(index))
    }

    /// When the next outcome becomes due that is not due yet.
    pub(in super::super) fn next_timer(&self, now: Instant, under_way: Option<Instant>) -> Option<Instant> {
        let others = under_way.map(|sent| sent + FOR_OTHERS).filter(|_| !self.entries.is_empty());
        let times = self.entries.iter().map(|entry| entry.not_before).chain(self.pause_until).chain(others);
        times.filter(|time| *time > now).min()
    }

    /// Handles the reply to a statement. Returns the outcomes that need no further attempt, and keeps the others.
    pub(in super::super) fn on_answer(
        &mut self,
        now: Instant,
        entries: Vec<Entry>,
        fate_of: impl Fn(i64) -> Fate,
    ) -> Vec<(Entry, Fate)> {
        (self.errors, self.pause_until) = (Backoff::default(), None);
        if entries.len() >= self.most {
            self.most = (2 * self.most).min(MOST);
        }
        let mut done = Vec::with_capacity(entries.len());
        for mut entry in entries {
            match fate_of(entry.finished.job.id) {
                Fate::Blocked => {
                    entry.block(now, &self.worker);
                    self.entries.push(entry);
                }
                fate => done.push((entry, fate)),
            }
        }
        done
    }

    /// Handles the failure of a statement.
    pub(in super::super) fn on_error(&mut self, now: Instant, mut entries: Vec<Entry>, error: &Error) {
        for entry in &mut entries {
            entry.is_unknown |= error.may_have_happened();
        }
        if entries.len() > 1 && is_about_one(error) {
            tracing::warn!(%error, jobs = entries.len(), "could not release a batch of jobs; retrying with smaller batches");
            if is_too_slow(error) {
                self.most = (entries.len() / 2).clamp(LEAST, self.most);
            }
            let half = entries.len().div_ceil(2);
            for half in entries.chunks_mut(half) {
                self.parts += 1;
                for entry in half {
                    (entry.grouping, entry.not_before) = (Grouping::Part(self.parts), now);
                }
            }
        } else if is_about_one(error) {
            entries = entries.into_iter().map(|entry| entry.set_apart(now, error, &self.worker)).collect();
        } else if entries.iter().any(|entry| entry.grouping == Grouping::Apart) {
            entries.iter_mut().for_each(|entry| entry.pause(now, LONGEST));
        } else {
            if self.errors.tries() == 0 {
                tracing::warn!(%error, jobs = entries.len(), "could not release jobs; retrying");
            }
            self.pause_until = Some(now + self.errors.next());
        }
        self.entries.extend(entries);
    }
}

/// Whether one outcome may be the cause, and not the database as a whole: the database rejected the statement, or it
/// took too long, or waited too long for a lock.
fn is_about_one(error: &Error) -> bool {
    !error.is_transient() || is_too_slow(error) || error.is_refusal()
}

#[cfg(test)]
mod tests;
