//! The output: data to standard output, everything else to standard error.
//!
//! Text for people may have colours; they are removed if the output is not a terminal, or if `NO_COLOR` is set. JSON is
//! written as it is.

pub(crate) mod ask;
pub(crate) mod exit;
pub(crate) mod job;
pub(crate) mod json_fault;
pub(crate) mod progress;
pub(crate) mod table;
pub(crate) mod time;
pub(crate) mod watch;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use anstyle::{AnsiColor, Style};
use exit::Exit;
use serde::Serialize;

use crate::logging;

/// Why a command ended without having done its work.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
    /// Whether the database reported that the role lacks a privilege.
    is_denied: bool,
}

impl Failure {
    /// An error.
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: None, code: Exit::ERROR, is_denied: false }
    }

    /// No error, but the queried condition is false or the target was not found.
    pub(crate) fn not_so(message: impl Into<String>) -> Failure {
        Failure { code: Exit::NEGATIVE, ..Failure::new(message) }
    }

    /// The command was ended by a signal; the exit code is that of shells.
    pub(crate) fn interrupted(signal: &str, done: &str) -> Failure {
        Failure { code: Exit::INTERRUPTED, ..Failure::new(format!("interrupted by {signal}: {done}")) }
    }

    /// Adds a line to the message.
    pub(crate) fn and(mut self, line: &str) -> Failure {
        self.message.push('\n');
        self.message.push_str(line);
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Replaces the hint if the role lacks a privilege.
    pub(crate) fn with_hint_if_denied(self, hint: Option<String>) -> Failure {
        match hint {
            Some(hint) if self.is_denied => self.with_hint(hint),
            _ => self,
        }
    }

    /// Adds a hint after the one that there may be.
    pub(crate) fn with_further_hint(mut self, further: &str) -> Failure {
        self.hint = Some(match self.hint {
            Some(hint) => format!("{hint}; {further}"),
            None => further.to_owned(),
        });
        self
    }
}

impl From<atta::Error> for Failure {
    fn from(error: atta::Error) -> Failure {
        let hint = error.hint().map(str::to_owned);
        let is_denied = error.db_code() == Some("42501");
        Failure { hint, is_denied, ..Failure::new(error.message()) }
    }
}

/// Writes `error:` and, if there is one, `hint:`.
pub(crate) fn fail(failure: &Failure) -> ExitCode {
    tell("error", AnsiColor::Red, &failure.message);
    if let Some(text) = &failure.hint {
        hint(text);
    }
    ExitCode::from(failure.code)
}

/// Writes `warning:`; the command goes on.
pub(crate) fn warn(text: &str) {
    tell("warning", AnsiColor::Yellow, text);
}

/// Writes `hint:`.
pub(crate) fn hint(text: &str) {
    tell("hint", AnsiColor::Cyan, text);
}

/// Writes a line for people besides the data. While the log is written, it is a line of the log, so that it keeps its place
/// and waits for no reader.
pub(crate) fn note(message: &str) {
    if !logging::is_started() {
        // A write error is ignored: there is no place to report it.
        let _ = writeln!(anstream::stderr().lock(), "{message}");
        return;
    }
    let line = match anstream::AutoStream::choice(&std::io::stderr()) {
        anstream::ColorChoice::Never => format!("{}\n", anstream::adapter::strip_str(message)),
        _ => format!("{message}\n"),
    };
    logging::push(line);
}

fn tell(word: &str, color: AnsiColor, message: &str) {
    let style = color.on_default().effects(anstyle::Effects::BOLD);
    note(&format!("{style}{word}:{style:#} {message}"));
}

/// The first error of writing data, if there was one.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Writes data to standard output. A reader that has gone away is not an error: `atta … | head`.
pub(crate) fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    note_loss(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
}

/// Returns whether anybody still reads the output.
fn note_loss(written: io::Result<()>) -> bool {
    match written {
        Ok(()) => true,
        Err(error) => {
            if error.kind() != ErrorKind::BrokenPipe {
                // Only the first error is kept.
                let _ = LOST.set(error);
            }
            false
        }
    }
}

/// Returns an error if data could not be written, for example because the disk is full.
pub(crate) fn check_written() -> Result<(), Failure> {
    match LOST.get() {
        None => Ok(()),
        Some(error) => Err(Failure::new(format!("can't write to standard output: {error}"))
            .with_hint("the command was executed, and only its output is missing: do not repeat an add")),
    }
}

/// Writes text for people to standard output. Returns whether anybody still reads it.
pub(crate) fn print_styled(text: &str) -> bool {
    let mut stdout = anstream::stdout().lock();
    note_loss(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Writes one JSON document.
pub(crate) fn print_json(data: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(data)
        .map_err(|error| Failure::new(format!("the result can't be written as JSON: {error}")))?;
    print(&(text + "\n"));
    Ok(())
}

/// `text` in a style, or plain.
pub(crate) fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Replaces characters that could move the cursor, reverse the text of a line, or do worse to a terminal, by spaces.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if controls_terminal(c) { ' ' } else { c }).collect()
}

/// [`clean`], but keeps line breaks.
pub(crate) fn clean_lines(text: &str) -> String {
    text.chars().map(|c| if controls_terminal(c) && c != '\n' { ' ' } else { c }).collect()
}

/// Control characters, and those that change the direction of the text after them.
pub(crate) fn controls_terminal(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `1 job`, `2 jobs`.
pub(crate) fn count_of(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_for_a_terminal_can_neither_control_it_nor_reverse_a_line() {
        assert_eq!(clean("a\u{1b}[31mb\nc\u{202e}d\u{2066}e"), "a [31mb c d e");
        assert_eq!(clean_lines("a\nb\u{202e}c"), "a\nb c");
    }
}
