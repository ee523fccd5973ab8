//! Which outcomes are written now, and which are tried again when. No database in here.
//!
//! Outcomes of one kind are written together. If that fails for a reason that one of them may be, the halves are tried, and
//! so on: the database refused the statement, or it took too long. What fails by itself is set apart, on other connections
//! and with growing pauses, so that it delays no other. What another transaction keeps locked is tried again, with pauses
//! too. After a statement that took too long, the next ones are smaller.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::super::backoff::Backoff;
use super::super::run::{Finished, Outcome};
use super::refused::without_what_is_refused;
use crate::Error;

/// The most jobs that one statement releases.
const MOST: usize = 4_000;

/// As many at least, however long statements take.
const LEAST: usize = 50;

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
    Slow,
    Refused,
}

/// With which others an outcome is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    /// With all of its kind.
    Together,
    /// With those of the same number: with more it failed, and any of them may have been the reason.
    Part(u64),
    /// By itself, on the connections for this, since it has failed by itself.
    Apart,
}

/// An outcome on its way into the database.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) finished: Finished,
    /// When the job was claimed, which tells the claim from others of the same job. None: it is not ours by any.
    pub(super) locked_at: Option<DateTime<Utc>>,
    /// A reply was lost, so this may have been written already. A job that is no longer ours then was released by us.
    pub(super) is_unknown: bool,
    company: Company,
    state: State,
    tries: u32,
    not_before: Instant,
}

impl Entry {
    pub(super) fn new(finished: Finished, locked_at: Option<DateTime<Utc>>, is_unknown: bool) -> Entry {
        let (state, not_before) = (State::New, Instant::now());
        Entry { finished, locked_at, is_unknown, company: Company::Together, state, tries: 0, not_before }
    }

    pub(super) fn kind(&self) -> Kind {
        match self.finished.outcome {
            Outcome::Completed => Kind::Complete,
            Outcome::Failed(_) => Kind::Fail,
            Outcome::Interrupted => Kind::Interrupt,
            Outcome::NotStarted => Kind::Return,
        }
    }

    fn pause(&mut self, now: Instant, longest: Duration) {
        let pause = FIRST.saturating_mul(1 << self.tries.min(20)).min(longest);
        self.tries += 1;
        self.not_before = now + pause;
    }

    fn block(&mut self, now: Instant, worker: &str) {
        if self.state != State::Blocked {
            self.state = State::Blocked;
            let Finished { job, .. } = &self.finished;
            tracing::warn!(
                worker,
                job = job.id,
                task = job.task_identifier(),
                attempt = job.attempts,
                "a job can't be released yet: another transaction has locked it or its queue"
            );
        }
        self.pause(now, LONGEST);
    }

    /// It failed by itself: from now on it has a connection to itself while it is tried, and pauses in between.
    fn set_apart(mut self, now: Instant, error: &Error, worker: &str) -> Entry {
        let is_slow = is_too_slow(error);
        let state = if is_slow { State::Slow } else { State::Refused };
        if self.state != state {
            self.state = state;
            let Finished { job, .. } = &self.finished;
            let (job, task, attempt) = (job.id, job.task_identifier(), job.attempts);
            match is_slow {
                true => {
                    tracing::warn!(worker, job, task, attempt, %error, "the release of a job takes too long; retrying");
                }
                false => {
                    tracing::error!(worker, job, task, attempt, %error, "the database rejected the release of a job; retrying");
                }
            }
        }
        self.company = Company::Apart;
        self.finished = without_what_is_refused(self.finished, error, self.tries);
        self.pause(now, if is_slow { LONGEST } else { LONGEST_REFUSED });
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
    /// A failure was written, and the job has no attempt left.
    FailedPermanently,
    /// Another transaction keeps the job or its queue locked.
    Blocked,
    /// The claim was lost.
    Absent,
}

/// All outcomes that are not written and not on their way.
#[derive(Debug)]
pub(super) struct Pending {
    /// The worker's id, for the log.
    worker: Arc<str>,
    delays: Delays,
    entries: Vec<Entry>,
    /// While the database does not answer.
    errors: Backoff,
    pause_until: Option<Instant>,
    /// How many outcomes the next statement writes at the most.
    most: usize,
    parts: u64,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending::new(Delays::default(), "w".into())
    }
}

impl Pending {
    pub(super) fn new(delays: Delays, worker: Arc<str>) -> Pending {
        let (entries, errors) = (Vec::new(), Backoff::default());
        Pending { worker, delays, entries, errors, pause_until: None, most: MOST, parts: 0 }
    }

    /// How many outcomes wait because something is in their own way.
    pub(super) fn stuck(&self) -> usize {
        self.entries.iter().filter(|entry| entry.state != State::New).count()
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
        let is_due = |entry: &Entry| entry.company != Company::Apart && entry.not_before <= now;
        // The oldest decides which kind is next, so that no kind waits for ever.
        let index = self.entries.iter().position(is_due)?;
        let first = &self.entries[index];
        if let company @ Company::Part(_) = first.company {
            return Some(self.entries.extract_if(.., |it| it.company == company).collect());
        }
        let kind = first.kind();
        let goes = |it: &mut Entry| {
            let is_due = it.not_before <= now || it.state == State::New;
            it.company == Company::Together && it.kind() == kind && is_due
        };
        Some(self.entries.extract_if(.., goes).take(self.most).collect())
    }

    /// Takes out the next outcome that is written apart.
    pub(super) fn next_apart(&mut self, now: Instant) -> Option<Entry> {
        let is_due = |entry: &Entry| entry.company == Company::Apart && entry.not_before <= now;
        let index = self.entries.iter().position(is_due)?;
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

    /// A statement failed.
    pub(super) fn on_error(&mut self, now: Instant, mut entries: Vec<Entry>, error: &Error) {
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
                    (entry.company, entry.not_before) = (Company::Part(self.parts), now);
                }
            }
        } else if is_about_one(error) {
            entries = entries.into_iter().map(|entry| entry.set_apart(now, error, &self.worker)).collect();
        } else if entries.iter().any(|entry| entry.company == Company::Apart) {
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

/// Whether one outcome may be the reason, and not the database as a whole: the database refuses the statement, or it took
/// too long, or waited too long for a lock.
fn is_about_one(error: &Error) -> bool {
    !error.is_transient() || is_too_slow(error)
}

fn is_too_slow(error: &Error) -> bool {
    matches!(error.db_code(), Some("55P03" | "57014"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::run::{Claim, Failure};
    use super::*;
    use crate::job::Place;
    use crate::{Job, Retry};

    const MS: Duration = Duration::from_millis(1);

    fn entry(id: i64, outcome: Outcome) -> Entry {
        let time = DateTime::UNIX_EPOCH;
        let job = Arc::new(Job {
            id,
            task_identifier: "t".into(),
            task_id: 1,
            job_queue_id: None,
            queue_name: None,
            payload: "{}".into(),
            priority: 0,
            run_at: time,
            attempts: 1,
            max_attempts: 25,
            last_error: None,
            created_at: time,
            updated_at: time,
            key: None,
            locked_at: None,
            locked_by: None,
            revision: 0,
            flags: None,
            place: Place::default(),
        });
        let finished = Finished { job, outcome, duration: MS, claim: Claim::Durable };
        Entry::new(finished, None, false)
    }

    fn failed() -> Outcome {
        Outcome::Failed(Failure { error: "no".into(), retry: Retry::Backoff, payload: None })
    }

    fn ids(entries: Option<Vec<Entry>>) -> Vec<i64> {
        entries.into_iter().flatten().map(|entry| entry.finished.job.id).collect()
    }

    #[test]
    fn outcomes_of_a_kind_go_together_when_the_first_is_due() {
        let now = Instant::now();
        let mut pending = Pending::new(Delays { complete: 10 * MS, fail: Duration::ZERO }, "w".into());
        pending.add(now, vec![entry(1, Outcome::Completed), entry(2, failed())]);
        pending.add(now + 5 * MS, vec![entry(3, Outcome::Completed)]);
        assert_eq!(ids(pending.next_batch(now + 5 * MS)), [2]);
        assert_eq!(ids(pending.next_batch(now + 5 * MS)), [0; 0]);
        assert_eq!(pending.next_timer(now + 5 * MS), Some(now + 10 * MS));
        assert_eq!(ids(pending.next_batch(now + 10 * MS)), [1, 3]);
        pending.add(now, vec![entry(4, Outcome::Completed)]);
        pending.hurry(now);
        assert_eq!(ids(pending.next_batch(now)), [4]);
        assert!(pending.entries.is_empty());
    }

    #[test]
    fn what_is_blocked_is_tried_again_and_delays_no_other() {
        let mut now = Instant::now();
        let mut pending = Pending::default();
        pending.add(now, vec![entry(1, Outcome::Completed), entry(2, Outcome::Completed)]);
        for pause in [50, 100, 200, 400, 800, 1600, 2000, 2000] {
            let batch = pending.next_batch(now).unwrap();
            let fate_of = |id| if id == 1 { Fate::Blocked } else { Fate::Written };
            let done = pending.on_answer(now, batch, fate_of);
            assert_eq!(done.len(), 1, "the others are written");
            assert_eq!(pending.next_timer(now), Some(now + pause * MS));
            pending.add(now, vec![entry(2, Outcome::Completed)]);
            assert_eq!(ids(pending.next_batch(now)), [2]);
            now += pause * MS;
            pending.add(now, vec![entry(2, Outcome::Completed)]);
        }
    }

    #[test]
    fn after_a_refusal_each_is_tried_by_itself_and_what_fails_again_is_set_apart() {
        let (now, refusal) = (Instant::now(), Error::config("no"));
        let mut pending = Pending::default();
        pending.add(now, vec![entry(1, Outcome::Completed), entry(2, Outcome::Completed)]);
        let batch = pending.next_batch(now).unwrap();
        pending.on_error(now, batch, &refusal);
        let (first, second) = (pending.next_batch(now).unwrap(), pending.next_batch(now).unwrap());
        assert_eq!((first.len(), second.len()), (1, 1));
        pending.on_error(now, first, &refusal);
        assert_eq!(pending.on_answer(now, second, |_| Fate::Written).len(), 1);
        let mut time = now;
        for pause in [50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000] {
            assert!(pending.next_batch(time).is_none() && pending.next_apart(time).is_none());
            time += pause * MS;
            let apart = pending.next_apart(time).unwrap();
            pending.on_error(time, vec![apart], &refusal);
        }
    }

    #[test]
    fn one_refusal_among_many_is_found_by_halves() {
        let (now, refusal) = (Instant::now(), Error::config("no"));
        let mut pending = Pending::default();
        pending.add(now, (0..1000).map(|id| entry(id, Outcome::Completed)).collect());
        let (mut statements, mut written) = (0, 0);
        while let Some(batch) = pending.next_batch(now) {
            statements += 1;
            match batch.iter().any(|entry| entry.finished.job.id == 700) {
                true => pending.on_error(now, batch, &refusal),
                false => written += pending.on_answer(now, batch, |_| Fate::Written).len(),
            }
        }
        assert_eq!((written, pending.entries.len(), pending.stuck()), (999, 1, 1));
        assert!(statements < 25, "{statements}");
    }

    #[test]
    fn while_the_database_is_away_nothing_is_tried_for_a_while() {
        let (now, away) = (Instant::now(), Error::unavailable("away"));
        let mut pending = Pending::default();
        pending.add(now, vec![entry(1, Outcome::Completed)]);
        let batch = pending.next_batch(now).unwrap();
        pending.on_error(now, batch, &away);
        assert!(pending.next_batch(now).is_none());
        let later = pending.next_timer(now).unwrap();
        assert_eq!(ids(pending.next_batch(later)), [1]);
    }
}
