//! Asking before something is changed that can't be changed back.

use std::io::{BufRead, IsTerminal, Write};

use super::Failure;

/// Asks, unless `yes` was said beforehand. `what` says all that will happen: "complete 3 jobs".
pub(crate) fn confirm(what: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(format!("not done, for want of a yes: {what}"))
            .with_hint("there is no terminal to ask on; say --yes to go ahead"));
    }
    let mut stderr = anstream::stderr().lock();
    // Without a terminal to show the question there is no answer either.
    let _ = write!(stderr, "{what}? [y/N] ").and_then(|()| stderr.flush());
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Failure::not_so("nothing was done"))
}
