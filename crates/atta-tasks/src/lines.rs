//! Logs the output of a process line by line, in bounded memory.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest part of a line that is kept; the rest is only counted.
const LONGEST_LINE: usize = 8 * 1024;

/// How many bytes are read at a time.
const CHUNK: usize = 16 * 1024;

/// How much of the end of the output is kept for an error.
const TAIL_LINES: usize = 20;
const TAIL_BYTES: usize = 4 * 1024;

/// Passes each line of `source` to `each`, until its end. Bytes that are not UTF-8 are replaced.
///
/// Cancel safe, except that a line that has begun is lost.
pub(super) async fn read_lines(source: impl AsyncRead + Unpin, mut each: impl FnMut(&str)) {
    let mut lines = Lines::new(source);
    while lines.read(&mut each).await == Read::Some {}
}

/// A stream of output that is read in parts.
pub(super) struct Lines<R> {
    source: R,
    cutter: Cutter,
    chunk: Vec<u8>,
}

/// Whether there may be more to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Some,
    End,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(source: R) -> Lines<R> {
        Lines { source, cutter: Cutter::default(), chunk: vec![0; CHUNK] }
    }

    /// Waits for more output, and passes the lines that it completes to `each`. Cancel safe.
    pub(super) async fn read(&mut self, mut each: impl FnMut(&str)) -> Read {
        match self.source.read(&mut self.chunk).await {
            // A pipe that can't be read counts as ended.
            Ok(0) | Err(_) => {
                self.cutter.finish(&mut each);
                Read::End
            }
            Ok(count) => {
                self.cutter.cut(&self.chunk[..count], &mut each);
                Read::Some
            }
        }
    }
}

/// Cuts a stream into lines.
#[derive(Default)]
struct Cutter {
    line: Vec<u8>,
    /// How many bytes of the line were not kept.
    left_out: usize,
}

impl Cutter {
    fn cut(&mut self, mut bytes: &[u8], each: &mut impl FnMut(&str)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.keep(&bytes[..end]);
            self.emit(each);
            bytes = &bytes[end + 1..];
        }
        self.keep(bytes);
    }

    fn finish(&mut self, each: &mut impl FnMut(&str)) {
        if !self.line.is_empty() {
            self.emit(each);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let kept = bytes.len().min(LONGEST_LINE - self.line.len());
        self.line.extend_from_slice(&bytes[..kept]);
        self.left_out += bytes.len() - kept;
    }

    fn emit(&mut self, each: &mut impl FnMut(&str)) {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        let text = String::from_utf8_lossy(line);
        match self.left_out {
            0 => each(&text),
            count => each(&format!("{text}… ({count} more bytes)")),
        }
        self.line.clear();
        self.left_out = 0;
    }
}

/// The last lines.
#[derive(Debug, Default)]
pub(super) struct Tail {
    lines: Mutex<(VecDeque<String>, usize)>,
}

impl Tail {
    pub(super) fn push(&self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        let mut lines = self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (lines, bytes) = &mut *lines;
        let line: String = line.chars().take(TAIL_BYTES / 4).collect();
        *bytes += line.len();
        lines.push_back(line);
        while lines.len() > TAIL_LINES || (*bytes > TAIL_BYTES && lines.len() > 1) {
            *bytes -= lines.pop_front().map_or(0, |first| first.len());
        }
    }

    /// All kept lines, or none if nothing was written.
    pub(super) fn text(&self) -> Option<String> {
        let lines = self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let lines: Vec<&str> = lines.0.iter().map(String::as_str).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let mut seen = Vec::new();
        let mut cutter = Cutter::default();
        for chunk in chunks {
            cutter.cut(chunk, &mut |line: &str| seen.push(line.to_owned()));
        }
        cutter.finish(&mut |line: &str| seen.push(line.to_owned()));
        seen
    }

    #[test]
    fn lines_are_put_together_from_any_pieces() {
        assert_eq!(lines(&[b"on", b"e\ntwo\r\n\nth", b"ree"]), ["one", "two", "", "three"]);
        assert_eq!(lines(&[b"\xff\xfe ok\n"]), ["\u{fffd}\u{fffd} ok"]);
    }

    #[test]
    fn a_line_without_end_is_cut_and_not_kept() {
        let chunk = vec![b'x'; 100_000];
        let mut cutter = Cutter::default();
        let mut seen = Vec::new();
        for _ in 0..100 {
            cutter.cut(&chunk, &mut |line: &str| seen.push(line.to_owned()));
        }
        assert!(cutter.line.capacity() <= 2 * LONGEST_LINE);
        cutter.finish(&mut |line: &str| seen.push(line.to_owned()));
        assert_eq!(seen.len(), 1);
        assert!(seen[0].ends_with("x… (9991808 more bytes)"));
    }

    #[test]
    fn the_tail_keeps_the_end() {
        let tail = Tail::default();
        assert_eq!(tail.text(), None);
        for number in 0..1000 {
            tail.push(&format!("line {number}"));
        }
        let text = tail.text().unwrap();
        assert!(text.starts_with("line 980\n") && text.ends_with("line 999"), "{text}");
        tail.push(&"é".repeat(100_000));
        assert!(tail.text().unwrap().len() <= 2 * TAIL_BYTES);
    }
}
