//! The crontab parser: turns lines of text into crontab items, or into all errors that they contain.
//!
//! A line is empty, a comment (`#` as its first character), or has these parts: five time fields, a task, and
//! optionally `?options` and `{payload}`. Any amount of white space separates them. Lines end with LF or CRLF; a
//! carriage return elsewhere is an error.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::str::FromStr;

use super::Cron;
use super::options::Options;
use super::pattern::{Pattern, Word};
use super::payload;
use super::problem::{CrontabError, CrontabErrors, Problem, quote};

const EXPECTED_TASK: &str = "a task: a letter or _, then letters, digits, _, :, / or -, at most 128 in all";
const EXPECTED_FIELDS: &str = "minute, hour, day of the month, month, day of the week, then a task";

/// Reads a crontab in Graphile Worker's format, with some extensions (see the guide).
///
/// All errors are reported together. A text that contains an error yields no items at all; no line is skipped silently.
///
/// ```
/// let items = atta::parse_crontab("# every Monday\n30 4 * * 1 send_weekly_email ?fill=2d&max=10 {onboarding: false}\n")?;
/// assert_eq!(items[0].task_identifier(), "send_weekly_email");
///
/// let errors = atta::parse_crontab("0 25 * * * report\n* * * * *").unwrap_err();
/// assert_eq!(errors.len(), 2);
/// # Ok::<(), atta::Error>(())
/// ```
pub fn parse_crontab(text: &str) -> Result<Vec<Cron>, CrontabErrors> {
    let mut items = Vec::new();
    let mut errors = Vec::new();
    let mut lines_of = HashMap::new();
    for (number, line) in (1..).zip(text.split('\n')) {
        let line = line.strip_suffix('\r').unwrap_or(line);
        let Some(Line { item, mut problems, identifier }) = read_line(line) else { continue };
        if let Some(Identifier { text, offset }) = identifier {
            match lines_of.entry(text) {
                Entry::Vacant(entry) => drop(entry.insert(number)),
                Entry::Occupied(entry) => problems.push(duplicate(entry.key(), offset, *entry.get())),
            }
        }
        problems.sort_by_key(|problem| problem.offset);
        errors.extend(problems.into_iter().map(|problem| CrontabError::new(number, line, problem)));
        items.extend(item);
    }
    match CrontabErrors::of(errors) {
        Some(errors) => Err(errors),
        None => Ok(items),
    }
}

/// Reads one line of a crontab.
impl FromStr for Cron {
    type Err = CrontabErrors;

    fn from_str(line: &str) -> Result<Cron, CrontabErrors> {
        let nothing = || Line::invalid(Problem::new(0, "the line contains no cron item", EXPECTED_FIELDS));
        let Line { item, problems, .. } = read_line(line).unwrap_or_else(nothing);
        item.ok_or_else(|| at_line_one(line, problems))
    }
}

/// Reads five fields, or a word such as `@daily`, and nothing more.
pub(super) fn read_pattern(text: &str) -> Result<Pattern, CrontabErrors> {
    let mut problems = Vec::new();
    let mut cursor = Cursor::new(text);
    let pattern = read_fields(&mut cursor, &mut problems);
    if !cursor.rest.is_empty() {
        problems.push(Problem::new(cursor.offset, "unexpected text after the pattern", "five fields"));
    }
    match pattern {
        Some(pattern) if problems.is_empty() => Ok(pattern),
        _ => Err(at_line_one(text, problems)),
    }
}

fn at_line_one(line: &str, mut problems: Vec<Problem>) -> CrontabErrors {
    // A line without an item always has a problem; this check makes sure that an error is never empty.
    if problems.is_empty() {
        problems.push(Problem::new(0, "invalid cron item", EXPECTED_FIELDS));
    }
    let errors = problems.into_iter().map(|problem| CrontabError::new(1, line, problem)).collect();
    CrontabErrors::of(errors).expect("a problem was added above if there was none")
}

fn duplicate(identifier: &str, offset: usize, first: usize) -> Problem {
    let message = format!("the identifier {} is already used on line {first}", quote(identifier));
    Problem::new(offset, message, "a unique identifier: ?id=…")
}

/// The result of a line that is neither empty nor a comment: an item, or else problems.
struct Line {
    item: Option<Cron>,
    problems: Vec<Problem>,
    /// Set also for a line with other problems, so that these don't hide a duplicate identifier.
    identifier: Option<Identifier>,
}

struct Identifier {
    text: String,
    /// Where the task identifier begins.
    offset: usize,
}

impl Line {
    fn invalid(problem: Problem) -> Line {
        Line { item: None, problems: vec![problem], identifier: None }
    }
}

/// None for an empty line and a comment.
fn read_line(line: &str) -> Option<Line> {
    let mut cursor = Cursor::new(line);
    if cursor.rest.is_empty() {
        return None;
    }
    if let Some(problem) = lone_carriage_return(line) {
        return Some(Line::invalid(problem));
    }
    if cursor.rest.starts_with('#') {
        return None;
    }
    let mut problems = Vec::new();
    let pattern = read_fields(&mut cursor, &mut problems);
    let task = read_task(&mut cursor, &mut problems);
    let before = problems.len();
    let options = read_options(&mut cursor, &mut problems);
    let identifier = task.filter(|_| problems.len() == before).map(|task| Identifier {
        text: options.id.clone().unwrap_or_else(|| task.text.to_owned()),
        offset: task.offset,
    });
    let payload = read_payload(&cursor, &mut problems);
    let item = match (pattern, task) {
        (Some(pattern), Some(task)) if problems.is_empty() => {
            Some(Cron::read(task.text, pattern, options, payload))
        }
        _ => None,
    };
    Some(Line { item, problems, identifier })
}

/// Rejects a carriage return within a line. In a file whose lines end with CR alone, as on the first Macs, a comment
/// would otherwise extend to the end of the file.
fn lone_carriage_return(line: &str) -> Option<Problem> {
    let start = line.chars().take_while(|c| is_space(*c)).count();
    let offset = start + line.trim_matches(is_space).chars().position(|c| c == '\r')?;
    Some(Problem::new(offset, "a carriage return is inside the line", "lines that end with LF or CRLF"))
}

fn read_fields(cursor: &mut Cursor<'_>, problems: &mut Vec<Problem>) -> Option<Pattern> {
    if cursor.rest.starts_with('@') {
        return Pattern::read_macro(cursor.word()?).map_err(|problem| problems.push(problem)).ok();
    }
    let mut words = [Word { text: "*", offset: 0 }; 5];
    for (count, word) in words.iter_mut().enumerate() {
        let Some(next) = cursor.word() else {
            let message = format!("the line ends after {count} of 5 time fields");
            problems.push(Problem::new(cursor.offset, message, EXPECTED_FIELDS));
            return None;
        };
        *word = next;
    }
    Some(Pattern::read(&words, problems))
}

fn read_task<'a>(cursor: &mut Cursor<'a>, problems: &mut Vec<Problem>) -> Option<Word<'a>> {
    let Some(word) = cursor.word() else {
        // A line that ended before this already has a problem.
        if problems.is_empty() {
            problems.push(Problem::new(cursor.offset, "the task is missing", EXPECTED_TASK));
        }
        return None;
    };
    let Some(wrong) = invalid_in_task(word.text) else {
        return Some(word);
    };
    let message = format!("{} is not a valid task identifier", quote(word.text));
    problems.push(Problem::new(word.offset + wrong, message, EXPECTED_TASK));
    None
}

/// The first character that is not allowed in the task identifier of a crontab.
pub(super) fn invalid_in_task(task: &str) -> Option<usize> {
    let is_invalid = |(index, c): (usize, char)| {
        let is_right = match index {
            0 => c == '_' || c.is_ascii_alphabetic(),
            1..128 => c.is_ascii_alphanumeric() || "_:/-".contains(c),
            _ => false,
        };
        !is_right
    };
    if task.is_empty() { Some(0) } else { task.chars().enumerate().position(is_invalid) }
}

fn read_options(cursor: &mut Cursor<'_>, problems: &mut Vec<Problem>) -> Options {
    if !cursor.rest.starts_with('?') {
        return Options::default();
    }
    cursor.word().map(|word| Options::read(word, problems)).unwrap_or_default()
}

fn read_payload(cursor: &Cursor<'_>, problems: &mut Vec<Problem>) -> Option<serde_json::Value> {
    if cursor.rest.is_empty() {
        return None;
    }
    if !cursor.rest.starts_with('{') {
        let what = if cursor.rest.starts_with('#') {
            "a comment must be on its own line"
        } else {
            "unexpected text"
        };
        problems.push(Problem::new(
            cursor.offset,
            what,
            "?options, then a {payload}, or the end of the line",
        ));
        return None;
    }
    payload::read(cursor.rest).map_err(|problem| problems.push(problem.moved(cursor.offset))).ok()
}

/// The part of a line that is still to be read, without the white space around it.
struct Cursor<'a> {
    rest: &'a str,
    /// In characters.
    offset: usize,
}

impl<'a> Cursor<'a> {
    fn new(line: &'a str) -> Cursor<'a> {
        let mut cursor = Cursor { rest: line.trim_end_matches(is_space), offset: 0 };
        cursor.skip_space();
        cursor
    }

    fn word(&mut self) -> Option<Word<'a>> {
        let end = self.rest.find(is_space).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        let word = Word { text, offset: self.offset };
        self.rest = rest;
        self.offset += text.chars().count();
        self.skip_space();
        (!text.is_empty()).then_some(word)
    }

    fn skip_space(&mut self) {
        let rest = self.rest.trim_start_matches(is_space);
        self.offset += self.rest[..self.rest.len() - rest.len()].chars().count();
        self.rest = rest;
    }
}

/// The byte order mark that some editors write at the start of a file counts as white space, as it does in JavaScript.
fn is_space(c: char) -> bool {
    c.is_whitespace() || c == '\u{feff}'
}
