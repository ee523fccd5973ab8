//! Writes the log on a thread of its own, so that nothing else waits for the reader of standard error: a pipe that nobody
//! reads, or a terminal whose output is stopped.
//!
//! Lines wait in a queue of limited size. If it is full, a line waits for room for a short time. If nothing was written
//! meanwhile, the reader has **stalled**: lines are dropped and counted until something is written again. So a reader that
//! is only slow slows down what prints much, and one that has stopped delays nothing.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The most bytes that wait. A single longer line is accepted if nothing else waits.
const MOST_BYTES: usize = 4 << 20;

/// The most bytes of one write. A write to a pipe that is full blocks until all of it is read.
const CHUNK: usize = 64 << 10;

/// How long a line waits for room.
const PATIENCE: Duration = Duration::from_millis(200);

/// How long the end of the process waits for a reader that reads nothing.
const AT_END: Duration = Duration::from_secs(1);

/// The queue of standard error, if the log was started.
static STDERR: OnceLock<&'static Lines> = OnceLock::new();

/// Starts the thread that writes to standard error. `note` is the line that reports a number of dropped lines.
pub(super) fn start(note: impl Fn(u64) -> String + Send + 'static) -> std::io::Result<&'static Lines> {
    if let Some(lines) = STDERR.get() {
        return Ok(lines);
    }
    let lines: &'static Lines = Box::leak(Box::default());
    std::thread::Builder::new().name("log".into()).spawn(move || {
        lines.write_to(write_to_stderr, note);
    })?;
    // Only tests start the log twice.
    let _ = STDERR.set(lines);
    Ok(lines)
}

/// Writes without the lock that std keeps for standard error: a write that blocks must block nothing else.
fn write_to_stderr(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match rustix::io::write(std::io::stderr().as_fd(), bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(rustix::io::Errno::INTR) => {}
            // A write error is ignored: there is no place to report it.
            Err(_) => return,
        }
    }
}

/// Whether the log was started.
pub(crate) fn is_started() -> bool {
    STDERR.get().is_some()
}

/// Adds a line to the log. It ends with a newline.
pub(crate) fn push(line: String) {
    if let Some(lines) = STDERR.get() {
        lines.push(line);
    }
}

/// Waits until all lines are written, or until nothing was written for a second.
pub(crate) fn flush() {
    if let Some(lines) = STDERR.get() {
        lines.flush();
    }
}

/// Lines on their way to the thread that writes them.
#[derive(Default)]
pub(super) struct Lines {
    state: Mutex<State>,
    /// A line was added.
    added: Condvar,
    /// Something was written.
    written: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<String>,
    /// Of the lines that wait, and of those that are being written.
    bytes: usize,
    /// How often something was written.
    writes: u64,
    has_stalled: bool,
    dropped: u64,
}

impl Lines {
    /// Adds a line. Waits for a short time if there is no room, and drops the line if there is none then.
    pub(super) fn push(&self, line: String) {
        let mut state = self.lock();
        if !state.has_room(line.len()) && !state.has_stalled {
            state = self.wait_for_write(state, PATIENCE, |state| !state.has_room(line.len()));
            state.has_stalled = !state.has_room(line.len());
        }
        if !state.has_room(line.len()) {
            state.dropped += 1;
            return;
        }
        state.bytes += line.len();
        state.waiting.push_back(line);
        self.added.notify_one();
    }

    fn flush(&self) {
        let mut state = self.lock();
        loop {
            let writes = state.writes;
            state = self.wait_for_write(state, AT_END, |state| state.bytes > 0 && state.writes == writes);
            if state.bytes == 0 || state.writes == writes {
                return;
            }
        }
    }

    /// Writes lines forever.
    fn write_to(&self, write: impl Fn(&[u8]), note: impl Fn(u64) -> String) {
        let mut chunk = String::new();
        loop {
            chunk.clear();
            let length = self.take(&mut chunk, &note);
            write(chunk.as_bytes());
            let mut state = self.lock();
            state.bytes -= length;
            state.writes += 1;
            state.has_stalled = false;
            drop(state);
            self.written.notify_all();
        }
    }

    /// Waits for lines, and takes some of them. Returns their length, without that of the note about dropped lines.
    fn take(&self, chunk: &mut String, note: &impl Fn(u64) -> String) -> usize {
        let state = self.lock();
        let is_idle = |state: &mut State| state.waiting.is_empty() && state.dropped == 0;
        let waited = self.added.wait_while(state, is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        while let Some(line) = state.waiting.front()
            && (chunk.is_empty() || chunk.len() + line.len() <= CHUNK)
        {
            chunk.push_str(line);
            state.waiting.pop_front();
        }
        let length = chunk.len();
        // Where the missing lines would be: after all that came before them.
        if state.waiting.is_empty() && state.dropped > 0 {
            chunk.push_str(&note(std::mem::take(&mut state.dropped)));
        }
        length
    }

    /// Waits as long as the condition holds, for this time at the most.
    fn wait_for_write<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        limit: Duration,
        condition: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let end = Instant::now() + limit;
        while condition(&state) {
            let Some(rest) = end.checked_duration_since(Instant::now()) else { break };
            let waited = self.written.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code of others runs while it is locked, so a panic leaves it as it was.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_room(&self, length: usize) -> bool {
        self.bytes == 0 || self.bytes + length <= MOST_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// Lines, and a reader to which a chunk is passed each time that it asks for one.
    fn read_by_hand() -> (Arc<Lines>, Receiver<String>) {
        let lines = Arc::new(Lines::default());
        let (sender, receiver): (SyncSender<String>, _) = sync_channel(0);
        let written = lines.clone();
        std::thread::spawn(move || {
            let write = |bytes: &[u8]| {
                // An error means that the test has ended.
                let _ = sender.send(String::from_utf8_lossy(bytes).into_owned());
            };
            written.write_to(write, |dropped| format!("{dropped} lines are missing\n"));
        });
        (lines, receiver)
    }

    #[test]
    fn lines_are_written_in_order_and_a_flush_waits_for_them() {
        let (lines, reader) = read_by_hand();
        for n in 0..1000 {
            lines.push(format!("{n}\n"));
        }
        let reading = std::thread::spawn(move || {
            let mut all = String::new();
            while !all.ends_with("999\n") {
                all.push_str(&reader.recv().expect("a chunk"));
            }
            all
        });
        lines.flush();
        assert_eq!(lines.lock().bytes, 0);
        let expected: String = (0..1000).map(|n| format!("{n}\n")).collect();
        assert_eq!(reading.join().expect("the reader does not panic"), expected);
    }

    #[test]
    fn a_reader_that_has_stopped_delays_one_line_and_the_others_are_dropped_and_counted() {
        let (lines, reader) = read_by_hand();
        let line = || format!("{}\n", "x".repeat(CHUNK - 1));
        let fitting = MOST_BYTES / CHUNK;
        for _ in 0..fitting {
            lines.push(line());
        }
        let start = Instant::now();
        for _ in 0..100 {
            lines.push(line());
        }
        assert!(start.elapsed() < 50 * PATIENCE, "only the first of 100 lines waited: {:?}", start.elapsed());
        assert_eq!(lines.lock().dropped, 100);
        let mut all = String::new();
        while !all.contains("100 lines are missing") {
            all.push_str(&reader.recv().expect("a chunk"));
        }
        assert_eq!(all.matches('\n').count(), fitting + 1);
        lines.push("back\n".into());
        assert_eq!(reader.recv().expect("a chunk"), "back\n");
    }

    #[test]
    fn the_end_does_not_wait_for_a_reader_that_has_stopped() {
        let (lines, _reader) = read_by_hand();
        lines.push("nobody reads this\n".into());
        lines.flush();
        assert!(lines.lock().bytes > 0);
    }
}
