//! The options of an item: parsed from a query string, printed as one, and checked before anything is scheduled.

use std::fmt;

use chrono_tz::Tz;

use super::fill::{CrontabFill, EXPECTED_PHRASE};
use super::pattern::Word;
use super::problem::{Problem, quote};
use crate::JobKeyMode;

const EXPECTED_OPTION: &str =
    "id, fill, max, queue, jobKey, jobKeyMode, priority or tz, each as name=value, joined by &";
const EXPECTED_ID: &str = "a letter or _, then letters, digits, _ or -, at most 512 in all";
const EXPECTED_QUEUE: &str = "1 to 128 letters, digits, -, _ or :";
const EXPECTED_KEY: &str = "1 to 512 characters";

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Options {
    pub(super) id: Option<String>,
    pub(super) fill: CrontabFill,
    pub(super) max_attempts: Option<i16>,
    pub(super) queue: Option<String>,
    pub(super) job_key: Option<String>,
    pub(super) job_key_mode: Option<JobKeyMode>,
    pub(super) priority: Option<i16>,
    pub(super) time_zone: Option<Tz>,
}

impl Options {
    /// Reads `?id=a&fill=1h`. Adds a problem for each invalid option.
    pub(super) fn read(word: Word<'_>, problems: &mut Vec<Problem>) -> Options {
        let mut options = Options::default();
        let mut seen = vec![];
        if word.text == "?" {
            problems.push(Problem::new(word.end(), "no option follows the ?", EXPECTED_OPTION));
        }
        let mut offset = word.offset + 1;
        for option in word.text[1..].split('&') {
            let start = offset;
            offset += option.chars().count() + 1;
            if option.is_empty() {
                continue;
            }
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let name_length = name.chars().count();
            let name = decode(name);
            if seen.contains(&name) {
                problems.push(Problem::new(
                    start,
                    format!("the option {name} is given twice"),
                    "each option once",
                ));
            } else if let Err((at_name, message, expected)) = options.set(&name, &decode(value)) {
                let offset = if at_name { start } else { start + name_length + 1 };
                problems.push(Problem::new(offset.min(word.end()), message, expected));
            }
            seen.push(name);
        }
        options
    }

    /// An error contains whether it concerns the name (true) or the value, what is invalid, and what was expected.
    fn set(&mut self, name: &str, value: &str) -> Result<(), (bool, String, &'static str)> {
        let wrong = |expected| (false, format!("{} is no value for {name}", quote(value)), expected);
        match name {
            "id" => self.id = Some(checked(value, is_id).ok_or(wrong(EXPECTED_ID))?),
            "fill" => self.fill = CrontabFill::from_phrase(value).ok_or(wrong(EXPECTED_PHRASE))?,
            "max" => {
                let max = digits(value).filter(|max| *max >= 1);
                self.max_attempts = Some(max.ok_or(wrong("a number from 1 to 32767"))?);
            }
            "queue" => self.queue = Some(checked(value, is_queue).ok_or(wrong(EXPECTED_QUEUE))?),
            "jobKey" => self.job_key = Some(checked(value, is_job_key).ok_or(wrong(EXPECTED_KEY))?),
            "jobKeyMode" => self.job_key_mode = Some(mode(value).ok_or(wrong("replace or preserve_run_at"))?),
            "priority" => {
                self.priority = Some(priority(value).ok_or(wrong("a number from -32768 to 32767"))?);
            }
            "tz" => {
                // A plus sign is a space in a query string, and no time zone has a space in its name.
                let zone = value.replace(' ', "+").parse().ok();
                self.time_zone = Some(zone.ok_or(wrong("a time zone such as Europe/Paris"))?);
            }
            _ => return Err((true, format!("unknown option {}", quote(name)), EXPECTED_OPTION)),
        }
        Ok(())
    }

    /// Rejects values that the database would refuse. Needed for items that come from code and not from a crontab.
    pub(super) fn check(&self) -> Result<(), String> {
        let texts = [("id", &self.id, 512), ("queue", &self.queue, 128), ("job key", &self.job_key, 512)];
        for (name, text, limit) in texts {
            let Some(text) = text else { continue };
            if !fits(text, limit) {
                return Err(format!("its {name} must have 1 to {limit} characters and no NUL"));
            }
        }
        match self.max_attempts {
            Some(max) if max < 1 => Err(format!("its max_attempts must be at least 1, not {max}")),
            _ => Ok(()),
        }
    }

    /// The options that Node's Graphile Worker would reject.
    pub(super) fn objections(&self) -> Vec<String> {
        let mut objections = Vec::new();
        if let Some(zone) = self.time_zone {
            objections.push(format!("the time zone {zone}"));
        }
        if self.job_key_mode == Some(JobKeyMode::UnsafeDedupe) {
            objections.push("the job key mode unsafe_dedupe".to_owned());
        }
        if let Some(id) = self.id.as_ref().filter(|id| !is_id(id)) {
            objections.push(format!("the identifier {id:?}"));
        }
        if let Some(queue) = self.queue.as_ref().filter(|queue| !is_queue(queue)) {
            objections.push(format!("the queue name {queue:?}"));
        }
        let line_breaks = ['\n', '\r', '\u{2028}', '\u{2029}'];
        if self.job_key.as_ref().is_some_and(|key| key.contains(line_breaks)) {
            objections.push("a job key with a line break".to_owned());
        }
        objections
    }
}

/// Prints the options with a leading `?`; prints nothing if no option is set.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fill = (self.fill != CrontabFill::default()).then(|| self.fill.to_string());
        let options = [
            ("id", self.id.clone()),
            ("fill", fill),
            ("max", self.max_attempts.map(|max| max.to_string())),
            ("queue", self.queue.clone()),
            ("jobKey", self.job_key.clone()),
            ("jobKeyMode", self.job_key_mode.map(|mode| mode.as_str().to_owned())),
            ("priority", self.priority.map(|priority| priority.to_string())),
            ("tz", self.time_zone.map(|zone| zone.name().to_owned())),
        ];
        let mut sign = " ?";
        for (name, value) in options {
            let Some(value) = value else { continue };
            write!(f, "{sign}{name}={}", encode(&value))?;
            sign = "&";
        }
        Ok(())
    }
}

fn checked(value: &str, is_right: fn(&str) -> bool) -> Option<String> {
    is_right(value).then(|| value.to_owned())
}

fn fits(text: &str, limit: usize) -> bool {
    (1..=limit).contains(&text.chars().count()) && !text.contains('\0')
}

fn is_id(text: &str) -> bool {
    let starts = text.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic());
    starts
        && fits(text, 512)
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

fn is_queue(text: &str) -> bool {
    fits(text, 128) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_:".contains(&byte))
}

fn is_job_key(text: &str) -> bool {
    fits(text, 512)
}

fn digits(text: &str) -> Option<i16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn priority(text: &str) -> Option<i16> {
    let number = text.strip_prefix('-').unwrap_or(text);
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The third mode is our extension: Node supports it, but not in a crontab.
fn mode(text: &str) -> Option<JobKeyMode> {
    [JobKeyMode::Replace, JobKeyMode::PreserveRunAt, JobKeyMode::UnsafeDedupe]
        .into_iter()
        .find(|mode| mode.as_str() == text)
}

/// Decodes `%41` and `+`. Invalid escapes stay as they are; invalid UTF-8 becomes the replacement character.
fn decode(text: &str) -> String {
    if !text.contains(['%', '+']) {
        return text.to_owned();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after) {
            (b'+', _) => bytes.push(b' '),
            (b'%', [high, low, tail @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                bytes.push(hex(*high) << 4 | hex(*low));
                rest = tail;
            }
            _ => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> u8 {
    (digit as char).to_digit(16).unwrap_or(0) as u8
}

fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte) {
            encoded.push(byte as char);
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
