//! Processes that a test starts, and ends in all the ways in which a process can end.

use std::process::{Command, ExitStatus, Stdio};

use atta_cluster::OwnedChild;

use crate::wait_for;

/// A process of a test, killed when this value is dropped if it still runs.
#[derive(Debug)]
pub struct Process {
    child: OwnedChild,
}

/// The signals that a test sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: shut down in an orderly way.
    Terminate,
    /// SIGSTOP: pause, as on an overloaded machine.
    Stop,
    /// SIGCONT: continue.
    Continue,
}

impl Process {
    /// Starts it without standard input and output; its standard error is inherited.
    pub fn start(command: &mut Command) -> Process {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Process { child: OwnedChild::spawn(command).expect("a process of the test starts") }
    }

    /// Starts this test binary again, to run one ignored test function, with `value` in the environment variable
    /// `name`.
    pub fn of_this_test(function: &str, name: &str, value: &str) -> Process {
        Process::start(Process::command_of_this_test(function).env(name, value))
    }

    /// The command of [`Process::of_this_test`], to which callers can add.
    pub fn command_of_this_test(function: &str) -> Command {
        let binary = std::env::current_exe().expect("this process knows its binary");
        let mut command = Command::new(binary);
        command.args(["--exact", function, "--ignored", "--nocapture", "--test-threads=1"]);
        command
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, by the shell's own `kill`, which exists everywhere.
    pub fn signal(&self, signal: Signal) {
        let name = match signal {
            Signal::Terminate => "TERM",
            Signal::Stop => "STOP",
            Signal::Continue => "CONT",
        };
        let sent = Command::new("/bin/sh").args(["-c", &format!("kill -{name} {}", self.id())]).status();
        assert!(sent.expect("a shell starts").success(), "process {} takes a signal {name}", self.id());
    }

    /// Ends it as `kill -9` does: it can't react.
    pub fn kill(&mut self) {
        self.child.kill().expect("a process of ours can be killed");
        self.child.wait().expect("a process of ours can be waited for");
    }

    /// Waits until it has ended by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        wait_for("a process to end", || {
            let status = self.child.try_wait().expect("the state of a process of ours can be read");
            async move { status }
        })
        .await
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the state of a process of ours can be read").is_some()
    }

    /// The memory that it uses, in bytes, if the system reports it.
    pub fn memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kilobytes * 1024)
    }
}
