//! Asks for confirmation before a change that can't be undone.

use std::io::{BufRead, IsTerminal, Write};

use super::Failure;

/// Asks for confirmation, unless `yes` is set. `what` describes all that will happen: "complete 3 jobs".
pub(crate) fn confirm(what: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(format!("not done: confirmation required to {what}"))
            .with_hint("there is no terminal to ask on; use --yes"));
    }
    let mut stderr = anstream::stderr().lock();
    // If the question can't be shown, nobody answers it either.
    let _ = write!(stderr, "{what}? [y/N] ").and_then(|()| stderr.flush());
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Failure::not_so("nothing was done"))
}
