//! The five time fields: parsed, matched, and kept as they were written.
//!
//! A field is a list of numbers, ranges, `*` and `*/n`, as in Graphile Worker. Our extensions: names of months and
//! days, steps on ranges, and words such as `@hourly` for all five fields.

use std::fmt;

use super::moment::{CronDigest, Moment};
use super::problem::{Problem, quote};

/// When an item is due, by the calendar: one set per field, as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    minutes: u64,
    hours: u64,
    dates: u64,
    months: u64,
    days_of_week: u64,
    /// As it was written, with one space between the fields.
    text: String,
}

struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    /// The largest number that may be written: Sunday is 0 and 7.
    limit: u32,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

const FIELDS: [Field; 5] = [
    Field { name: "minute", min: 0, max: 59, limit: 59, names: &[] },
    Field { name: "hour", min: 0, max: 23, limit: 23, names: &[] },
    Field { name: "day of the month", min: 1, max: 31, limit: 31, names: &[] },
    Field { name: "month", min: 1, max: 12, limit: 12, names: &MONTHS },
    Field { name: "day of the week", min: 0, max: 6, limit: 7, names: &DAYS },
];

const MACROS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

pub(super) const EXPECTED_MACRO: &str = "@hourly, @daily, @midnight, @weekly, @monthly, @yearly or @annually";

/// A word of a line, and where it begins, in characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    pub(super) offset: usize,
}

impl Word<'_> {
    pub(super) fn end(&self) -> usize {
        self.offset + self.text.chars().count()
    }
}

impl Pattern {
    /// Reads five words. Adds the problems of each invalid word.
    pub(super) fn read(words: &[Word<'_>; 5], problems: &mut Vec<Problem>) -> Pattern {
        let mut sets = [0; 5];
        for ((set, word), field) in sets.iter_mut().zip(words).zip(&FIELDS) {
            *set = field.read(*word, problems);
        }
        let [minutes, hours, dates, months, days_of_week] = sets;
        let text = words.map(|word| word.text).join(" ");
        Pattern { minutes, hours, dates, months, days_of_week, text }
    }

    /// Reads a word such as `@daily`.
    pub(super) fn read_macro(word: Word<'_>) -> Result<Pattern, Problem> {
        let Some((name, fields)) = MACROS.iter().find(|(name, _)| *name == word.text) else {
            let message = format!("unknown macro {}", quote(word.text));
            return Err(Problem::new(word.offset, message, EXPECTED_MACRO));
        };
        let mut texts = fields.split(' ').map(|text| Word { text, offset: word.offset });
        let words = std::array::from_fn(|_| texts.next().unwrap_or(Word { text: "*", offset: word.offset }));
        let mut pattern = Pattern::read(&words, &mut Vec::new());
        pattern.text = (*name).to_owned();
        Ok(pattern)
    }

    /// Applies Graphile's rule, and the rules of [`Cron::time_zone`](super::Cron::time_zone) when the clock changes.
    pub(super) fn matches(&self, moment: &Moment) -> bool {
        if self.is_every_hour() {
            return self.matches_digest(&moment.digest);
        }
        (self.matches_digest(&moment.digest) && !moment.repeated)
            || moment.left_out.iter().any(|digest| self.matches_digest(digest))
    }

    /// Such a pattern follows elapsed time, and not local time.
    fn is_every_hour(&self) -> bool {
        self.hours.count_ones() == 24
    }

    fn matches_digest(&self, digest: &CronDigest) -> bool {
        has(self.minutes, digest.minute) && has(self.hours, digest.hour) && self.matches_day(digest)
    }

    /// If both the day of the month and the day of the week are restricted, either may match.
    pub(super) fn matches_day(&self, digest: &CronDigest) -> bool {
        if !has(self.months, digest.month) {
            return false;
        }
        let (by_date, by_week) = (has(self.dates, digest.date), has(self.days_of_week, digest.day_of_week));
        match (self.dates.count_ones() < 31, self.days_of_week.count_ones() < 7) {
            (true, true) => by_date || by_week,
            _ => by_date && by_week,
        }
    }

    /// The parts of the pattern that Node's Graphile Worker would reject.
    pub(super) fn objections(&self) -> Vec<String> {
        if self.text.starts_with('@') {
            return vec![format!("the macro {} instead of five fields", self.text)];
        }
        let mut objections = Vec::new();
        for (text, field) in self.text.split(' ').zip(&FIELDS) {
            if text.contains(|c: char| c.is_ascii_alphabetic()) {
                objections.push(format!("a name in the {}: {text}", field.name));
            }
            if text.split(',').any(|part| part.contains('/') && !part.starts_with('*')) {
                objections.push(format!("a step on a range in the {}: {text}", field.name));
            }
        }
        objections
    }
}

fn has(set: u64, bit: u32) -> bool {
    set >> bit & 1 == 1
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Field {
    fn read(&self, word: Word<'_>, problems: &mut Vec<Problem>) -> u64 {
        let mut set = 0;
        let mut offset = word.offset;
        for part in word.text.split(',') {
            match self.read_part(part) {
                Ok(bits) => set |= bits,
                Err(problem) => problems.push(problem.moved(offset)),
            }
            offset += part.chars().count() + 1;
        }
        // Only the day of the week can exceed its maximum: 7 is Sunday as well.
        if set >> (self.max + 1) & 1 == 1 { set & !(1 << (self.max + 1)) | 1 } else { set }
    }

    fn read_part(&self, part: &str) -> Result<u64, Problem> {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, self.read_step(range, step)?),
            None => (part, 1),
        };
        let (first, last) = if range == "*" { (self.min, self.max) } else { self.read_range(range)? };
        Ok((first..=last).step_by(step).fold(0, |set, number| set | 1 << number))
    }

    fn read_step(&self, range: &str, step: &str) -> Result<usize, Problem> {
        let offset = range.chars().count() + 1;
        if range != "*" && !range.contains('-') {
            return Err(Problem::new(
                0,
                format!("a step needs * or a range before it, not {}", quote(range)),
                "*/n or a-b/n",
            ));
        }
        match number(step) {
            Some(step) if step > 0 => Ok(step as usize),
            _ => Err(Problem::new(offset, format!("{} is not a valid step", quote(step)), "a number from 1")),
        }
    }

    fn read_range(&self, range: &str) -> Result<(u32, u32), Problem> {
        let Some((first, last)) = range.split_once('-') else {
            return self.read_value(range).map(|value| (value, value));
        };
        let offset = first.chars().count() + 1;
        let is_week =
            self.limit == 7 && last.eq_ignore_ascii_case("sun") && !first.eq_ignore_ascii_case(last);
        let first = self.read_value(first)?;
        let end = self.read_value(last).map_err(|problem| problem.moved(offset))?;
        // A week may end on Sunday: fri-sun.
        let end = if is_week { 7 } else { end };
        if end > first {
            return Ok((first, end));
        }
        let message = format!("the range {} does not end after its start", quote(range));
        Err(Problem::new(offset, message, format!("a {} after {first}", self.name)))
    }

    fn read_value(&self, text: &str) -> Result<u32, Problem> {
        if let Some(position) = self.names.iter().position(|name| text.eq_ignore_ascii_case(name)) {
            return Ok(self.min + position as u32);
        }
        match number(text) {
            Some(value) if (self.min..=self.limit).contains(&value) => Ok(value),
            _ => {
                Err(Problem::new(0, format!("{} is not a valid {}", quote(text), self.name), self.expected()))
            }
        }
    }

    fn expected(&self) -> String {
        let numbers = format!("*, */n, or numbers and ranges from {} to {}", self.min, self.limit);
        match (self.names.first(), self.names.last()) {
            (Some(first), Some(last)) => format!("{numbers}, or {first} to {last}"),
            _ => numbers,
        }
    }
}

/// Digits only. A number that is too large for us is too large for every field; as a step, it acts like any other large
/// one.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u32::MAX))
}
