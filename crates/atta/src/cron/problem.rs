//! The errors of a crontab: all of them at once, each with its position, the line and what was expected there.

use std::error::Error as StdError;
use std::fmt;

use crate::Error;

/// How much of a long line is shown around an error, in characters.
const SHOWN: usize = 100;
/// How much of a word is quoted in a message, in characters.
const QUOTED: usize = 40;

/// All errors of a crontab, in the order of its lines.
///
/// ```text
/// line 2, column 3: "25" is not a valid hour; expected *, */n, or numbers and ranges from 0 to 23
///   0 25 * * * send_report
///     ^
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrontabErrors {
    errors: Vec<CrontabError>,
}

/// One error in a crontab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrontabError {
    line: usize,
    text: String,
    problem: Problem,
}

/// An error at a position of a line. The code that finds it need not know the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// In characters, counted from 0.
    pub(super) offset: usize,
    pub(super) message: String,
    pub(super) expected: String,
}

impl Problem {
    pub(super) fn new(offset: usize, message: impl Into<String>, expected: impl Into<String>) -> Problem {
        Problem { offset, message: message.into(), expected: expected.into() }
    }

    /// The same error, with its offset counted from a place `by` characters further left.
    pub(super) fn moved(mut self, by: usize) -> Problem {
        self.offset += by;
        self
    }
}

impl CrontabErrors {
    /// None if there is no error.
    pub(super) fn of(errors: Vec<CrontabError>) -> Option<CrontabErrors> {
        (!errors.is_empty()).then_some(CrontabErrors { errors })
    }

    /// The errors, one by one.
    pub fn iter(&self) -> impl Iterator<Item = &CrontabError> {
        self.errors.iter()
    }

    /// The number of errors; at least one.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.errors.len()
    }
}

impl CrontabError {
    /// `line` counts from 1.
    pub(super) fn new(line: usize, text: &str, problem: Problem) -> CrontabError {
        CrontabError { line, text: text.to_owned(), problem }
    }

    /// The number of the line, counted from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The position of the character in the line, counted from 1.
    pub fn column(&self) -> usize {
        self.problem.offset + 1
    }

    /// What is wrong.
    pub fn message(&self) -> &str {
        &self.problem.message
    }

    /// What is expected there.
    pub fn expected(&self) -> &str {
        &self.problem.expected
    }

    /// The whole line.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A piece of a line as it is quoted in a message. A long one is shortened, since the whole line is shown as well.
pub(super) fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}", format!("{}…", &text[..end])),
        None => format!("{text:?}"),
    }
}

impl fmt::Display for CrontabErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for CrontabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { offset, message, expected } = &self.problem;
        let first = offset.saturating_sub(SHOWN / 2);
        let shown: String = self.text.chars().skip(first).take(SHOWN).map(printable).collect();
        let caret: String =
            shown.chars().take(offset - first).map(|c| if c == '\t' { c } else { ' ' }).collect();
        write!(f, "line {}, column {}: {message}; expected {expected}", self.line, offset + 1)?;
        write!(f, "\n  {shown}\n  {caret}^")
    }
}

/// Replaces characters that would move the caret away from its position, or control the terminal, by one plain
/// character.
fn printable(c: char) -> char {
    if c.is_control() && c != '\t' { '\u{fffd}' } else { c }
}

impl StdError for CrontabErrors {}

impl From<CrontabErrors> for Error {
    fn from(errors: CrontabErrors) -> Error {
        Error::config(format!("invalid crontab\n{errors}"))
    }
}
