//! Durations as users write them: `50ms`, `2s`, `1h30m`; a bare number is in milliseconds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration in the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

const EXPECTED: &str = "expected a duration such as 500ms, 2s, 5m, 4h or 1h30m, or milliseconds";

impl FromStr for Span {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Span, &'static str> {
        let text = text.trim();
        if let Ok(milliseconds) = text.parse() {
            return Ok(Span(Duration::from_millis(milliseconds)));
        }
        let mut total: u64 = 0;
        let mut rest = text;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or(EXPECTED)?;
            let (number, after) = rest.split_at(digits);
            let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, after) = after.split_at(letters);
            let (_, size) = UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or(EXPECTED)?;
            let part =
                number.parse::<u64>().ok().and_then(|number| number.checked_mul(*size)).ok_or(EXPECTED)?;
            total = total.checked_add(part).ok_or(EXPECTED)?;
            rest = after;
        }
        if text.is_empty() { Err(EXPECTED) } else { Ok(Span(Duration::from_millis(total))) }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if rest == 0 {
            return f.write_str("0s");
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
        {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.0, Duration::from_millis(milliseconds), "{text}");
            assert_eq!(span.to_string().parse(), Ok(span), "{text}");
        }
        for text in ["", "s", "-1", "2 weeks", "1.5s", "99999999999999999999d"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
