//! What is wrong with a crontab: every mistake at once, each with its place, the line and what was expected there.

use std::error::Error as StdError;
use std::fmt;

use crate::Error;

/// How much of a long line is shown around a mistake, in characters.
const SHOWN: usize = 100;
/// How much of a word is told in a message.
const QUOTED: usize = 40;

/// All mistakes of a crontab, in the order of its lines.
///
/// ```text
/// line 2, column 3: 25 is no hour; expected a number from 0 to 23
///   0 25 * * * send_report
///     ^
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrontabErrors {
    errors: Vec<CrontabError>,
}

/// One mistake in a crontab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrontabError {
    line: usize,
    text: String,
    fault: Fault,
}

/// A mistake at a place of a line that whoever found it need not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// In characters, from 0.
    pub(super) offset: usize,
    pub(super) message: String,
    pub(super) expected: String,
}

impl Fault {
    pub(super) fn new(offset: usize, message: impl Into<String>, expected: impl Into<String>) -> Fault {
        Fault { offset, message: message.into(), expected: expected.into() }
    }

    /// The same mistake, seen from `by` characters further left.
    pub(super) fn moved(mut self, by: usize) -> Fault {
        self.offset += by;
        self
    }
}

impl CrontabErrors {
    /// None if there is no mistake.
    pub(super) fn of(errors: Vec<CrontabError>) -> Option<CrontabErrors> {
        (!errors.is_empty()).then_some(CrontabErrors { errors })
    }

    /// The mistakes, one by one.
    pub fn iter(&self) -> impl Iterator<Item = &CrontabError> {
        self.errors.iter()
    }

    /// How many there are; at least one.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.errors.len()
    }
}

impl CrontabError {
    /// `line` counts from 1.
    pub(super) fn new(line: usize, text: &str, fault: Fault) -> CrontabError {
        CrontabError { line, text: text.to_owned(), fault }
    }

    /// The line, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The character of the line, from 1.
    pub fn column(&self) -> usize {
        self.fault.offset + 1
    }

    /// What is wrong.
    pub fn message(&self) -> &str {
        &self.fault.message
    }

    /// What should stand there.
    pub fn expected(&self) -> &str {
        &self.fault.expected
    }

    /// The whole line.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A piece of a line as it is named in a message: what is long is shown with the line, and need not be told in full.
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
        let Fault { offset, message, expected } = &self.fault;
        let first = offset.saturating_sub(SHOWN / 2);
        let shown: String = self.text.chars().skip(first).take(SHOWN).map(printable).collect();
        let caret: String =
            shown.chars().take(offset - first).map(|c| if c == '\t' { c } else { ' ' }).collect();
        write!(f, "line {}, column {}: {message}; expected {expected}", self.line, offset + 1)?;
        write!(f, "\n  {shown}\n  {caret}^")
    }
}

/// What would move the caret away from its place, or do things to a terminal, is shown as one plain character.
fn printable(c: char) -> char {
    if c.is_control() && c != '\t' { '\u{fffd}' } else { c }
}

impl StdError for CrontabErrors {}

impl From<CrontabErrors> for Error {
    fn from(errors: CrontabErrors) -> Error {
        Error::config(format!("invalid crontab\n{errors}"))
    }
}
