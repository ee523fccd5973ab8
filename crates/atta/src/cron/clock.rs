//! The clock that cron follows: the database's, so that all workers agree on it, whatever their machines show.
//!
//! The worker reads the database's time before each minute's jobs are added, and at least once per minute. In between,
//! it uses this machine's clock, corrected by the difference found. Tests pass a clock of their own, which is used as
//! it is.

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};

use crate::testing::Clock;

/// How long a measured difference is used. A little more than a minute, since every tick measures it anyway.
const LIFETIME: Duration = Duration::from_secs(70);

/// A larger difference is reported.
const TOLERANCE: TimeDelta = TimeDelta::minutes(1);

/// The time that cron uses.
#[derive(Debug)]
pub(crate) enum CronClock {
    /// The clock of a test.
    Given(Clock),
    /// The clock of the database.
    Database(Difference),
}

/// The difference between this machine's clock and the database's.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// What must be added to this machine's time.
    correction: TimeDelta,
    found_at: Option<Instant>,
    /// Whether it was above the tolerance at the last measurement.
    is_large: bool,
}

impl CronClock {
    pub(crate) fn new(given: Option<Clock>) -> CronClock {
        given.map_or_else(|| CronClock::Database(Difference::default()), CronClock::Given)
    }

    /// The time, by the last measurement.
    pub(super) fn now(&self) -> DateTime<Utc> {
        match self {
            CronClock::Given(clock) => clock.now(),
            CronClock::Database(difference) => difference.correct(Utc::now()),
        }
    }

    /// Whether the database's time must be read before this clock can be used.
    pub(super) fn is_stale(&self) -> bool {
        match self {
            CronClock::Given(_) => false,
            CronClock::Database(difference) => {
                difference.found_at.is_none_or(|found_at| found_at.elapsed() > LIFETIME)
            }
        }
    }

    /// The difference to the database's clock; none if that clock is not used.
    pub(super) fn difference(&mut self) -> Option<&mut Difference> {
        match self {
            CronClock::Given(_) => None,
            CronClock::Database(difference) => Some(difference),
        }
    }
}

impl Difference {
    fn correct(&self, local: DateTime<Utc>) -> DateTime<Utc> {
        local.checked_add_signed(self.correction).unwrap_or(local)
    }

    /// Records the database's time, which was read when this machine's clock showed `local`. When the difference has
    /// become larger than the tolerance, returns once how far this machine's clock is ahead.
    pub(super) fn note(&mut self, database: DateTime<Utc>, local: DateTime<Utc>) -> Option<TimeDelta> {
        let was_large = self.is_large;
        self.correction = database - local;
        self.found_at = Some(Instant::now());
        self.is_large = self.correction.abs() > TOLERANCE;
        (self.is_large && !was_large).then_some(-self.correction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str) -> DateTime<Utc> {
        format!("2026-03-01T{time}Z").parse().unwrap()
    }

    #[test]
    fn the_time_is_the_databases_whatever_this_machine_shows() {
        let mut difference = Difference::default();
        assert_eq!(difference.note(at("08:00:00"), at("20:00:00")), Some(TimeDelta::hours(12)));
        assert_eq!(difference.correct(at("20:00:30")), at("08:00:30"));
        // Reported once, until it has been small again.
        assert_eq!(difference.note(at("08:01:00"), at("20:01:00")), None);
        assert_eq!(difference.note(at("08:02:00"), at("08:02:50")), None);
        assert_eq!(difference.note(at("08:03:00"), at("08:01:00")), Some(-TimeDelta::minutes(2)));
    }

    #[test]
    fn a_given_clock_is_believed() {
        let clock = Clock::system();
        clock.advance(TimeDelta::days(100));
        let mut given = CronClock::new(Some(clock));
        assert!(!given.is_stale() && given.difference().is_none());
        assert!(given.now() > Utc::now() + TimeDelta::days(99));
        assert!(CronClock::new(None).is_stale());
    }
}
