//! How far the end of a worker has come: stop claiming, let jobs finish, cancel them, abort them, return what is left.
//!
//! Each phase follows only if the one before was not enough. Jobs may finish for the grace period. Then the token in
//! their context fires. After the abort period they are dropped. Those that do not even yield are returned while they
//! run. If the database does not answer by then, the worker leaves its locks to the recovery.

use std::time::{Duration, Instant};

/// How long a task that was dropped may take to yield.
const TO_YIELD: Duration = Duration::from_secs(1);

/// How long the last releases may take.
const TO_RELEASE: Duration = Duration::from_secs(30);

/// What has to be done now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait,
    /// Fires the token in the context of running tasks.
    Cancel,
    /// Drops running tasks.
    Abort,
    /// Returns the jobs of tasks that still run.
    Abandon,
    /// Leaves all locks to the recovery.
    Leave,
}

#[derive(Debug)]
pub(super) struct Shutdown {
    grace_period: Duration,
    abort_period: Duration,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Grace { until: Instant },
    Cancelled { until: Instant },
    Aborting { until: Instant },
    Abandoned { until: Instant },
    Left,
}

impl Shutdown {
    pub(super) fn new(grace_period: Duration, abort_period: Duration) -> Shutdown {
        Shutdown { grace_period, abort_period, phase: Phase::Running }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.phase != Phase::Running
    }

    pub(super) fn is_in_grace(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Grace { until } if now < until)
    }

    pub(super) fn is_aborting(&self) -> bool {
        matches!(self.phase, Phase::Aborting { .. } | Phase::Abandoned { .. } | Phase::Left)
    }

    pub(super) fn has_left(&self) -> bool {
        self.phase == Phase::Left
    }

    pub(super) fn begin(&mut self, now: Instant) {
        if self.phase == Phase::Running {
            self.phase = Phase::Grace { until: now + self.grace_period };
        }
    }

    /// An abort was requested: the tasks are being dropped already.
    pub(super) fn abort_now(&mut self, now: Instant) {
        if !self.is_aborting() {
            self.phase = Phase::Aborting { until: now + TO_YIELD };
        }
    }

    /// All locks that are left belong to the recovery.
    pub(super) fn leave(&mut self) {
        self.phase = Phase::Left;
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running | Phase::Left => None,
            Phase::Grace { until }
            | Phase::Cancelled { until }
            | Phase::Aborting { until }
            | Phase::Abandoned { until } => Some(until),
        }
    }

    /// Goes on to the next phase when the time of this one is over.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        if self.next_timer().is_none_or(|until| now < until) {
            return Step::Wait;
        }
        let (phase, step) = match self.phase {
            Phase::Grace { .. } => (Phase::Cancelled { until: now + self.abort_period }, Step::Cancel),
            Phase::Cancelled { .. } => (Phase::Aborting { until: now + TO_YIELD }, Step::Abort),
            Phase::Aborting { .. } => (Phase::Abandoned { until: now + TO_RELEASE }, Step::Abandon),
            Phase::Abandoned { .. } | Phase::Left | Phase::Running => (Phase::Left, Step::Leave),
        };
        self.phase = phase;
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_step_follows_when_the_one_before_was_not_enough() {
        let mut shutdown = Shutdown::new(SECOND, SECOND);
        let start = Instant::now();
        assert_eq!(shutdown.step(start), Step::Wait);
        shutdown.begin(start);
        assert_eq!(shutdown.step(start), Step::Wait);
        let mut steps = Vec::new();
        for seconds in [2, 3, 4, 9, 14, 60, 120] {
            steps.push(shutdown.step(start + Duration::from_secs(seconds)));
        }
        assert_eq!(
            steps,
            [Step::Cancel, Step::Abort, Step::Abandon, Step::Wait, Step::Wait, Step::Leave, Step::Wait]
        );
        assert!(shutdown.has_left());
    }

    #[test]
    fn an_abort_skips_the_grace_period_and_happens_once() {
        let mut shutdown = Shutdown::new(SECOND, SECOND);
        let start = Instant::now();
        shutdown.begin(start);
        assert!(shutdown.is_in_grace(start) && !shutdown.is_in_grace(start + SECOND));
        shutdown.abort_now(start);
        assert!(shutdown.is_aborting() && !shutdown.is_in_grace(start));
        assert_eq!(shutdown.step(start + TO_YIELD), Step::Abandon);
        shutdown.abort_now(start + TO_YIELD);
        assert_eq!(
            shutdown.next_timer(),
            Some(start + TO_YIELD + TO_RELEASE),
            "a second abort changes nothing"
        );
    }
}
