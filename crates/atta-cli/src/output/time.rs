//! Times as they are printed: `in 5 min`, `3 h ago`; and as users enter them: `5m`, `2h`, `2026-05-01T08:00:00Z`.

use atta::WorkerUtils;
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};

use super::Failure;
use crate::settings::parse_duration;

/// The longest time span that is accepted, counted from 1970: PostgreSQL would accept no more.
const LONGEST: TimeDelta = TimeDelta::days(10_000 * 366);

/// How far away a time is from `now`.
pub(crate) fn from_now(time: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let seconds = (time - now).as_seconds_f64().round() as i64;
    match seconds {
        0 => "now".to_owned(),
        1.. => format!("in {}", span(seconds)),
        _ => format!("{} ago", span(-seconds)),
    }
}

/// A time, and how far away it is.
pub(crate) fn both(time: DateTime<Utc>, now: DateTime<Utc>) -> String {
    format!("{} ({})", exact(time), from_now(time, now))
}

/// RFC 3339 in UTC.
pub(crate) fn exact(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

/// Rounded, in the largest unit that is precise enough.
fn span(seconds: i64) -> String {
    let (minute, hour, day) = (60, 3600, 86_400);
    let rounded = |unit: i64| (seconds + unit / 2) / unit;
    match seconds {
        _ if seconds < 2 * minute => format!("{seconds} s"),
        _ if seconds < 2 * hour => format!("{} min", rounded(minute)),
        _ if seconds < 2 * day => format!("{} h", rounded(hour)),
        _ if seconds < 2 * 365 * day => format!("{} d", rounded(day)),
        _ => format!("{} years", rounded(365 * day)),
    }
}

/// A time as users enter it: the time itself, or how long until then, which is negative for times in the past. In the
/// latter case it depends on the clock that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    At(DateTime<Utc>),
    In(TimeDelta),
}

impl When {
    /// The time, if it is `now` now.
    pub(crate) fn after(self, now: DateTime<Utc>) -> DateTime<Utc> {
        match self {
            When::At(time) => time,
            When::In(span) => now.checked_add_signed(span).unwrap_or(DateTime::<Utc>::MAX_UTC),
        }
    }

    /// The time by the database's clock, which decides when a job is due. Queries the database only if needed.
    pub(crate) async fn on(self, utils: &WorkerUtils) -> Result<DateTime<Utc>, Failure> {
        match self {
            When::At(time) => Ok(time),
            When::In(_) => Ok(self.after(utils.read_clock().await?)),
        }
    }
}

/// Reads a time, or how long until then: `5m`.
pub(crate) fn parse_when(text: &str) -> Result<When, String> {
    match (text, parse_span(text)) {
        ("now", _) => Ok(When::In(TimeDelta::zero())),
        (_, Some(span)) => Ok(When::In(span)),
        (_, None) => parse(text, DateTime::<Utc>::MIN_UTC).map(When::At),
    }
}

/// Reads a time, or how long ago: `2d`.
pub(crate) fn parse_ago(text: &str) -> Result<When, String> {
    match parse_when(text)? {
        When::In(span) => Ok(When::In(-span)),
        at => Ok(at),
    }
}

/// Reads how long ago, and no time.
pub(crate) fn parse_span_ago(text: &str) -> Result<When, String> {
    match parse_span(text) {
        Some(span) => Ok(When::In(-span)),
        None => Err("expected a duration: 30s, 5m, 2h, 1d, 1w, 1h30m".to_owned()),
    }
}

/// Reads a time, or how long until then by the clock of this machine.
pub(crate) fn parse_future(text: &str) -> Result<DateTime<Utc>, String> {
    parse(text, Utc::now())
}

fn parse(text: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, String> {
    if text == "now" {
        return Ok(now);
    }
    if let Some(span) = parse_span(text) {
        return now.checked_add_signed(span).ok_or_else(|| "is too far away".to_owned());
    }
    match DateTime::parse_from_rfc3339(text) {
        Ok(time) => Ok(time.to_utc()),
        Err(_) => {
            Err("expected a time with its zone, as in 2026-05-01T08:00:00Z, or a span: 30s, 5m, 2h, 1d, 1w, \
                       1h30m"
                .to_owned())
        }
    }
}

/// A time span such as `1h30m`, as in settings, but in one word.
fn parse_span(text: &str) -> Option<TimeDelta> {
    if text.contains(char::is_whitespace) {
        return None;
    }
    let span = TimeDelta::from_std(parse_duration(text)?).ok()?;
    (span <= LONGEST).then_some(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    #[test]
    fn durations_are_printed_in_one_unit() {
        let now = at("2026-05-01T08:00:00Z");
        for (seconds, said) in [
            (0, "now"),
            (-1, "1 s ago"),
            (119, "in 119 s"),
            (299, "in 5 min"),
            (-3 * 3600, "3 h ago"),
            (3 * 86_400, "in 3 d"),
            (-800 * 86_400, "2 years ago"),
        ] {
            assert_eq!(from_now(now + TimeDelta::seconds(seconds), now), said);
        }
    }

    #[test]
    fn a_span_counts_from_whatever_time_it_is() {
        let now = at("2026-05-01T08:00:00Z");
        assert_eq!(parse_when("1h30m").unwrap().after(now), at("2026-05-01T09:30:00Z"));
        assert_eq!(parse_when("now").unwrap().after(now), now);
        assert_eq!(parse_when("2026-05-01T10:00:00+02:00").unwrap(), When::At(now));
        for wrong in ["", "5", "5 m", "9999999999d", "2026-05-01"] {
            assert!(parse_when(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_span_of_the_past_counts_backwards() {
        let now = at("2026-05-01T08:00:00Z");
        assert_eq!(parse_ago("1h30m").unwrap().after(now), at("2026-05-01T06:30:00Z"));
        assert_eq!(parse_ago("2026-05-01T10:00:00+02:00").unwrap(), When::At(now));
        assert_eq!(parse_span_ago("1d").unwrap().after(now), at("2026-04-30T08:00:00Z"));
        assert!(parse_ago("yesterday").is_err() && parse_span_ago("2026-05-01T10:00:00Z").is_err());
    }

    #[test]
    fn times_and_spans_are_understood_and_nothing_else() {
        let now = at("2026-05-01T08:00:00Z");
        assert_eq!(parse("1h30m", now), Ok(at("2026-05-01T09:30:00Z")));
        assert_eq!(parse("1m1h30s1d0s", now), Ok(at("2026-05-02T09:01:30Z")));
        assert_eq!(parse("2026-05-01T10:00:00+02:00", now), Ok(now));
        for wrong in ["", "5", "m", "5 m", "5x", "-5m", "2026-05-01", "99999999999999999999d", "9999999999d"]
        {
            assert!(parse(wrong, now).is_err(), "{wrong:?}");
        }
    }
}
