//! One outcome that is not written yet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::super::super::run::{Finished, Outcome};
use super::super::refused::without_what_is_refused;
use crate::Error;

/// The pauses before an outcome is tried again: the first, and the longest.
pub(super) const FIRST: Duration = Duration::from_millis(50);
pub(super) const LONGEST: Duration = Duration::from_secs(2);

/// The longest pause for an outcome that the database rejects.
const LONGEST_REFUSED: Duration = Duration::from_secs(30);

/// Outcomes of one kind are written by one statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super::super) enum Kind {
    Complete,
    Fail,
    /// Returns jobs that had started: they may have to wait before they run again.
    Interrupt,
    /// Returns jobs that had not started.
    Return,
}

/// Why an outcome is not written yet. Each change of the state is logged; further attempts in the same state are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    New,
    Blocked,
    Slow,
    Refused,
}

/// Which other outcomes an outcome is written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// With all others of its kind.
    Together,
    /// Only with outcomes of the same number: a larger statement failed, and any of them may have been the cause.
    Part(u64),
    /// Alone, on separate connections, since it has failed alone.
    Apart,
}

/// An outcome on its way into the database.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) finished: Finished,
    /// When the job was claimed, which distinguishes the claim from others of the same job. None if this worker has no
    /// claim.
    pub(crate) locked_at: Option<DateTime<Utc>>,
    /// A reply was lost, so this may have been written already. If the job is no longer claimed by this worker, this
    /// worker has released it.
    pub(in super::super::super) is_unknown: bool,
    pub(super) grouping: Grouping,
    pub(super) state: State,
    /// Why the database rejected it last.
    pub(super) refusal: Option<Arc<str>>,
    pub(super) tries: u32,
    pub(super) not_before: Instant,
}

impl Entry {
    pub(crate) fn new(
        now: Instant,
        finished: Finished,
        locked_at: Option<DateTime<Utc>>,
        is_unknown: bool,
    ) -> Entry {
        let (state, not_before) = (State::New, now);
        let (grouping, refusal) = (Grouping::Together, None);
        Entry { finished, locked_at, is_unknown, grouping, state, refusal, tries: 0, not_before }
    }

    /// The bytes of its payloads and error.
    pub(crate) fn size(&self) -> usize {
        super::super::size_of(&self.finished)
    }

    pub(in super::super::super) fn kind(&self) -> Kind {
        match self.finished.outcome {
            Outcome::Completed => Kind::Complete,
            Outcome::Failed(_) => Kind::Fail,
            Outcome::Interrupted => Kind::Interrupt,
            Outcome::NotStarted => Kind::Return,
        }
    }

    /// Whether it may wait for the reply to the statement that is under way. A queued job may not: the next job of its
    /// queue waits for its release.
    pub(super) fn may_wait(&self) -> bool {
        let job = &self.finished.job;
        self.kind() == Kind::Complete && self.grouping == Grouping::Together && job.job_queue_id.is_none()
    }

    pub(super) fn pause(&mut self, now: Instant, longest: Duration) {
        let pause = FIRST.saturating_mul(1 << self.tries.min(20)).min(longest);
        self.tries += 1;
        self.not_before = now + pause;
    }

    pub(super) fn block(&mut self, now: Instant, worker: &str) {
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

    /// Called when the outcome has failed alone. From now on it is written on a separate connection, with pauses
    /// between the attempts.
    pub(super) fn set_apart(mut self, now: Instant, error: &Error, worker: &str) -> Entry {
        let is_slow = is_too_slow(error);
        let state = if is_slow { State::Slow } else { State::Refused };
        if self.state != state {
            self.state = state;
            let Finished { job, .. } = &self.finished;
            let (job, task, attempt) = (job.id, job.task_identifier(), job.attempts);
            if is_slow {
                tracing::warn!(worker, job, task, attempt, %error, "the release of a job takes too long; retrying");
            } else if error.is_refusal() {
                tracing::error!(worker, job, task, attempt, %error, "the database rejected the release of a job; retrying");
            } else {
                tracing::error!(worker, job, task, attempt, %error, "could not release a job; retrying");
            }
        }
        self.grouping = Grouping::Apart;
        self.refusal = (!is_slow).then(|| error.to_string().into());
        self.finished = without_what_is_refused(self.finished, error, self.tries);
        self.pause(now, if is_slow { LONGEST } else { LONGEST_REFUSED });
        self
    }
}

pub(super) fn is_too_slow(error: &Error) -> bool {
    matches!(error.db_code(), Some("55P03" | "57014"))
}
