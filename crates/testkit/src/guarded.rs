//! Programs that end together with this process, however it ends: each is the child of a shell that waits at the other
//! end of a pipe.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A guarded program, ended when this value is dropped.
#[derive(Debug)]
pub(crate) struct Guarded {
    shell: Child,
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
        atta_cluster::run_unprivileged(&mut shell).expect("there is a user for servers");
        Guarded::spawn(&mut shell)
    }

    fn spawn(shell: &mut Command) -> Guarded {
        Guarded { shell: shell.spawn().expect("a shell starts") }
    }

    /// Ends the program now, and waits until the shell has finished.
    pub(crate) fn end(&mut self) {
        drop(self.shell.stdin.take());
        // It ends in any case; waiting keeps the order of events.
        let _ = self.shell.wait();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.end();
    }
}

fn shell(command: &Command, subject: impl AsRef<OsStr>, end: &str) -> Command {
    let script = format!("\"$@\" &\nchild=$!\nread -r _\n{end}\n");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &script]).arg(subject).arg(command.get_program()).args(command.get_args());
    // In a process group of its own, so that Ctrl-C reaches us and not the shell.
    shell.current_dir("/").process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
    shell
}
