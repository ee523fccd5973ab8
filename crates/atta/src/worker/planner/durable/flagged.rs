//! How often claims read all jobs with flags, of which most may be forbidden. Other claims read the first thousand of
//! each task and priority.

use std::time::{Duration, Instant};

/// The pause between two claims that read all, as a multiple of the duration of the first one.
pub(super) const REST: u32 = 50;

#[derive(Debug, Default)]
pub(super) struct FlaggedPace {
    /// When a claim may read all again. None: at any time.
    not_before: Option<Instant>,
    /// A claim did not read all, and brought less than it asked for.
    is_owed: bool,
}

impl FlaggedPace {
    /// Whether the next claim may read all.
    pub(super) fn reads_all(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|time| time <= now)
    }

    /// A claim has read all, in this time.
    pub(super) fn on_read(&mut self, now: Instant, took: Duration, has_forbidden: bool) {
        (self.is_owed, self.not_before) = (false, has_forbidden.then_some(now + took * REST));
    }

    /// A claim has not read all, although there was room for more jobs.
    pub(super) fn owe(&mut self) {
        self.is_owed = true;
    }

    /// Whether a claim that reads all is owed, and may be sent now. It is then no longer owed.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        let is_due = self.is_owed && self.reads_all(now);
        self.is_owed &= !is_due;
        is_due
    }

    pub(super) fn next_timer(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|time| self.is_owed && *time > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_is_owed_is_due_after_the_pause() {
        let (now, took) = (Instant::now(), Duration::from_millis(1));
        let mut pace = FlaggedPace::default();
        assert!(pace.reads_all(now) && !pace.take_due(now), "nothing is owed");
        pace.on_read(now, took, false);
        assert!(pace.reads_all(now), "nothing is forbidden");
        pace.on_read(now, took, true);
        assert!(!pace.reads_all(now) && pace.next_timer(now).is_none());
        pace.owe();
        let until = now + took * REST;
        assert!(!pace.take_due(now) && pace.next_timer(now) == Some(until));
        assert!(pace.take_due(until) && !pace.take_due(until));
    }
}
