//! Durations as users write them: `50ms`, `2s`, `1h30m`, `1.5 hours`; a bare number is in milliseconds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration in the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// The longest text that is read, in bytes. humantime panics if a sum of seconds is exactly `u64::MAX` and another full
/// second follows in smaller units; such a text is longer than this.
const LONGEST_TEXT: usize = 22;

/// A hundred years, in milliseconds: anything longer means never.
const CENTURY: u64 = 36_525 * 86_400_000;

const EXPECTED: &str = "expected a duration such as 500ms, 2s, 5m, 4h or 1h30m, or milliseconds";

/// Reads a duration with units.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    // humantime reads M as months, which nobody means by it here.
    if text.len() > LONGEST_TEXT || text.contains(char::is_uppercase) {
        return None;
    }
    humantime::parse_duration(text).ok()
}

impl FromStr for Span {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Span, &'static str> {
        let text = text.trim();
        if let Ok(milliseconds) = text.parse() {
            return Ok(Span(Duration::from_millis(milliseconds)));
        }
        let duration = parse_duration(text).ok_or(EXPECTED)?;
        let milliseconds = u64::try_from(duration.as_millis()).map_err(|_| EXPECTED)?;
        // A fraction of a millisecond would not be in force, but shown as if it were.
        if Duration::from_millis(milliseconds) == duration { Ok(Span(duration)) } else { Err(EXPECTED) }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        match rest {
            0 => return f.write_str("0s"),
            // Its units would make a text that is too long to be read again.
            CENTURY.. => return write!(f, "{rest}"),
            _ => {}
        }
        for (name, size) in UNITS {
            if rest >= size {
                write!(f, "{}{name}", rest / size)?;
                rest %= size;
            }
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a duration such as \"2s\", or milliseconds")]
        enum Written {
            Milliseconds(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Milliseconds(milliseconds) => Ok(Span(Duration::from_millis(milliseconds))),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_own_output_and_bare_milliseconds_can_be_parsed() {
        for (text, milliseconds) in
            [("2000", 2000), ("50ms", 50), ("2s", 2000), ("1h30m", 5_400_000), ("1d", 86_400_000), ("0s", 0)]
                .into_iter()
                .chain([(" 5 s ", 5000), ("1h 30m", 5_400_000), ("1 d 2 h 3 m 4 s 500 ms", 93_784_500)])
                .chain([("1 minute", 60_000), ("2 weeks", 1_209_600_000), ("1.5s", 1500)])
                .chain([("18446744073709551615", u64::MAX), ("36524d23h59m59s999ms", CENTURY - 1)])
        {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.0, Duration::from_millis(milliseconds), "{text}");
            assert_eq!(span.to_string().parse(), Ok(span), "{text}");
        }
        for text in [
            "",
            "s",
            "-1",
            "soon",
            "5M",
            "1h30",
            "1us",
            "1.0005s",
            "99999999999999999999d",
            "18446744073709551615s",
            "18446744073709551615s1000ms",
        ] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
