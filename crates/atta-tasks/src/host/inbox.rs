//! What was received from a host and is not decoded yet: cuts the bytes into lines, and decodes them. Reads nothing
//! itself.

use crate::wire::{HostMessage, Unreadable};

/// How many bytes are read at a time.
const CHUNK: usize = 64 * 1024;

/// The longest line that is accepted from a host: the payload of a job to add has to fit.
const LONGEST_LINE: usize = 64 * 1024 * 1024;

pub(super) struct Inbox {
    /// The name of the host in the log.
    host: String,
    received: Vec<u8>,
    /// Up to here, `received` contains no line break.
    searched: usize,
    /// The start of this line was too long; its rest is skipped.
    skips_line: bool,
    longest_line: usize,
}

impl Inbox {
    pub(super) fn new(host: String) -> Inbox {
        let received = Vec::with_capacity(CHUNK);
        Inbox { host, received, searched: 0, skips_line: false, longest_line: LONGEST_LINE }
    }

    /// Where further bytes are appended.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.received
    }

    /// The messages that have arrived completely.
    pub(super) fn decode(&mut self) -> Vec<HostMessage> {
        let mut messages = Vec::new();
        let mut begin = 0;
        while let Some(length) = self.received[self.searched..].iter().position(|byte| *byte == b'\n') {
            let end = self.searched + length;
            if !std::mem::take(&mut self.skips_line) {
                messages.extend(self.decode_line(&self.received[begin..end]));
            }
            begin = end + 1;
            self.searched = begin;
        }
        self.received.drain(..begin);
        if self.received.len() > self.longest_line {
            if !self.skips_line {
                messages.extend(self.refuse_long_line(&self.received));
            }
            self.skips_line = true;
            self.received.clear();
        }
        self.searched = self.received.len();
        if self.received.is_empty() {
            self.received.shrink_to(CHUNK);
        }
        messages
    }

    /// A message that can't be decoded is logged and ignored: a host may send more than we know.
    fn decode_line(&self, line: &[u8]) -> Option<HostMessage> {
        // One read can return more than the limit, and with it the end of the line.
        if line.len() > self.longest_line {
            return self.refuse_long_line(line);
        }
        let start = || String::from_utf8_lossy(&line[..line.len().min(200)]);
        let host = self.host.as_str();
        match HostMessage::decode(line) {
            Ok(message) => return Some(message),
            Err(Unreadable::Invalid(error)) => {
                tracing::warn!(host, %error, "ignored an invalid message of the host: {}", start());
            }
            Err(Unreadable::Unknown) => {
                tracing::warn!(host, "ignored an unknown message of the host: {}", start());
            }
        }
        None
    }

    /// If a run or a call waits for the message that starts like this, it gets an error.
    fn refuse_long_line(&self, start: &[u8]) -> Option<HostMessage> {
        let limit = self.longest_line;
        let error = format!("the message of the host is too long: at most {limit} bytes are accepted");
        let message = HostMessage::refused(start, &error);
        if message.is_none() {
            tracing::error!(host = self.host, "ignored a message of the host that is too long");
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages that come out if the bytes arrive in parts of this length.
    fn decode_in_parts(bytes: &[u8], length: usize) -> Vec<String> {
        let mut inbox = Inbox { longest_line: 40, ..Inbox::new("test".to_owned()) };
        let mut messages = Vec::new();
        for part in bytes.chunks(length) {
            inbox.buffer().extend_from_slice(part);
            messages.extend(inbox.decode().iter().map(|message| match message {
                HostMessage::Done(runs) => format!("done {runs:?}"),
                HostMessage::InvalidCall { call, .. } => format!("refused call {call}"),
                HostMessage::Failed { run, .. } => format!("failed {run}"),
                other => format!("{other:?}"),
            }));
        }
        messages
    }

    #[test]
    fn a_long_line_is_refused_in_whatever_parts_it_arrives() {
        let text = "x".repeat(50);
        let bytes = format!(
            "{{\"done\":[1]}}\n{{\"call\":7,\"add\":\"{text}\"}}\n{{\"done\":[2]}}\n{{\"failed\":3,\"error\":\"{text}\"}}\n{{\"log\":\"{text}\"}}\n{{\"done\":[4]}}\n"
        );
        for length in 1..=bytes.len() {
            let messages = decode_in_parts(bytes.as_bytes(), length);
            let expected = ["done [1]", "refused call 7", "done [2]", "failed 3", "done [4]"];
            assert_eq!(messages, expected, "in parts of {length} bytes");
        }
    }
}
