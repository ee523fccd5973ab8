//! Durable claims of one level: while all jobs without a queue have one task and one priority, a claim begins where the
//! last one ended.
//!
//! Completed jobs stay in the index until a vacuum, so a claim from the start of the level may have to walk over many
//! of them. Such a claim is needed from time to time, since a job may have been added before the position.
//!
//! Planning takes 5 ms for `claim_level.sql` and 22 ms for a general claim. Without positions, each claim walked over
//! all completed jobs that could not be removed yet; while an autovacuum analysed the table, a drain of 200,000 jobs
//! took minutes.

use std::time::{Duration, Instant};

use super::super::claim::{Claimable, Level};
use super::scan::EVERYTHING;

/// The shortest pause between claims that read the level from its start, while there is more than can be claimed.
const REST: Duration = Duration::from_millis(50);

/// A claim from the start that is as quick as this needs no pause.
const QUICK: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
pub(super) struct LevelPace {
    /// None: the jobs have several tasks or priorities, or nothing is known.
    level: Option<Level>,
    /// When the last claim from the start ended, and how long it took.
    start: Option<(Instant, Duration)>,
    /// Jobs may have come in before the position since then.
    is_hinted: bool,
}

impl LevelPace {
    /// Nothing is known of the level.
    pub(super) fn forget(&mut self) {
        self.level = None;
    }

    /// The next claim begins at the start.
    pub(super) fn forget_position(&mut self) {
        if let Some(level) = &mut self.level {
            (level.position, level.ahead) = (None, None);
        }
    }

    /// The level that a claim of this number of jobs asks for.
    pub(super) fn request(&self, now: Instant, count: usize, is_hinted: bool) -> Option<Level> {
        let level = self.level.clone()?;
        match self.is_start_due(now, is_hinted) {
            true => Some(Level { position: None, ahead: None, ..level }),
            false => Some(Level { ahead: level.ahead.filter(|(_, seen)| *seen <= count), ..level }),
        }
    }

    fn is_start_due(&self, now: Instant, is_hinted: bool) -> bool {
        let rest = |took: Duration| match self.is_hinted || is_hinted {
            _ if took <= QUICK => Duration::ZERO,
            true => REST.max(2 * took),
            false => 20 * took.max(REST),
        };
        self.start.is_none_or(|(ended, took)| ended + rest(took) <= now)
    }

    /// A claim is sent. If it asks for the jobs that the last claim has seen, the next claim asks for those behind
    /// them.
    pub(super) fn on_sent(&mut self, wanted: &Claimable, is_hinted: bool) {
        let has_position = wanted.level.as_ref().is_some_and(|level| level.position.is_some());
        self.is_hinted = has_position && (self.is_hinted || is_hinted);
        if wanted.is_of_seen()
            && let Some(level) = &mut self.level
        {
            level.position = level.ahead.take().map(|(position, _)| position);
        }
    }

    /// A claim was answered and has taken jobs of this level only. `is_current` unless something was forgotten since it
    /// was sent.
    pub(super) fn on_answered(&mut self, found: Level, is_current: bool) {
        if !is_current {
            self.level = None;
            return;
        }
        // The claim's answer may have been noted already, and later claims since.
        let is_known = |level: &Level| level.is_same(&found) && level.position >= found.position;
        if !self.level.as_ref().is_some_and(is_known) {
            self.level = Some(found);
        }
    }

    /// A claim has ended, in this time. `found` if it brought all that it asked for, and jobs of one level only.
    pub(super) fn on_claimed(
        &mut self,
        now: Instant,
        wanted: &Claimable,
        found: Option<Level>,
        took: Duration,
        is_current: bool,
    ) {
        if wanted.before < EVERYTHING || wanted.is_of_seen() {
            return;
        }
        if wanted.level.as_ref().is_none_or(|level| level.position.is_none()) {
            self.start = Some((now, took));
        }
        match found {
            Some(found) => self.on_answered(found, is_current),
            None => self.level = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::super::super::claim::Position;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn position(id: i64) -> Position {
        (DateTime::UNIX_EPOCH, id)
    }

    fn level(at: i64, ahead: Option<i64>) -> Level {
        let ahead = ahead.map(|id| (position(id), 10));
        Level { task_identifier: "t".into(), priority: 0, position: Some(position(at)), ahead }
    }

    fn wanted(now: Instant, level: Option<Level>) -> Claimable {
        Claimable { level, ..Claimable::for_tests(now) }
    }

    /// A level that is known up to job 10, and has seen up to 20, by a claim from the start that took this time.
    fn known(now: Instant, took: Duration) -> LevelPace {
        let mut pace = LevelPace::default();
        pace.on_claimed(now, &wanted(now, None), Some(level(10, Some(20))), took, true);
        pace
    }

    #[test]
    fn claims_continue_where_the_last_one_ended() {
        let now = Instant::now();
        let mut pace = known(now, 10 * MS);
        let first = wanted(now, pace.request(now, 10, false));
        assert!(first.is_of_seen());
        pace.on_sent(&first, false);
        let second = pace.request(now, 10, false).unwrap();
        assert_eq!(
            (second.position, second.ahead),
            (Some(position(20)), None),
            "behind what the first one takes"
        );
    }

    #[test]
    fn the_start_is_read_again_after_a_pause_in_proportion_to_its_duration() {
        let now = Instant::now();
        // How long the last claim from the start took, whether jobs came in, when the next one is due.
        let cases = [(MS, false, 0), (10 * MS, false, 1000), (10 * MS, true, 50), (100 * MS, true, 200)];
        for (took, is_hinted, due) in cases {
            let pace = known(now, took);
            let from_start = |ms| pace.request(now + ms * MS, 10, is_hinted).unwrap().position.is_none();
            assert!(from_start(due), "{took:?} {is_hinted}");
            assert!(due == 0 || !from_start(due - 1), "{took:?} {is_hinted}");
        }
    }

    #[test]
    fn what_an_outdated_or_mixed_claim_found_is_not_used() {
        let now = Instant::now();
        let mut pace = known(now, MS);
        pace.on_claimed(now, &wanted(now, None), None, MS, true);
        assert!(pace.request(now, 10, false).is_none(), "jobs of several levels");
        let mut pace = known(now, MS);
        pace.on_answered(level(30, None), false);
        assert!(pace.request(now, 10, false).is_none(), "something was forgotten since");
        let mut pace = known(now, 10 * MS);
        pace.on_answered(level(5, None), true);
        assert_eq!(pace.request(now, 10, false).unwrap().position, Some(position(10)), "an older position");
        pace.forget_position();
        assert_eq!(pace.request(now, 10, false).unwrap().position, None);
    }
}
