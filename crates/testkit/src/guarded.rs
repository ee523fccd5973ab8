//! Programs that end together with this process, however it ends: each is the child of a guard.

use std::ffi::OsStr;
use std::process::Command;

use atta_cluster::{Guard, run_unprivileged};

/// A guarded program, ended when this value is dropped.
#[derive(Debug)]
pub(crate) struct Guarded {
    guard: Guard,
}

impl Guarded {
    /// Starts the program of `command`. When it has to end, the shell runs `end`, in which `$child` is the program's
    /// process id and `$0` is `subject`.
    pub(crate) fn start(command: &Command, subject: impl AsRef<OsStr>, end: &str) -> Guarded {
        Guarded::spawn(&mut shell(command, subject, end))
    }

    /// The same, but program and shell run as a user under which PostgreSQL agrees to run.
    pub(crate) fn start_unprivileged(command: &Command, subject: impl AsRef<OsStr>, end: &str) -> Guarded {
        let mut shell = shell(command, subject, end);
        run_unprivileged(&mut shell).expect("there is a user for servers");
        Guarded::spawn(&mut shell)
    }

    fn spawn(shell: &mut Command) -> Guarded {
        Guarded { guard: Guard::start(shell).expect("a shell starts") }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // It ends in any case; waiting keeps the order of events.
        let _ = self.guard.finish();
    }
}

fn shell(command: &Command, subject: impl AsRef<OsStr>, end: &str) -> Command {
    let mut shell = Guard::shell(&format!("\"$@\" &\nchild=$!\nread -r _\n{end}\n"));
    shell.arg(subject).arg(command.get_program()).args(command.get_args());
    shell
}
