//! Jobs that releases have made due: the next job of a queue, or the same job.
//!
//! If the last claim brought less than it asked for, these may be the only ones, and can't start before the jobs that
//! were claimed ahead. A claim for each release would then cost hundreds of claims for a job or two each. But such a
//! job may be more urgent than those that wait, so more urgent jobs are asked for from time to time.

use std::time::{Duration, Instant};

/// With a local queue, releases are followed by a claim of more urgent jobs at most this often.
pub(super) const HINTS: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Nothing,
    /// Jobs are due, and nothing was asked for since.
    Unasked,
    /// Jobs are due, and only more urgent ones were asked for since.
    AskedForUrgent,
}

#[derive(Debug, Default)]
pub(super) struct Freed {
    state: State,
    /// When more urgent jobs may be asked for again.
    hint_at: Option<Instant>,
}

/// What is to be asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ask {
    All,
    MoreUrgent,
    Nothing,
}

impl Freed {
    /// Outcomes are written that make jobs due.
    pub(super) fn on_freed(&mut self) {
        self.state = State::Unasked;
    }

    /// Whether there are such jobs that were not asked for.
    pub(super) fn has_any(&self) -> bool {
        self.state != State::Nothing
    }

    /// Decides what is asked for now. `asks_for_all`: a claim of all jobs is worth its cost.
    pub(super) fn ask(&mut self, now: Instant, asks_for_all: bool) -> Ask {
        if self.has_any() && asks_for_all {
            self.state = State::Nothing;
            return Ask::All;
        }
        if self.state == State::Unasked && self.hint_at.is_none_or(|time| time <= now) {
            (self.hint_at, self.state) = (Some(now + HINTS), State::AskedForUrgent);
            return Ask::MoreUrgent;
        }
        Ask::Nothing
    }

    pub(super) fn next_timer(&self, now: Instant) -> Option<Instant> {
        self.hint_at.filter(|time| self.state == State::Unasked && *time > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_followed_by_claims_of_all_jobs_or_of_more_urgent_ones_at_times() {
        let now = Instant::now();
        let mut freed = Freed::default();
        assert_eq!(freed.ask(now, true), Ask::Nothing);
        freed.on_freed();
        assert_eq!(freed.ask(now, false), Ask::MoreUrgent);
        assert!(freed.has_any() && freed.next_timer(now).is_none());
        freed.on_freed();
        assert_eq!((freed.ask(now, false), freed.next_timer(now)), (Ask::Nothing, Some(now + HINTS)));
        assert_eq!(freed.ask(now + HINTS, false), Ask::MoreUrgent);
        assert_eq!(freed.ask(now + HINTS, true), Ask::All);
        assert!(!freed.has_any());
    }
}
