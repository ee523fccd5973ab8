//! The messages between worker and host: one JSON object per line, as docs/guides/hosts.md describes them.

use std::io::Write;

use atta::{Job, JobKeyMode, JobSpec};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The protocol version in the first line to a host.
const VERSION: u32 = 1;

/// The first line to a host.
#[derive(Serialize)]
pub(super) struct Hello<'a> {
    pub(super) tasks: Vec<HostedTask<'a>>,
    pub(super) concurrency: usize,
    pub(super) connection: &'a str,
    pub(super) schema: &'a str,
    pub(super) worker: Option<&'a str>,
}

#[derive(Serialize)]
pub(super) struct HostedTask<'a> {
    pub(super) identifier: &'a str,
    pub(super) path: std::borrow::Cow<'a, str>,
}

/// A job, without members that have their usual value. Times are in microseconds since 1970.
#[derive(Serialize)]
struct JobWords<'a> {
    id: IdWord,
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

/// An id as text, since not every language has 64-bit integers.
struct IdWord(i64);

impl Serialize for IdWord {
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

impl<'a> JobWords<'a> {
    fn of(job: &'a Job) -> JobWords<'a> {
        let (run_at, created_at, updated_at) = (job.run_at(), job.created_at(), job.updated_at());
        let micros = |time: DateTime<Utc>| time.timestamp_micros();
        JobWords {
            id: IdWord(job.id()),
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
    fn of_added(job: &'a Job) -> JobWords<'a> {
        JobWords {
            task_identifier: Some(job.task_identifier()),
            locked_at: job.locked_at().map(|time| time.timestamp_micros()),
            locked_by: job.locked_by(),
            ..JobWords::of(job)
        }
    }
}

/// Writing to a Vec can't fail, and none of our messages has a map with keys that are not text.
const WRITTEN: &str = "messages can always be written as JSON";

/// `{"hello":1,…}`
pub(super) fn hello(hello: &Hello) -> Vec<u8> {
    #[derive(Serialize)]
    struct Line<'a> {
        hello: u32,
        #[serde(flatten)]
        rest: &'a Hello<'a>,
    }
    let mut line = serde_json::to_vec(&Line { hello: VERSION, rest: hello }).expect(WRITTEN);
    line.push(b'\n');
    line
}

/// `{"run":…}`, for each job: so it is put together by hand, and the payload's text is passed on unchanged. With
/// `reports_start` the host reports when the task starts.
pub(super) fn run(run: u64, job: &Job, reports_start: bool) -> Vec<u8> {
    let out = &mut Vec::with_capacity(job.payload_json().len() + 128);
    write!(out, "{{\"run\":{run},\"task\":").expect(WRITTEN);
    serde_json::to_writer(&mut *out, job.task_identifier()).expect(WRITTEN);
    out.extend_from_slice(b",\"payload\":");
    one_line(out, job.payload_json());
    out.extend_from_slice(b",\"job\":");
    serde_json::to_writer(&mut *out, &JobWords::of(job)).expect(WRITTEN);
    out.extend_from_slice(if reports_start { b",\"report_start\":true}\n" } else { b"}\n" });
    std::mem::take(out)
}

/// `{"abort":[…]}`
pub(super) fn abort(out: &mut Vec<u8>, run: u64) {
    writeln!(out, "{{\"abort\":[{run}]}}").expect(WRITTEN);
}

/// `{"abort":true}`
pub(super) fn abort_all(out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"abort\":true}\n");
}

/// `{"worker":"…"}`
pub(super) fn worker(out: &mut Vec<u8>, id: &str) {
    writeln!(out, "{}", serde_json::json!({ "worker": id })).expect(WRITTEN);
}

/// `{"ping":…,"run":…}`: asks whether the parts of the host that this run needs still work.
pub(super) fn ping(out: &mut Vec<u8>, number: u64, run: u64) {
    writeln!(out, "{{\"ping\":{number},\"run\":{run}}}").expect(WRITTEN);
}

/// Why jobs could not be added.
#[derive(Debug)]
pub(super) struct AddError {
    pub(super) message: String,
    /// The SQLSTATE, if the database refused.
    pub(super) code: Option<String>,
}

impl<T: Into<String>> From<T> for AddError {
    fn from(message: T) -> AddError {
        AddError { message: message.into(), code: None }
    }
}

/// `{"reply":…}`: the jobs that were added, or why they were not.
pub(super) fn reply(call: u64, result: Result<Vec<Job>, AddError>) -> Vec<u8> {
    let mut out = Vec::new();
    match result {
        Err(error) => {
            let mut line = serde_json::json!({ "reply": call, "error": error.message });
            if let Some(code) = error.code {
                line["code"] = code.into();
            }
            writeln!(out, "{line}").expect(WRITTEN);
        }
        Ok(jobs) => {
            write!(out, "{{\"reply\":{call},\"result\":[").expect(WRITTEN);
            for (position, job) in jobs.iter().enumerate() {
                out.extend_from_slice(if position == 0 { b"{\"payload\":" } else { b",{\"payload\":" });
                one_line(&mut out, job.payload_json());
                out.extend_from_slice(b",\"job\":");
                serde_json::to_writer(&mut out, &JobWords::of_added(job)).expect(WRITTEN);
                out.push(b'}');
            }
            out.extend_from_slice(b"]}\n");
        }
    }
    out
}

/// JSON strings contain no line breaks, so line breaks between its parts can become spaces.
fn one_line(out: &mut Vec<u8>, json: &str) {
    let from = out.len();
    out.extend_from_slice(json.as_bytes());
    for byte in &mut out[from..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
}

/// JSON without the white space between its parts.
pub(super) fn compact(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let (mut in_string, mut is_escaped) = (false, false);
    for letter in json.chars() {
        if in_string {
            out.push(letter);
            in_string = is_escaped || letter != '"';
            is_escaped = !is_escaped && letter == '\\';
        } else if !letter.is_ascii_whitespace() {
            out.push(letter);
            in_string = letter == '"';
        }
    }
    out
}

/// A line from a host. Unknown members are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Message {
    /// The host is ready; its name and version.
    pub(super) ready: Option<String>,
    /// With `ready`: the host reports the start of runs that request it.
    pub(super) reports_start: bool,
    /// A task that could not be loaded; with `error`.
    pub(super) unloaded: Option<String>,
    /// Runs whose tasks start now.
    pub(super) started: Option<Vec<u64>>,
    /// Runs that succeeded.
    pub(super) done: Option<Vec<u64>>,
    /// A run that failed; with `error`, or with `items`.
    pub(super) failed: Option<u64>,
    pub(super) error: Option<String>,
    /// The items of a batch that failed.
    pub(super) items: Option<Vec<FailedItem>>,
    /// A log level; with `message`, and optionally `run` and `meta`.
    pub(super) log: Option<String>,
    pub(super) message: Option<String>,
    pub(super) run: Option<u64>,
    pub(super) meta: Option<Box<RawValue>>,
    /// The number of a call that expects a reply; with `add`.
    pub(super) call: Option<u64>,
    pub(super) add: Option<Box<RawValue>>,
    pub(super) preserve_run_at: bool,
    /// The number of a ping, or `true` for all.
    pub(super) pong: Option<serde_json::Value>,
}

/// Parses a line. If somebody waits for a message and only a part of it is valid, that part is used, and the rest
/// becomes an error.
pub(super) fn parse(line: &[u8]) -> serde_json::Result<Message> {
    let error = match serde_json::from_slice(line) {
        Ok(message) => return Ok(message),
        Err(error) => error,
    };
    // For example, a text may have been cut between the halves of a surrogate pair.
    let mended = without_half_pairs(&String::from_utf8_lossy(line));
    if let Ok(message) = serde_json::from_str(&mended) {
        return Ok(message);
    }
    // If this fails too, the first error is returned.
    let awaited: Awaited = serde_json::from_str(&mended).unwrap_or_default();
    if awaited.failed.is_none() && awaited.call.is_none() {
        return Err(error);
    }
    let error = format!("the message of the host is invalid: {error}");
    Ok(Message { failed: awaited.failed, call: awaited.call, error: Some(error), ..Message::default() })
}

/// The messages that somebody waits for.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Awaited {
    failed: Option<u64>,
    call: Option<u64>,
}

/// JSON with \ufffd in place of every unpaired half of a surrogate pair: strings in JavaScript and Python can contain
/// these, and hosts send them.
fn without_half_pairs(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = match (surrogate(rest), rest.get(6..).and_then(surrogate)) {
            (None, _) => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (Some(Half::First), Some(Half::Second)) => 12,
            (Some(_), _) => 0,
        };
        if length == 0 {
            out.push_str("\\ufffd");
            rest = &rest[6..];
        } else {
            out.push_str(&rest[..length]);
            rest = &rest[length..];
        }
    }
    out + rest
}

enum Half {
    First,
    Second,
}

/// Whether the text begins with the escape of half a surrogate pair.
fn surrogate(text: &str) -> Option<Half> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    match u16::from_str_radix(digits, 16).ok()? {
        0xd800..=0xdbff => Some(Half::First),
        0xdc00..=0xdfff => Some(Half::Second),
        _ => None,
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct FailedItem {
    pub(super) index: usize,
    pub(super) error: String,
}

/// A job to add, with JavaScript's names or SQL's.
#[derive(Deserialize)]
struct Add {
    identifier: String,
    payload: Option<Box<RawValue>>,
    #[serde(alias = "queueName")]
    queue_name: Option<String>,
    #[serde(alias = "runAt")]
    run_at: Option<DateTime<Utc>>,
    #[serde(alias = "maxAttempts")]
    max_attempts: Option<i16>,
    #[serde(alias = "jobKey")]
    job_key: Option<String>,
    #[serde(alias = "jobKeyMode")]
    job_key_mode: Option<JobKeyMode>,
    priority: Option<i16>,
    flags: Option<Vec<String>>,
}

/// A job that a host wants to add.
pub(super) struct NewJob {
    pub(super) identifier: String,
    pub(super) payload: Box<RawValue>,
    pub(super) spec: JobSpec,
}

/// The jobs that a host wants to add.
pub(super) fn jobs_to_add(add: &RawValue, preserve_run_at: bool) -> Result<Vec<NewJob>, String> {
    let adds: Vec<Add> = serde_json::from_str(add.get()).map_err(|error| format!("invalid job: {error}"))?;
    Ok(adds.into_iter().map(|add| job_to_add(add, preserve_run_at)).collect())
}

fn job_to_add(add: Add, preserve_run_at: bool) -> NewJob {
    let keeps_time = preserve_run_at && add.job_key.is_some();
    let spec = JobSpec {
        queue_name: add.queue_name,
        run_at: add.run_at,
        max_attempts: add.max_attempts,
        job_key: add.job_key,
        job_key_mode: if keeps_time { Some(JobKeyMode::PreserveRunAt) } else { add.job_key_mode },
        priority: add.priority,
        flags: add.flags,
        ..JobSpec::default()
    };
    let payload = add.payload.unwrap_or_else(|| RawValue::from_string("{}".into()).expect("this is JSON"));
    NewJob { identifier: add.identifier, payload, spec }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_space_between_the_parts_goes() {
        let json = "{ \"a b\" : [1 , \"x \\\" y \\\\\" ,\n\ttrue ] }";
        assert_eq!(compact(json), "{\"a b\":[1,\"x \\\" y \\\\\",true]}");
        assert_eq!(compact(" null "), "null");
    }

    #[test]
    fn half_a_surrogate_pair_is_replaced_and_all_else_stays() {
        let mended =
            without_half_pairs(r#""\ud83d\ude00 \ud83d \ude00 \\ud83d \n\"\u00e4 \ud83d\ud83d\ude00""#);
        assert_eq!(mended, r#""\ud83d\ude00 \ufffd \ufffd \\ud83d \n\"\u00e4 \ufffd\ud83d\ude00""#);
        for odd in ["\\", "\\u", "\\ud8", "\\ü", "\\ud83d\\", "\\ud83d\\u"] {
            assert!(!without_half_pairs(odd).is_empty());
        }
    }

    #[test]
    fn an_invalid_message_still_answers_the_run_or_call_that_waits() {
        let failed = parse(br#"{"failed":7,"error":"cut \ud83d"}"#).unwrap();
        assert_eq!((failed.failed, failed.error.as_deref()), (Some(7), Some("cut \u{fffd}")));
        let failed = parse(b"{\"failed\":7,\"error\":\"\xff\"}").unwrap();
        assert_eq!((failed.failed, failed.error.as_deref()), (Some(7), Some("\u{fffd}")));
        let failed = parse(br#"{"failed":7,"error":{"code":1}}"#).unwrap();
        assert!(
            failed.failed == Some(7) && failed.error.unwrap().contains("the message of the host is invalid")
        );
        let call = parse(br#"{"call":3,"add":[],"preserve_run_at":"yes"}"#).unwrap();
        assert!(call.call == Some(3) && call.add.is_none() && call.error.is_some());
        for invalid in [&b"{"[..], b"[]x", b"{\"failed\":\"x\"}", b"\xff"] {
            assert!(parse(invalid).is_err());
        }
    }

    #[test]
    fn jobs_are_added_under_names_of_javascript_or_sql() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let both = raw(r#"[{"identifier":"a","queueName":"q","runAt":"2026-01-01T00:00:00.000Z"},
                           {"identifier":"b","payload":[1],"queue_name":"q","priority":3}]"#);
        assert_eq!(jobs_to_add(&both, false).unwrap().len(), 2);
        let error = jobs_to_add(&raw(r#"[{"identifier":"a","priority":100000}]"#), false).err().unwrap();
        assert!(error.starts_with("invalid job: "), "{error}");
    }
}
