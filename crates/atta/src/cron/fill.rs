//! How far back an item is backfilled, and the time phrases that express it: `4w3d2h1m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::{Error, Result};

/// The longest unit first, as they are printed.
const UNITS: [(char, u64); 5] = [('w', 604_800), ('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// How far back missed ticks are backfilled when a worker starts, or when its database is available again.
///
/// Default: not at all. Choose somewhat more than the longest time for which all workers may be down. At the first
/// start with a new item there is nothing to backfill. A longer period makes the start of cron take longer, and of
/// nothing else.
///
/// ```
/// use atta::CrontabFill;
///
/// let fill: CrontabFill = "1d12h".parse()?;
/// assert_eq!(fill, CrontabFill::hours(36));
/// # Ok::<(), atta::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CrontabFill {
    seconds: u64,
}

impl CrontabFill {
    /// Any period; fractions of a second are ignored.
    pub const fn new(period: Duration) -> CrontabFill {
        CrontabFill { seconds: period.as_secs() }
    }

    /// A period of `n` seconds.
    pub const fn seconds(n: u64) -> CrontabFill {
        CrontabFill { seconds: n }
    }

    /// A period of `n` minutes.
    pub const fn minutes(n: u64) -> CrontabFill {
        CrontabFill { seconds: n.saturating_mul(60) }
    }

    /// A period of `n` hours.
    pub const fn hours(n: u64) -> CrontabFill {
        CrontabFill { seconds: n.saturating_mul(3_600) }
    }

    /// A period of `n` days of 24 hours.
    pub const fn days(n: u64) -> CrontabFill {
        CrontabFill { seconds: n.saturating_mul(86_400) }
    }

    /// A period of `n` weeks.
    pub const fn weeks(n: u64) -> CrontabFill {
        CrontabFill { seconds: n.saturating_mul(604_800) }
    }

    /// The period.
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// Reads a time phrase: numbers with a unit, summed up. None if it is not a time phrase, or if the sum is too
    /// large.
    pub(super) fn from_phrase(phrase: &str) -> Option<CrontabFill> {
        let mut seconds = 0u64;
        let mut rest = phrase;
        loop {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let number: u64 = rest[..digits].parse().ok()?;
            let unit = rest[digits..].chars().next()?;
            let (_, length) = UNITS.iter().find(|(name, _)| *name == unit)?;
            seconds = seconds.checked_add(number.checked_mul(*length)?)?;
            rest = &rest[digits + 1..];
            if rest.is_empty() {
                return Some(CrontabFill { seconds });
            }
        }
    }
}

impl FromStr for CrontabFill {
    type Err = Error;

    fn from_str(phrase: &str) -> Result<CrontabFill> {
        CrontabFill::from_phrase(phrase).ok_or_else(|| {
            Error::config(format!("invalid time phrase {phrase:?}")).with_hint(EXPECTED_PHRASE)
        })
    }
}

/// The form of a time phrase.
pub(super) const EXPECTED_PHRASE: &str = "a time phrase such as 30m, 2d or 1w3d12h (units: s, m, h, d, w)";

impl fmt::Display for CrontabFill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.seconds == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.seconds;
        for (unit, length) in UNITS {
            if rest >= length {
                write!(f, "{}{unit}", rest / length)?;
                rest %= length;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phrase_is_the_sum_of_its_parts_in_any_order() {
        for (phrase, seconds) in [("4w3d2h1m", 44_761 * 60), ("1s1m1s", 62), ("0s", 0), ("010m", 600)] {
            assert_eq!(CrontabFill::from_phrase(phrase), Some(CrontabFill::seconds(seconds)), "{phrase}");
        }
    }

    #[test]
    fn invalid_phrases_are_rejected() {
        for phrase in [
            "",
            "5",
            "h",
            "5x",
            "1h ",
            "-1h",
            "1.5h",
            "5H",
            "1h5",
            "99999999999999999999h",
            "9999999999999999999w",
            "1é",
        ] {
            assert_eq!(CrontabFill::from_phrase(phrase), None, "{phrase}");
        }
    }

    #[test]
    fn the_printed_form_can_be_parsed() {
        for fill in [
            CrontabFill::default(),
            CrontabFill::hours(25),
            CrontabFill::weeks(u64::MAX),
            CrontabFill::seconds(61),
        ] {
            assert_eq!(fill.to_string().parse::<CrontabFill>().unwrap(), fill);
        }
    }
}
