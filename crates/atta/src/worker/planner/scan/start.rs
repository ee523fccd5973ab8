//! When a pick begins at the start of its levels, and not where the last one ended.

use std::time::{Duration, Instant};

use super::request::Kind;

/// The pause after a pick from the start, as a multiple of its duration, while there are more jobs than can be picked.
const REST_WHILE_FULL: u32 = 20;

/// The same after a hint, when something may have come in before the position.
const REST_AFTER_HINT: u32 = 5;

/// The same otherwise.
const REST: u32 = 10;

/// The same for jobs with flags: most that are left there are forbidden to this worker, and stay.
const REST_FLAGGED: u32 = 50;

/// The longest pause. A pick may have taken long for another reason than the rows that it read, for example because the
/// server or this process was stopped.
const LONGEST_REST: Duration = Duration::from_secs(20);

/// A pick from the start that is as quick as this needs no pause.
const QUICK: Duration = Duration::from_millis(2);

/// The picks from the start of one kind.
#[derive(Debug, Default)]
pub(super) struct StartPace {
    /// A pick from a position was sent since the last from the start.
    pub(super) is_owed: bool,
    was_hinted: bool,
    /// When the last pick from the start came back, and how long it took.
    last: Option<(Instant, Duration)>,
}

impl StartPace {
    /// Something may have come in before the position.
    pub(super) fn hint(&mut self) {
        self.was_hinted = true;
    }

    /// A pick was sent, from the start or from a position.
    pub(super) fn on_sent(&mut self, from_start: bool, uses_position: bool) {
        if from_start || uses_position {
            self.is_owed = !from_start;
        }
        if from_start {
            self.was_hinted = false;
        }
    }

    /// A pick from the start came back.
    pub(super) fn on_back(&mut self, now: Instant, took: Duration) {
        self.last = Some((now, took));
    }

    /// When the next one may be sent. None: at once. `is_full` if the last pick brought all that it asked for. Without
    /// `always_pauses`, a pick that came back short needs no pause.
    pub(super) fn not_before(&self, kind: Kind, is_full: bool, always_pauses: bool) -> Option<Instant> {
        let (ended, took) = self.last?;
        let rest = match kind {
            Kind::Flagged => REST_FLAGGED,
            Kind::Plain if self.was_hinted => REST_AFTER_HINT,
            Kind::Plain if is_full => REST_WHILE_FULL,
            Kind::Plain => REST,
        };
        let needs_rest = is_full || (always_pauses && took > QUICK);
        needs_rest.then(|| ended + (took * rest).min(LONGEST_REST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_pause_is_in_proportion_to_the_last_pick() {
        // The kind, whether a hint came in, whether the last pick was full, how long it took, and the pause.
        let cases = [
            (Kind::Plain, false, false, QUICK, None),
            (Kind::Plain, false, false, 10 * MS, Some(10 * MS * REST)),
            (Kind::Plain, true, false, 10 * MS, Some(10 * MS * REST_AFTER_HINT)),
            (Kind::Plain, false, true, MS, Some(MS * REST_WHILE_FULL)),
            (Kind::Plain, true, true, MS, Some(MS * REST_AFTER_HINT)),
            (Kind::Flagged, true, false, 10 * MS, Some(10 * MS * REST_FLAGGED)),
            (Kind::Plain, true, true, 9000 * MS, Some(LONGEST_REST)),
            (Kind::Flagged, false, false, 9000 * MS, Some(LONGEST_REST)),
        ];
        let now = Instant::now();
        for (kind, is_hinted, is_full, took, pause) in cases {
            let mut pace = StartPace::default();
            assert_eq!(pace.not_before(kind, is_full, true), None, "the first needs no pause");
            pace.on_back(now, took);
            if is_hinted {
                pace.hint();
            }
            let expected = pause.map(|pause| now + pause);
            assert_eq!(
                pace.not_before(kind, is_full, true),
                expected,
                "{kind:?} {is_hinted} {is_full} {took:?}"
            );
            let without_pauses = pace.not_before(kind, is_full, false);
            assert_eq!(without_pauses, expected.filter(|_| is_full), "without it only a full pick pauses");
        }
    }

    #[test]
    fn a_pick_from_a_position_owes_one_from_the_start() {
        let mut pace = StartPace::default();
        pace.on_sent(false, false);
        assert!(!pace.is_owed, "nothing was left out");
        pace.on_sent(false, true);
        assert!(pace.is_owed);
        pace.on_sent(true, false);
        assert!(!pace.is_owed);
    }
}
