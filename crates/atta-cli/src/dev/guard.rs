//! The guard of an `atta dev`: both ends of the pipe.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use atta_cluster::Guard;

use super::Home;
use super::server;
use crate::output::Failure;

/// The message of the guard that it counts as a user.
const READY: &str = "ready";

/// Starts a guard. When this returns, the server has a user.
pub(super) fn start() -> Result<Guard, Failure> {
    let failed = |error| Failure::new(format!("can't start the guard of the server: {error}"));
    let program = std::env::current_exe().map_err(failed)?;
    let mut guard = Guard::start(Command::new(program).args(["dev", "--guard"]).stdout(Stdio::piped()))
        .map_err(failed)?;
    let Some(answers) = guard.take_output() else {
        return Err(Failure::new("the guard of the server has no output"));
    };
    let mut answer = String::new();
    BufReader::new(answers).read_line(&mut answer).map_err(failed)?;
    if answer.trim_end() != READY {
        return Err(Failure::new("the guard of the server did not start"));
    }
    Ok(guard)
}

/// Lets the guard stop the server, if nobody else uses it, and waits for that.
pub(super) fn finish(mut guard: Guard) -> Result<(), Failure> {
    let ended = guard.finish();
    ended.map_err(|error| Failure::new(format!("can't wait for the guard of the server: {error}")))
}

/// The guard's end: waits until the other end of the pipe is closed, and stops the server if nobody else uses it.
pub(crate) fn watch(home: &Home) -> Result<(), Failure> {
    let user = home.lock_users()?;
    let failed = |error| Failure::new(format!("the guard of the server lost its pipe: {error}"));
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{READY}").and_then(|()| stdout.flush()).map_err(failed)?;
    // Nothing is ever written to the pipe; reading ends when it is closed.
    std::io::stdin().lock().read_to_end(&mut Vec::new()).map_err(failed)?;
    let _start = home.lock_start()?;
    drop(user);
    if home.is_unused() { server::stop(home) } else { Ok(()) }
}
