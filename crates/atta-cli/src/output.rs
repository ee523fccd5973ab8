//! What is told, and how: data to standard output, everything else to standard error.
//!
//! Text for people may carry colours; they are taken out where no terminal shows it, or where `NO_COLOR` is set. JSON
//! is written as it is.

pub(crate) mod ask;
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
use serde::Serialize;

/// Why a command ended without having done its work.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// Something is wrong: exit code 2.
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: None, code: 2 }
    }

    /// All went well, but what was asked for is not so: exit code 1.
    pub(crate) fn not_so(message: impl Into<String>) -> Failure {
        Failure { code: 1, ..Failure::new(message) }
    }

    /// A signal ended it: exit code 130, as shells have it.
    pub(crate) fn interrupted(signal: &str, done: &str) -> Failure {
        Failure { code: 130, ..Failure::new(format!("interrupted by {signal}: {done}")) }
    }

    /// One more line of the message.
    pub(crate) fn and(mut self, line: &str) -> Failure {
        self.message.push('\n');
        self.message.push_str(line);
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// For a line of the log.
    pub(crate) fn with_hint_in_line(&self) -> String {
        self.hint.as_ref().map_or_else(|| self.message.clone(), |hint| format!("{} ({hint})", self.message))
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }
}

impl From<atta::Error> for Failure {
    fn from(error: atta::Error) -> Failure {
        let hint = error.hint().map(str::to_owned);
        Failure { hint, ..Failure::new(error.message()) }
    }
}

/// Writes `error:` and, when we know the cure, `hint:`.
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

/// A line for people beside the data.
pub(crate) fn note(message: &str) {
    // Nobody is left to tell.
    let _ = writeln!(anstream::stderr().lock(), "{message}");
}

fn tell(word: &str, color: AnsiColor, message: &str) {
    let style = color.on_default().effects(anstyle::Effects::BOLD);
    note(&format!("{style}{word}:{style:#} {message}"));
}

/// Why data could not be written, once that has happened.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Writes data to standard output. A reader that has gone away is no error: `atta … | head`.
pub(crate) fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    note_loss(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
}

/// Says whether anybody still reads.
fn note_loss(written: io::Result<()>) -> bool {
    match written {
        Ok(()) => true,
        Err(error) => {
            if error.kind() != ErrorKind::BrokenPipe {
                // The first says enough.
                let _ = LOST.set(error);
            }
            false
        }
    }
}

/// An error if data that were asked for went nowhere, as on a disk that is full.
pub(crate) fn check_written() -> Result<(), Failure> {
    match LOST.get() {
        None => Ok(()),
        Some(error) => Err(Failure::new(format!("can't write to standard output: {error}"))),
    }
}

/// Writes text for people to standard output. Says whether anybody still reads.
pub(crate) fn print_styled(text: &str) -> bool {
    let mut stdout = anstream::stdout().lock();
    note_loss(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Writes one JSON document.
pub(crate) fn print_json(data: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(data)
        .map_err(|error| Failure::new(format!("the answer can't be told as JSON: {error}")))?;
    print(&(text + "\n"));
    Ok(())
}

/// `text` in a style, or plain.
pub(crate) fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// What could move the cursor or do worse to a terminal becomes a space.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// [`clean`], with lines kept apart.
pub(crate) fn clean_lines(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

/// `1 job`, `2 jobs`.
pub(crate) fn count_of(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
