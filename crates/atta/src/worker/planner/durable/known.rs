//! Up to which point in the order of jobs every due job is claimed, among those that are claimed durably.

use super::super::scan::NOTHING;
use crate::job::Order;

#[derive(Debug)]
pub(super) struct Known {
    /// Every job that is more urgent than this has been claimed.
    to: Order,
    /// How often something was forgotten. A claim that was sent before that does not change `to`.
    epoch: u64,
    /// The values of both before jobs were announced that a pick searches for. If it finds all of them, they are
    /// restored.
    before_announced: Option<(Order, u64)>,
}

impl Known {
    pub(super) fn new() -> Known {
        Known { to: NOTHING, epoch: 0, before_announced: None }
    }

    pub(super) fn to(&self) -> Order {
        self.to
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether nothing was forgotten since a claim of this epoch was sent.
    pub(super) fn is_current(&self, epoch: u64) -> bool {
        epoch == self.epoch
    }

    /// A claim of the current epoch has found out more.
    pub(super) fn learn(&mut self, to: Order) {
        (self.to, self.before_announced) = (to, None);
    }

    /// Only jobs that are more urgent than this are known to be claimed.
    pub(super) fn forget(&mut self, to: Order) {
        self.to = self.to.min(to);
        self.epoch += 1;
    }

    /// Jobs were announced. Nothing is known until they are found. Returns whether anything was known.
    pub(super) fn forget_for_announced(&mut self) -> bool {
        let is_known = self.to > NOTHING;
        if is_known {
            self.before_announced = Some((self.to, self.epoch));
            self.forget(NOTHING);
        }
        is_known
    }

    /// A pick has found all jobs that were announced, or not. Returns whether something was forgotten for them that
    /// stays forgotten.
    pub(super) fn settle_announced(&mut self, found_all: bool) -> bool {
        let Some(before) = self.before_announced.take() else { return false };
        if found_all {
            (self.to, self.epoch) = before;
        }
        !found_all
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::super::super::scan::EVERYTHING;
    use super::*;

    const SOME: Order = (0, DateTime::UNIX_EPOCH, 5);

    #[test]
    fn what_is_forgotten_stays_forgotten_until_it_is_learnt_again() {
        let mut known = Known::new();
        let epoch = known.epoch();
        known.learn(EVERYTHING);
        known.forget(SOME);
        assert!(known.to() == SOME && !known.is_current(epoch));
        known.forget(EVERYTHING);
        assert_eq!(known.to(), SOME, "forgetting adds nothing");
        known.learn(EVERYTHING);
        assert_eq!(known.to(), EVERYTHING);
    }

    #[test]
    fn an_announcement_whose_jobs_are_all_found_changes_nothing() {
        for found_all in [true, false] {
            let mut known = Known::new();
            assert!(!known.forget_for_announced() && !known.settle_announced(false), "nothing was known");
            known.learn(SOME);
            let epoch = known.epoch();
            assert!(known.forget_for_announced() && known.to() == NOTHING);
            assert_eq!(known.settle_announced(found_all), !found_all);
            assert_eq!((known.to() == SOME, known.is_current(epoch)), (found_all, found_all));
        }
    }

    #[test]
    fn a_claim_after_an_announcement_is_newer_than_what_was_known_before() {
        let mut known = Known::new();
        known.learn(EVERYTHING);
        known.forget_for_announced();
        known.learn(SOME);
        assert!(!known.settle_announced(true) && known.to() == SOME);
    }
}
