//! Processes that we start: children that must not outlive us, and guards that must.

use std::io::{self, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A child process that is killed and waited for when this value is dropped. It may have ended before.
#[derive(Debug)]
pub struct OwnedChild(Child);

impl OwnedChild {
    /// Starts the command.
    pub fn spawn(command: &mut Command) -> io::Result<OwnedChild> {
        command.spawn().map(OwnedChild)
    }
}

impl Deref for OwnedChild {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for OwnedChild {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for OwnedChild {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Our end of a guard: a process that cleans up when we have ended.
///
/// Its standard input is a pipe that only we hold open. The pipe closes when we end, in whatever way: a return, a
/// panic, Ctrl-C, `kill -9`. The guard then does its work. It has a process group of its own, so that Ctrl-C reaches
/// us and not the guard. Dropping this value starts its work as well, without waiting for it.
#[derive(Debug)]
pub struct Guard {
    process: Child,
    /// None once the guard has to do its work.
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Starts the command as a guard.
    pub fn start(command: &mut Command) -> io::Result<Guard> {
        let mut process = command.process_group(0).stdin(Stdio::piped()).spawn()?;
        let pipe = process.stdin.take();
        Ok(Guard { process, pipe })
    }

    /// The command of a guard that is a shell: it runs `script` once the pipe is closed. Arguments can be added; the
    /// first is `$0`.
    pub fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).current_dir("/").stdout(Stdio::null());
        command
    }

    /// Sends the guard a line.
    pub fn send(&mut self, line: &str) -> io::Result<()> {
        match &mut self.pipe {
            Some(pipe) => pipe.write_all(format!("{line}\n").as_bytes()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// The guard's standard output, if the command has piped it and it was not taken yet.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.process.stdout.take()
    }

    /// Makes the guard do its work now, and waits until it has ended.
    pub fn finish(&mut self) -> io::Result<()> {
        drop(self.pipe.take());
        self.process.wait().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    #[test]
    fn a_child_ends_with_its_owner() {
        let mut command = Command::new("sleep");
        let mut child = OwnedChild::spawn(command.arg("600").stdout(Stdio::piped())).unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        drop(child);
        // The pipe closes with the process.
        assert_eq!(output.read_line(&mut String::new()).unwrap(), 0);
    }

    #[test]
    fn a_guard_works_when_its_pipe_closes_and_not_before() {
        for is_finished in [true, false] {
            let script = "read -r line; echo \"$0 $line\"; cat; echo cleaned up";
            let mut guard = Guard::start(Guard::shell(script).arg("guard").stdout(Stdio::piped())).unwrap();
            let mut lines = BufReader::new(guard.take_output().unwrap()).lines();
            guard.send("hello").unwrap();
            assert_eq!(lines.next().unwrap().unwrap(), "guard hello");
            if is_finished {
                guard.finish().unwrap();
                assert!(guard.send("too late").is_err());
            } else {
                drop(guard);
            }
            assert_eq!(lines.next().unwrap().unwrap(), "cleaned up");
        }
    }
}
