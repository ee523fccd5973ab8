//! How failures are told.

use std::process::ExitCode;

/// Why a command ended without having done its work.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: None }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }
}

impl From<atta::Error> for Failure {
    fn from(error: atta::Error) -> Failure {
        Failure { message: error.message().to_owned(), hint: error.hint().map(str::to_owned) }
    }
}

/// Writes `error:` and, when we know the cure, `hint:`.
#[expect(clippy::print_stderr, reason = "this is where errors are told")]
pub(crate) fn fail(failure: &Failure) -> ExitCode {
    eprintln!("error: {}", failure.message);
    if let Some(hint) = &failure.hint {
        eprintln!("hint: {hint}");
    }
    ExitCode::from(2)
}

/// Writes `warning:` to standard error.
#[expect(clippy::print_stderr, reason = "this is where warnings are told")]
pub(crate) fn warn(text: &str) {
    eprintln!("warning: {text}");
}

/// Writes data to standard output. A reader that has gone away is no error: `atta … | head`.
pub(crate) fn print(text: &str) {
    use std::io::Write;
    // Nobody is left to tell.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
