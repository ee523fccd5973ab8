//! A message to a host, and how it is encoded.

use std::borrow::Cow;
use std::io::Write;

use atta::Job;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::json::append_line;

/// The version of the protocol, in the first message to a host.
const VERSION: u32 = 1;

/// Writing to a Vec can't fail, and none of our messages has a map with keys that are not text.
const WRITTEN: &str = "messages can always be written as JSON";

/// A message to a host.
pub(crate) enum WorkerMessage<'a> {
    /// The first message: load these tasks.
    Hello(Hello<'a>),
    /// The worker's id. It is sent before the first run, unless the first message had it.
    Worker { id: &'a str },
    /// Run a job. With `report_start`, the host reports when the task starts.
    Run { run: u64, job: &'a Job, report_start: bool },
    /// This run must stop, or must not start any more.
    Abort { run: u64 },
    /// All current and future runs must stop.
    AbortAll,
    /// Asks whether the parts of the host that this run needs still work.
    Ping { number: u64, run: u64 },
    /// The reply to a call: the jobs that were added, or why they were not.
    Reply { call: u64, result: Result<&'a [Job], &'a AddError> },
}

#[derive(Serialize)]
pub(crate) struct Hello<'a> {
    pub(crate) tasks: Vec<HostedTask<'a>>,
    pub(crate) concurrency: usize,
    /// [`ConnectionData`](atta::ConnectionData) for the clients of tasks, if there is any.
    pub(crate) connection: Option<&'a RawValue>,
    pub(crate) schema: &'a str,
    /// The worker's id, if it is known.
    pub(crate) worker: Option<&'a str>,
}

#[derive(Serialize)]
pub(crate) struct HostedTask<'a> {
    pub(crate) identifier: &'a str,
    pub(crate) path: Cow<'a, str>,
}

/// Why jobs could not be added.
#[derive(Debug)]
pub(crate) struct AddError {
    pub(crate) message: String,
    /// The SQLSTATE, if the database refused.
    pub(crate) code: Option<String>,
}

impl<T: Into<String>> From<T> for AddError {
    fn from(message: T) -> AddError {
        AddError { message: message.into(), code: None }
    }
}

impl WorkerMessage<'_> {
    /// The message as a line.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.append_to(&mut out);
        out
    }

    /// Appends the message as a line.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            WorkerMessage::Hello(hello) => append_hello(out, hello),
            WorkerMessage::Worker { id } => {
                write!(out, "{}", serde_json::json!({ "worker": id })).expect(WRITTEN)
            }
            WorkerMessage::Run { run, job, report_start } => append_run(out, *run, job, *report_start),
            WorkerMessage::Abort { run } => write!(out, "{{\"abort\":[{run}]}}").expect(WRITTEN),
            WorkerMessage::AbortAll => out.extend_from_slice(b"{\"abort\":true}"),
            WorkerMessage::Ping { number, run } => {
                write!(out, "{{\"ping\":{number},\"run\":{run}}}").expect(WRITTEN);
            }
            WorkerMessage::Reply { call, result: Ok(jobs) } => append_added(out, *call, jobs),
            WorkerMessage::Reply { call, result: Err(error) } => append_refusal(out, *call, error),
        }
        out.push(b'\n');
    }
}

fn append_hello(out: &mut Vec<u8>, hello: &Hello) {
    #[derive(Serialize)]
    struct Line<'a> {
        hello: u32,
        #[serde(flatten)]
        rest: &'a Hello<'a>,
    }
    serde_json::to_writer(out, &Line { hello: VERSION, rest: hello }).expect(WRITTEN);
}

/// There is one such message per job: so it is put together by hand, and the payload's text is passed on unchanged.
fn append_run(out: &mut Vec<u8>, run: u64, job: &Job, report_start: bool) {
    out.reserve(job.payload_json().len() + 128);
    write!(out, "{{\"run\":{run},\"task\":").expect(WRITTEN);
    serde_json::to_writer(&mut *out, job.task_identifier()).expect(WRITTEN);
    out.extend_from_slice(b",\"payload\":");
    append_line(out, job.payload_json());
    out.extend_from_slice(b",\"job\":");
    serde_json::to_writer(&mut *out, &JobMembers::of(job)).expect(WRITTEN);
    out.extend_from_slice(if report_start { b",\"report_start\":true}" } else { b"}" });
}

fn append_added(out: &mut Vec<u8>, call: u64, jobs: &[Job]) {
    write!(out, "{{\"reply\":{call},\"result\":[").expect(WRITTEN);
    for (position, job) in jobs.iter().enumerate() {
        out.extend_from_slice(if position == 0 { b"{\"payload\":" } else { b",{\"payload\":" });
        append_line(out, job.payload_json());
        out.extend_from_slice(b",\"job\":");
        serde_json::to_writer(&mut *out, &JobMembers::of_added(job)).expect(WRITTEN);
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
}

fn append_refusal(out: &mut Vec<u8>, call: u64, error: &AddError) {
    let mut line = serde_json::json!({ "reply": call, "error": error.message });
    if let Some(code) = &error.code {
        line["code"] = code.as_str().into();
    }
    write!(out, "{line}").expect(WRITTEN);
}

/// A job, without members that have their usual value. Times are in microseconds since 1970.
#[derive(Serialize)]
struct JobMembers<'a> {
    /// As text, since not every language has 64-bit integers.
    id: IdText,
    task_id: i32,
    attempts: i16,
    run_at: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<i64>,
    #[serde(skip_serializing_if = "is_usual_max_attempts")]
    max_attempts: i16,
    #[serde(skip_serializing_if = "is_zero")]
    priority: i16,
    #[serde(skip_serializing_if = "is_zero_revision")]
    revision: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_queue_id: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    flags: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_identifier: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    locked_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    locked_by: Option<&'a str>,
}

struct IdText(i64);

impl Serialize for IdText {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

fn is_usual_max_attempts(count: &i16) -> bool {
    *count == 25
}

fn is_zero(priority: &i16) -> bool {
    *priority == 0
}

fn is_zero_revision(revision: &i32) -> bool {
    *revision == 0
}

impl<'a> JobMembers<'a> {
    fn of(job: &'a Job) -> JobMembers<'a> {
        let (run_at, created_at, updated_at) = (job.run_at(), job.created_at(), job.updated_at());
        let micros = |time: DateTime<Utc>| time.timestamp_micros();
        JobMembers {
            id: IdText(job.id()),
            task_id: job.task_id(),
            attempts: job.attempts(),
            run_at: micros(run_at),
            created_at: (created_at != run_at).then(|| micros(created_at)),
            updated_at: (updated_at != created_at).then(|| micros(updated_at)),
            max_attempts: job.max_attempts(),
            priority: job.priority(),
            revision: job.revision(),
            key: job.key(),
            queue_name: job.queue_name(),
            job_queue_id: job.job_queue_id(),
            last_error: job.last_error(),
            flags: job.flags(),
            task_identifier: None,
            locked_at: None,
            locked_by: None,
        }
    }

    /// A job that was added, including the members that a host can't know.
    fn of_added(job: &'a Job) -> JobMembers<'a> {
        JobMembers {
            task_identifier: Some(job.task_identifier()),
            locked_at: job.locked_at().map(|time| time.timestamp_micros()),
            locked_by: job.locked_by(),
            ..JobMembers::of(job)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        let (then, now) = ("1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z");
        let text = format!(
            r#"{{"id": 9007199254740993, "task_id": 3, "task_identifier": "a/b", "job_queue_id": null,
                "queue_name": null, "payload": {{ "a":
                1 }}, "priority": 0, "run_at": "{then}", "attempts": 1, "max_attempts": 25, "last_error": null,
                "created_at": "{then}", "updated_at": "{now}", "key": "k", "locked_at": null, "locked_by": null,
                "revision": 0, "flags": null}}"#
        );
        serde_json::from_str(&text).expect("a job")
    }

    #[test]
    fn every_message_is_one_line_of_json() {
        let job = job();
        let jobs = [job.clone()];
        let connection = RawValue::from_string(r#"{"libpq":{}}"#.into()).expect("JSON");
        let hello = Hello {
            tasks: vec![HostedTask { identifier: "a/b", path: "/t/a/b.js".into() }],
            concurrency: 2,
            connection: Some(&connection),
            schema: "s",
            worker: None,
        };
        let refused = AddError { message: "no\nway".into(), code: Some("GWBID".into()) };
        let members = r#"{"id":"9007199254740993","task_id":3,"attempts":1,"run_at":1000000,"updated_at":2000000,"key":"k"}"#;
        let added = members.replace("\"k\"}", "\"k\",\"task_identifier\":\"a/b\"}");
        let payload = job.payload_json().replace('\n', " ");
        for (message, expected) in [
            (
                WorkerMessage::Hello(hello),
                r#"{"hello":1,"tasks":[{"identifier":"a/b","path":"/t/a/b.js"}],"concurrency":2,"connection":{"libpq":{}},"schema":"s","worker":null}"#.to_owned(),
            ),
            (WorkerMessage::Worker { id: "w\"1" }, r#"{"worker":"w\"1"}"#.to_owned()),
            (
                WorkerMessage::Run { run: 7, job: &job, report_start: false },
                format!(r#"{{"run":7,"task":"a/b","payload":{payload},"job":{members}}}"#),
            ),
            (
                WorkerMessage::Run { run: 8, job: &job, report_start: true },
                format!(r#"{{"run":8,"task":"a/b","payload":{payload},"job":{members},"report_start":true}}"#),
            ),
            (WorkerMessage::Abort { run: 7 }, r#"{"abort":[7]}"#.to_owned()),
            (WorkerMessage::AbortAll, r#"{"abort":true}"#.to_owned()),
            (WorkerMessage::Ping { number: 1, run: 7 }, r#"{"ping":1,"run":7}"#.to_owned()),
            (
                WorkerMessage::Reply { call: 5, result: Ok(&jobs) },
                format!(r#"{{"reply":5,"result":[{{"payload":{payload},"job":{added}}}]}}"#),
            ),
            (
                WorkerMessage::Reply { call: 5, result: Err(&refused) },
                r#"{"code":"GWBID","error":"no\nway","reply":5}"#.to_owned(),
            ),
        ] {
            let line = String::from_utf8(message.encode()).expect("UTF-8");
            assert_eq!(line, expected + "\n");
            assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok(), "{line}");
            assert_eq!(line.matches(['\n', '\r']).count(), 1);
        }
    }
}
