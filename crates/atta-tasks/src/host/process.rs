//! One process of a host: starting it, its socket, its output, and its end. Decides nothing about runs.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::Instant;

use super::event::End;
use super::inbox::Inbox;
use crate::executable::describe;
use crate::guard::{Group, Guard};
use crate::lines::{Lines, Read, Tail};
use crate::runtime::Program;
use crate::wire::HostMessage;

/// The host's end of the socket is this file descriptor. It is not standard input, because processes that a task starts
/// must not read it.
const SOCKET: i32 = 3;

/// How long the last messages are read when the process has ended, and how long they are written when it must end:
/// other processes may still have its pipes open, and the process may not read.
const LAST_MESSAGES: Duration = Duration::from_millis(250);

/// A running process. Dropping it kills the process, together with all processes that its tasks have started.
pub(super) struct Process {
    child: Child,
    group: Option<Group>,
    reader: Option<OwnedReadHalf>,
    inbox: Inbox,
    writer: Option<OwnedWriteHalf>,
    /// What is to be written, and how much of it was written.
    outgoing: Vec<u8>,
    written: usize,
    /// The socket is closed for writing when everything is written, at this time at the latest.
    close_at: Option<Instant>,
    stdout: Option<Lines<ChildStdout>>,
    stderr: Option<Lines<ChildStderr>>,
    tail: Tail,
    exit: Option<Exit>,
}

/// The process has ended, and its last messages are read.
struct Exit {
    how: String,
    read_until: Instant,
}

#[derive(Debug)]
pub(super) enum ProcessEvent {
    Messages(Vec<HostMessage>),
    Output(Stream, Vec<String>),
    /// The process takes more messages.
    Written,
    /// The process has closed its end of the socket.
    SocketClosed,
    /// The process has ended, and nothing more comes from it.
    Ended(End),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

impl Process {
    pub(super) fn start(program: &Program, guard: &Arc<Guard>) -> io::Result<Process> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = Command::new(&program.path);
        command.args(&program.arguments);
        if let Some(script) = &program.script {
            command.env("ATTA_HOST_SCRIPT", script);
        }
        let socket = FdMapping { parent_fd: OwnedFd::from(theirs), child_fd: SOCKET };
        command.fd_mappings(vec![socket]).map_err(io::Error::other)?;
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let group = guard.watch(child.id());
        let (reader, writer) = UnixStream::from_std(ours)?.into_split();
        Ok(Process {
            group,
            reader: Some(reader),
            inbox: Inbox::new(program.name.clone()),
            writer: Some(writer),
            outgoing: Vec::new(),
            written: 0,
            close_at: None,
            stdout: child.stdout.take().map(Lines::new),
            stderr: child.stderr.take().map(Lines::new),
            tail: Tail::default(),
            exit: None,
            child,
        })
    }

    /// Whether everything was written.
    pub(super) fn takes_more(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Writes these bytes, while [`Process::next`] is called.
    pub(super) fn send(&mut self, mut bytes: Vec<u8>) {
        match self.outgoing.is_empty() {
            true => self.outgoing = bytes,
            false => self.outgoing.append(&mut bytes),
        }
    }

    /// Makes the process end: the socket is closed for writing as soon as everything is written.
    pub(super) fn close_socket(&mut self) {
        self.close_at = Some(Instant::now() + LAST_MESSAGES);
        self.close_if_written();
    }

    /// Kills the process and those that its tasks have started. Its end is still awaited.
    pub(super) fn kill(&mut self) {
        match &self.group {
            Some(group) => group.signal(Signal::KILL),
            // The process is our child, so it can be killed if it has not ended.
            None => drop(self.child.start_kill()),
        }
    }

    /// Waits for the next thing that happens. Cancel safe.
    pub(super) async fn next(&mut self) -> ProcessEvent {
        loop {
            let is_silent = self.reader.is_none() && self.stdout.is_none() && self.stderr.is_none();
            if let Some(exit) = self.exit.take_if(|exit| is_silent || exit.read_until <= Instant::now()) {
                return ProcessEvent::Ended(End { how: exit.how, stderr: self.tail.text() });
            }
            let read_until = self.exit.as_ref().map(|exit| exit.read_until);
            tokio::select! {
                ended = self.child.wait(), if self.exit.is_none() => self.on_exit(ended),
                is_open = receive(&mut self.reader, self.inbox.buffer()) => {
                    if !is_open {
                        self.reader = None;
                        return ProcessEvent::SocketClosed;
                    }
                    let messages = self.inbox.decode();
                    if !messages.is_empty() {
                        return ProcessEvent::Messages(messages);
                    }
                }
                count = write(&mut self.writer, &self.outgoing[self.written..]) => {
                    if self.on_written(count) {
                        return ProcessEvent::Written;
                    }
                }
                lines = read_output(&mut self.stdout) => return ProcessEvent::Output(Stream::Stdout, lines),
                lines = read_output(&mut self.stderr) => {
                    lines.iter().for_each(|line| self.tail.push(line));
                    return ProcessEvent::Output(Stream::Stderr, lines);
                }
                () = sleep_until(read_until) => {}
                () = sleep_until(self.close_at) => (self.writer, self.close_at) = (None, None),
            }
        }
    }

    fn on_exit(&mut self, ended: io::Result<ExitStatus>) {
        let how = match ended {
            Ok(status) => describe(status),
            Err(error) => format!("can't wait for it: {error}"),
        };
        // Results that it sent just before its end count.
        self.exit = Some(Exit { how, read_until: Instant::now() + LAST_MESSAGES });
    }

    /// Returns whether everything is written. None: the process no longer reads. It is about to end, and its end gives
    /// the reason.
    fn on_written(&mut self, count: Option<usize>) -> bool {
        match count {
            Some(count) => self.written += count,
            None => self.writer = None,
        }
        if self.writer.is_some() && self.written < self.outgoing.len() {
            return false;
        }
        // After one huge payload, this frees the memory.
        (self.outgoing, self.written) = (Vec::new(), 0);
        self.close_if_written();
        true
    }

    fn close_if_written(&mut self) {
        if self.close_at.is_some() && self.outgoing.is_empty() {
            (self.writer, self.close_at) = (None, None);
        }
    }
}

/// Returns whether the socket is still open. Cancel safe; waits forever without a socket.
async fn receive(reader: &mut Option<OwnedReadHalf>, received: &mut Vec<u8>) -> bool {
    match reader {
        Some(reader) => matches!(reader.read_buf(received).await, Ok(count) if count > 0),
        None => std::future::pending().await,
    }
}

/// Returns how much was written; None if nothing can be. Cancel safe; waits forever if there is nothing to write.
async fn write(writer: &mut Option<OwnedWriteHalf>, bytes: &[u8]) -> Option<usize> {
    match writer {
        _ if bytes.is_empty() => std::future::pending().await,
        Some(writer) => writer.write(bytes).await.ok(),
        None => None,
    }
}

/// Reads more lines. At the end, the pipe is closed. Cancel safe; waits forever without a pipe.
async fn read_output<R: AsyncRead + Unpin>(pipe: &mut Option<Lines<R>>) -> Vec<String> {
    let Some(output) = pipe else { return std::future::pending().await };
    let mut lines = Vec::new();
    if output.read(|line| lines.push(line.to_owned())).await == Read::End {
        *pipe = None;
    }
    lines
}

/// Waits forever without a time.
pub(super) async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
