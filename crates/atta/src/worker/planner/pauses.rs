//! Pauses of one kind of claims, each with its reason. What sets a pause for one reason never ends a pause for another.

use std::time::Instant;

/// Why no claim is sent for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The last claims failed.
    Errors,
    /// The last claim found nothing, and took some time for it.
    FoundNothing,
    /// The delay that the options ask for after a claim that brought few jobs.
    Refetch,
    /// A claim brought jobs that this worker already has. The batch that had them first claims them again meanwhile.
    ClaimedTwice,
    /// Jobs that were claimed waited for too long, and were returned for other workers.
    Returned,
}

/// At most one pause for each reason.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    until: [Option<Instant>; 5],
}

impl Pauses {
    /// Begins a pause, instead of an earlier one for the same reason.
    pub(super) fn begin(&mut self, why: Why, until: Instant) {
        self.until[why as usize] = Some(until);
    }

    /// Ends the pause for this reason.
    pub(super) fn end(&mut self, why: Why) {
        self.until[why as usize] = None;
    }

    /// Ends all pauses that jobs which came in may end. While the database fails, nothing shortens the pause.
    pub(super) fn end_all_but_errors(&mut self) {
        let errors = self.until[Why::Errors as usize];
        *self = Pauses::default();
        self.until[Why::Errors as usize] = errors;
    }

    /// When the last of the pauses ends. None: there is none now.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        self.until.iter().flatten().filter(|until| **until > now).max().copied()
    }

    /// Whether there is no pause.
    pub(super) fn are_over(&self, now: Instant) -> bool {
        self.until(now).is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn pauses_for_different_reasons_do_not_end_one_another() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let mut pauses = Pauses::default();
        assert!(pauses.are_over(now));
        pauses.begin(Why::Errors, at(100));
        pauses.begin(Why::Refetch, at(50));
        assert_eq!((pauses.until(now), pauses.until(at(60))), (Some(at(100)), Some(at(100))));
        pauses.end(Why::Refetch);
        pauses.begin(Why::FoundNothing, at(200));
        assert_eq!(pauses.until(now), Some(at(200)));
        pauses.end_all_but_errors();
        assert_eq!(pauses.until(now), Some(at(100)), "hints do not shorten the pause after errors");
        assert!(pauses.are_over(at(100)));
        pauses.begin(Why::Errors, at(10));
        assert_eq!(pauses.until(now), Some(at(10)), "a new pause replaces one for the same reason");
    }
}
