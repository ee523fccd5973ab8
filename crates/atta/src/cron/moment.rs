//! Minutes: as a count, as the fields that a pattern matches, and as local time.

use chrono::{DateTime, Datelike, Duration, LocalResult, NaiveDateTime, TimeZone, Timelike, Utc};
use chrono_tz::Tz;

/// A minute, counted from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Minute(pub(crate) i64);

impl Minute {
    /// The minute that `time` is in.
    pub(crate) fn of(time: DateTime<Utc>) -> Minute {
        Minute(time.timestamp().div_euclid(60))
    }

    /// The first minute that does not begin before `time`.
    pub(crate) fn not_before(time: DateTime<Utc>) -> Minute {
        let minute = Minute::of(time);
        if minute.begin() < time { minute.next() } else { minute }
    }

    pub(crate) fn next(self) -> Minute {
        Minute(self.0.saturating_add(1))
    }

    /// When it begins; outside of chrono's range, the end of that range.
    pub(crate) fn begin(self) -> DateTime<Utc> {
        DateTime::from_timestamp(self.0.saturating_mul(60), 0).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }
}

/// A minute as patterns and match functions get it; in UTC, unless the item has a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CronDigest {
    /// 0 to 59.
    pub minute: u32,
    /// 0 to 23.
    pub hour: u32,
    /// The day of the month, 1 to 31.
    pub date: u32,
    /// 1 to 12.
    pub month: u32,
    /// 0 (Sunday) to 6 (Saturday).
    pub day_of_week: u32,
}

impl CronDigest {
    pub(super) fn of(time: &impl DateAndTime) -> CronDigest {
        CronDigest {
            minute: time.minute(),
            hour: time.hour(),
            date: time.day(),
            month: time.month(),
            day_of_week: time.weekday().num_days_from_sunday(),
        }
    }
}

/// Any type with a date and a time of day.
pub(super) trait DateAndTime: Datelike + Timelike {}
impl<T: Datelike + Timelike> DateAndTime for T {}

/// One minute of a clock.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) digest: CronDigest,
    /// The clock was set back, and has shown this minute before.
    pub(super) repeated: bool,
    /// The minutes that this clock has just skipped, because it was set forward.
    pub(super) left_out: Vec<CronDigest>,
}

impl Moment {
    pub(super) fn utc(minute: Minute) -> Moment {
        Moment { digest: CronDigest::of(&minute.begin()), repeated: false, left_out: Vec::new() }
    }

    pub(super) fn at(minute: Minute, zone: Option<Tz>) -> Moment {
        match zone {
            Some(zone) => Moment::local(minute, zone).unwrap_or_else(|| Moment::utc(minute)),
            None => Moment::utc(minute),
        }
    }

    /// None at the ends of chrono's range.
    fn local(minute: Minute, zone: Tz) -> Option<Moment> {
        let now = wall_clock(minute.begin(), zone)?;
        let before = wall_clock(minute.begin() - Duration::minutes(1), zone)?;
        Some(Moment {
            digest: CronDigest::of(&now),
            repeated: is_second(minute, now, zone),
            left_out: between(before, now),
        })
    }
}

fn wall_clock(time: DateTime<Utc>, zone: Tz) -> Option<NaiveDateTime> {
    // Two days away from both ends, since local times there can't be computed.
    let inside = DateTime::<Utc>::MIN_UTC + Duration::days(2)..DateTime::<Utc>::MAX_UTC - Duration::days(2);
    let local = inside.contains(&time).then(|| zone.from_utc_datetime(&time.naive_utc()).naive_local())?;
    // Until about 1900 the offsets of time zones contained seconds.
    local.with_second(0)
}

fn is_second(minute: Minute, local: NaiveDateTime, zone: Tz) -> bool {
    match zone.from_local_datetime(&local) {
        LocalResult::Ambiguous(first, _) => Minute::of(first.to_utc()) < minute,
        _ => false,
    }
}

/// The minutes strictly between two readings of a clock that should be one minute apart.
fn between(before: NaiveDateTime, now: NaiveDateTime) -> Vec<CronDigest> {
    let step = Duration::minutes(1);
    let mut left_out = Vec::new();
    let mut time = before + step;
    while time < now {
        left_out.push(CronDigest::of(&time));
        time += step;
    }
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(time: &str, zone: Tz) -> Moment {
        Moment::at(Minute::of(time.parse().unwrap()), Some(zone))
    }

    #[test]
    fn minutes_begin_where_they_should_also_before_1970() {
        let time: DateTime<Utc> = "1969-12-31T23:58:30Z".parse().unwrap();
        assert_eq!(Minute::of(time).begin().to_rfc3339(), "1969-12-31T23:58:00+00:00");
        assert_eq!(Minute::not_before(time).begin().to_rfc3339(), "1969-12-31T23:59:00+00:00");
        assert_eq!(Minute::not_before(Minute::of(time).begin()), Minute::of(time));
    }

    #[test]
    fn an_hour_is_left_out_in_spring_and_repeated_in_autumn() {
        let spring = moment("2026-03-29T01:00:00Z", Tz::Europe__Paris);
        assert_eq!((spring.digest.hour, spring.left_out.len(), spring.repeated), (3, 60, false));
        let first = moment("2026-10-25T00:30:00Z", Tz::Europe__Paris);
        let second = moment("2026-10-25T01:30:00Z", Tz::Europe__Paris);
        assert_eq!((first.digest, first.repeated, second.repeated), (second.digest, false, true));
    }

    #[test]
    fn lord_howe_moves_by_half_an_hour() {
        let spring = moment("2026-10-03T15:30:00Z", Tz::Australia__Lord_Howe);
        assert_eq!((spring.digest.hour, spring.digest.minute, spring.left_out.len()), (2, 30, 30));
        assert!(moment("2026-04-04T15:00:00Z", Tz::Australia__Lord_Howe).repeated);
    }

    #[test]
    fn the_ends_of_the_calendar_are_no_trouble() {
        for time in [DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC] {
            let _ = Moment::at(Minute::of(time), Some(Tz::Asia__Tokyo));
        }
        assert_eq!(Minute(i64::MAX).next().begin(), DateTime::<Utc>::MAX_UTC);
    }
}
