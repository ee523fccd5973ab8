//! A message from a host, and how its line is decoded.

use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::json::without_half_pairs;

/// A message from a host.
#[derive(Debug)]
pub(crate) enum HostMessage {
    /// All tasks are loaded, except those that were reported before as [`HostMessage::Unloaded`].
    Ready {
        version: String,
        /// The host reports the start of runs that request it.
        reports_start: bool,
    },
    /// A task could not be loaded.
    Unloaded { task: String, error: String },
    /// The tasks of these runs start now.
    Started(Vec<u64>),
    /// These runs have succeeded.
    Done(Vec<u64>),
    /// A run has failed.
    Failed { run: u64, failure: Failure },
    /// A line for the log.
    Log(LogEntry),
    /// A call that expects a reply with the same number: these jobs are to be added.
    Add { call: u64, jobs: Box<RawValue>, preserve_run_at: bool },
    /// A call that can't be read, except for its number. Its reply is this error.
    InvalidCall { call: u64, error: String },
    /// A sign of life.
    Pong(Pong),
}

/// Why a run failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) error: String,
    /// Set if only these items of a batch failed.
    pub(crate) items: Option<Vec<FailedItem>>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct FailedItem {
    pub(crate) index: usize,
    pub(crate) error: String,
}

#[derive(Debug)]
pub(crate) struct LogEntry {
    pub(crate) level: LogLevel,
    pub(crate) message: String,
    /// The run whose task has logged it, if it is known.
    pub(crate) run: Option<u64>,
    pub(crate) meta: Option<Box<RawValue>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

/// Which pings are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pong {
    One(u64),
    All,
}

/// Why a line is no message.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Invalid(serde_json::Error),
    /// It is a JSON object without a member that we know.
    Unknown,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::Invalid(error) => error.fmt(f),
            Unreadable::Unknown => f.write_str("no known message has these members"),
        }
    }
}

impl HostMessage {
    /// Decodes a line. If a run or a call waits for the message and only a part of it is valid, that part is used, and
    /// the rest becomes an error.
    pub(crate) fn decode(line: &[u8]) -> Result<HostMessage, Unreadable> {
        let error = match serde_json::from_slice::<Members>(line) {
            Ok(members) => return members.into_message(),
            Err(error) => error,
        };
        // For example, a text may have been cut between the halves of a surrogate pair.
        let mended = without_half_pairs(&String::from_utf8_lossy(line));
        if let Ok(members) = serde_json::from_str::<Members>(&mended) {
            return members.into_message();
        }
        // If this fails too, the first error is returned.
        let awaited: Awaited = serde_json::from_str(&mended).unwrap_or_default();
        let text = format!("the message of the host is invalid: {error}");
        match awaited {
            Awaited { failed: Some(run), .. } => {
                Ok(HostMessage::Failed { run, failure: Failure { error: text, items: None } })
            }
            Awaited { call: Some(call), .. } => Ok(HostMessage::InvalidCall { call, error: text }),
            Awaited { failed: None, call: None } => Err(Unreadable::Invalid(error)),
        }
    }
}

impl HostMessage {
    /// The message that answers the run or the call to which this start of a line belongs, with an error. None: nobody
    /// waits for the line, or its first member is not the number of a run or a call.
    pub(crate) fn refused(start: &[u8], error: &str) -> Option<HostMessage> {
        let start = String::from_utf8_lossy(&start[..start.len().min(64)]).replace(' ', "");
        let number = |name| start.strip_prefix(name)?.split_once(',')?.0.parse().ok();
        let error = error.to_owned();
        if let Some(run) = number("{\"failed\":") {
            return Some(HostMessage::Failed { run, failure: Failure { error, items: None } });
        }
        number("{\"call\":").map(|call| HostMessage::InvalidCall { call, error })
    }
}

/// The members of all messages. Unknown members are ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Members {
    ready: Option<String>,
    reports_start: bool,
    unloaded: Option<String>,
    started: Option<Vec<u64>>,
    done: Option<Vec<u64>>,
    failed: Option<u64>,
    error: Option<String>,
    items: Option<Vec<FailedItem>>,
    log: Option<String>,
    message: Option<String>,
    run: Option<u64>,
    meta: Option<Box<RawValue>>,
    call: Option<u64>,
    add: Option<Box<RawValue>>,
    preserve_run_at: bool,
    pong: Option<serde_json::Value>,
}

/// The members by which a run or a call recognises the message that it waits for.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Awaited {
    failed: Option<u64>,
    call: Option<u64>,
}

impl Members {
    fn into_message(self) -> Result<HostMessage, Unreadable> {
        Ok(if let Some(runs) = self.done {
            HostMessage::Done(runs)
        } else if let Some(run) = self.failed {
            let error = self.error.unwrap_or_else(|| "the task failed without an error message".into());
            HostMessage::Failed { run, failure: Failure { error, items: self.items } }
        } else if let Some(runs) = self.started {
            HostMessage::Started(runs)
        } else if let Some(level) = self.log {
            let (message, level) = (self.message.unwrap_or_default(), LogLevel::of(&level));
            HostMessage::Log(LogEntry { level, message, run: self.run, meta: self.meta })
        } else if let Some(call) = self.call {
            match self.add {
                Some(jobs) => HostMessage::Add { call, jobs, preserve_run_at: self.preserve_run_at },
                None => {
                    HostMessage::InvalidCall { call, error: "a call must contain the jobs to add".into() }
                }
            }
        } else if let Some(task) = self.unloaded {
            HostMessage::Unloaded { task, error: self.error.unwrap_or_default() }
        } else if let Some(version) = self.ready {
            HostMessage::Ready { version, reports_start: self.reports_start }
        } else if let Some(pong) = self.pong {
            HostMessage::Pong(pong.as_u64().map_or(Pong::All, Pong::One))
        } else {
            return Err(Unreadable::Unknown);
        })
    }
}

impl LogLevel {
    /// An unknown level counts as `info`.
    fn of(word: &str) -> LogLevel {
        match word {
            "error" => LogLevel::Error,
            "warn" | "warning" => LogLevel::Warn,
            "debug" => LogLevel::Debug,
            _ => LogLevel::Info,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_decoded() {
        for (line, expected) in [
            (r#"{"ready":"x 1"}"#, r#"Ready { version: "x 1", reports_start: false }"#),
            (r#"{"ready":"x","reports_start":true}"#, r#"Ready { version: "x", reports_start: true }"#),
            (r#"{"unloaded":"t","error":"e"}"#, r#"Unloaded { task: "t", error: "e" }"#),
            (r#"{"unloaded":"t"}"#, r#"Unloaded { task: "t", error: "" }"#),
            (r#"{"started":[1,2],"new":1}"#, "Started([1, 2])"),
            (r#"{"done":[3]}"#, "Done([3])"),
            (
                r#"{"failed":4,"error":"e"}"#,
                r#"Failed { run: 4, failure: Failure { error: "e", items: None } }"#,
            ),
            (
                r#"{"failed":4}"#,
                r#"Failed { run: 4, failure: Failure { error: "the task failed without an error message", items: None } }"#,
            ),
            (
                r#"{"failed":4,"error":"e","items":[{"index":1,"error":"i"}]}"#,
                r#"Failed { run: 4, failure: Failure { error: "e", items: Some([FailedItem { index: 1, error: "i" }]) } }"#,
            ),
            (
                r#"{"log":"warning","message":"m","run":5,"meta":{"a":1}}"#,
                r#"Log(LogEntry { level: Warn, message: "m", run: Some(5), meta: Some(RawValue({"a":1})) })"#,
            ),
            (r#"{"log":"loud"}"#, r#"Log(LogEntry { level: Info, message: "", run: None, meta: None })"#),
            (
                r#"{"call":6,"add":[],"preserve_run_at":true}"#,
                "Add { call: 6, jobs: RawValue([]), preserve_run_at: true }",
            ),
            (r#"{"call":6}"#, r#"InvalidCall { call: 6, error: "a call must contain the jobs to add" }"#),
            (r#"{"pong":7}"#, "Pong(One(7))"),
            (r#"{"pong":true}"#, "Pong(All)"),
        ] {
            let message = HostMessage::decode(line.as_bytes()).expect(line);
            assert_eq!(format!("{message:?}"), expected, "{line}");
        }
    }

    #[test]
    fn an_invalid_message_still_answers_the_run_or_call_that_waits() {
        let error_of = |line: &[u8]| match HostMessage::decode(line) {
            Ok(HostMessage::Failed { run: 7, failure }) => failure.error,
            Ok(HostMessage::InvalidCall { call: 3, error }) => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(error_of(br#"{"failed":7,"error":"cut \ud83d"}"#), "cut \u{fffd}");
        assert_eq!(error_of(b"{\"failed\":7,\"error\":\"\xff\"}"), "\u{fffd}");
        let invalid = "the message of the host is invalid: ";
        assert!(error_of(br#"{"failed":7,"error":{"code":1}}"#).starts_with(invalid));
        assert!(error_of(br#"{"call":3,"add":[],"preserve_run_at":"yes"}"#).starts_with(invalid));
    }

    #[test]
    fn the_start_of_a_line_shows_who_waits_for_it() {
        let refused = |start: &[u8]| format!("{:?}", HostMessage::refused(start, "e"));
        let call = r#"Some(InvalidCall { call: 12, error: "e" })"#;
        assert_eq!(refused(br#"{"call":12,"add":["#), call);
        assert_eq!(refused(br#"{"call": 12, "add": ["#), call);
        let failed = r#"Some(Failed { run: 3, failure: Failure { error: "e", items: None } })"#;
        assert_eq!(refused(br#"{"failed":3,"error":"x"#), failed);
        for other in [&br#"{"log":"info","run":3,"#[..], b"{\"call\":1", b"{\"call\":x,", b"\xff", b""] {
            assert_eq!(refused(other), "None");
        }
    }

    #[test]
    fn a_line_that_nobody_waits_for_is_reported() {
        for invalid in [&b"{"[..], b"[]x", b"{\"failed\":\"x\"}", b"\xff"] {
            assert!(matches!(HostMessage::decode(invalid), Err(Unreadable::Invalid(_))));
        }
        assert!(matches!(HostMessage::decode(b"{\"what\":1}"), Err(Unreadable::Unknown)));
    }
}
