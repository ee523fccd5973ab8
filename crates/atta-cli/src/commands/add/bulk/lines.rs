//! The lines of a bulk file, and their division into batches.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};

use atta::{JobKeyMode, JobSpec};
use chrono::{TimeDelta, Utc};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::output::time::{When, parse_when};
use crate::output::{Failure, count_of, json_fault};

/// The largest number of jobs in one transaction.
const BATCH: usize = 5_000;

/// The approximate limit of payload bytes per batch, so that little memory is needed.
const BATCH_BYTES: usize = 16 << 20;

/// A line of the file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Line {
    #[serde(alias = "task_identifier", alias = "taskIdentifier", alias = "task")]
    identifier: Option<String>,
    payload: Option<Box<RawValue>>,
    #[serde(alias = "queue_name", alias = "queue")]
    queue_name: Option<String>,
    #[serde(alias = "run_at")]
    run_at: Option<RunAt>,
    #[serde(alias = "max_attempts")]
    max_attempts: Option<i16>,
    #[serde(alias = "job_key", alias = "key")]
    job_key: Option<String>,
    #[serde(alias = "job_key_mode", alias = "keyMode", alias = "key_mode")]
    job_key_mode: Option<JobKeyMode>,
    priority: Option<i16>,
    flags: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct RunAt(When);

impl TryFrom<String> for RunAt {
    type Error = String;

    fn try_from(text: String) -> Result<RunAt, String> {
        parse_when(&text).map(RunAt)
    }
}

/// A job to be added.
pub(super) struct Pending {
    pub(super) identifier: String,
    pub(super) payload: Box<RawValue>,
    pub(super) spec: JobSpec,
}

/// How the library adds a job. Only jobs that are added in the same way can share a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Many,
    /// The mode applies to a whole batch.
    ManyPreservingRunAt,
    /// Only one at a time.
    Single,
}

/// Jobs that are added as a whole or not at all.
pub(super) struct Batch {
    pub(super) jobs: Vec<Pending>,
    pub(super) way: Way,
    bytes: usize,
    /// The keys of its jobs.
    keys: HashSet<String>,
    /// The line numbers of its first and last job.
    pub(super) lines: (usize, usize),
}

impl Batch {
    fn new(line: usize, (job, bytes, way): (Pending, usize, Way)) -> Batch {
        let keys = job.spec.job_key.iter().cloned().collect();
        Batch { jobs: vec![job], way, bytes, keys, lines: (line, line) }
    }

    /// Whether the job can be added together with the others. One call can't add two jobs with the same key: the later one
    /// changes the earlier one, which must exist by then.
    fn fits(&self, (job, _, way): &(Pending, usize, Way)) -> bool {
        let has_key = |key| self.keys.contains(key);
        self.way == *way && !job.spec.job_key.as_ref().is_some_and(has_key)
    }

    fn is_full(&self) -> bool {
        self.jobs.len() >= BATCH || self.bytes >= BATCH_BYTES || self.way == Way::Single
    }

    fn push(&mut self, line: usize, (job, bytes, _): (Pending, usize, Way)) {
        self.keys.extend(job.spec.job_key.clone());
        self.jobs.push(job);
        self.bytes += bytes;
        self.lines.1 = line;
    }
}

/// Passes all batches to `send`, and at the end the failure if there was one. Ends early if `send` returns false.
pub(super) fn read_batches(mut lines: Lines, send: impl Fn(Result<Batch, Failure>) -> bool) {
    let mut batch: Option<Batch> = None;
    loop {
        let next = lines.next();
        let line = lines.number;
        let is_sent = match next {
            Ok(Some(job)) => match &mut batch {
                Some(batch) if batch.fits(&job) => {
                    batch.push(line, job);
                    true
                }
                _ => batch.replace(Batch::new(line, job)).is_none_or(|other| send(Ok(other))),
            },
            // The jobs before the error are added, as if the stream had ended there.
            end => {
                if batch.is_none_or(|last| send(Ok(last)))
                    && let Err(failure) = end
                {
                    send(Err(failure));
                }
                return;
            }
        };
        if !is_sent || batch.take_if(|batch| batch.is_full()).is_some_and(|full| !send(Ok(full))) {
            return;
        }
    }
}

/// The lines of a file or stream, one by one.
pub(super) struct Lines {
    name: String,
    reader: Box<dyn BufRead>,
    /// The task of lines that name none.
    task: Option<String>,
    /// The number of the last line that was read, counted from 1.
    number: usize,
    /// Lines before this one are not read as jobs.
    from_line: usize,
    /// How far the clock of the database is ahead of this machine's.
    ahead: TimeDelta,
}

impl Lines {
    pub(super) fn open(
        file: &str,
        task: Option<&str>,
        from_line: usize,
        ahead: TimeDelta,
    ) -> Result<Lines, Failure> {
        let (name, reader): (String, Box<dyn BufRead>) = match file {
            "-" => ("standard input".into(), Box::new(std::io::stdin().lock())),
            path => {
                let file =
                    File::open(path).map_err(|error| Failure::new(format!("can't read {path}: {error}")))?;
                (path.into(), Box::new(BufReader::with_capacity(1 << 16, file)))
            }
        };
        Ok(Lines { name, reader, task: task.map(str::to_owned), number: 0, from_line, ahead })
    }

    /// The next job, its size, and how it is added. Empty lines are skipped.
    pub(super) fn next(&mut self) -> Result<Option<(Pending, usize, Way)>, Failure> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            self.number += 1;
            let read = self.reader.read_until(b'\n', &mut bytes);
            let read = read.map_err(|error| Failure::new(format!("can't read {}: {error}", self.name)))?;
            if read == 0 {
                self.number -= 1;
                return self.end();
            }
            if self.number < self.from_line {
                continue;
            }
            let Ok(text) = std::str::from_utf8(&bytes) else {
                return Err(Failure::new(format!("{}, line {}: not valid UTF-8", self.name, self.number)));
            };
            let text = text.trim_end_matches(['\n', '\r']);
            // Some editors write a byte order mark at the start of a file.
            let text = if self.number == 1 { text.trim_start_matches('\u{feff}') } else { text };
            if !text.trim().is_empty() {
                return self.read(text).map(Some);
            }
        }
    }

    /// An interrupted command may have added everything, and then names the line after the last one.
    fn end<T>(&self) -> Result<Option<T>, Failure> {
        match self.from_line > self.number + 1 {
            true => Err(Failure::new(format!(
                "line {} does not exist in {}, which has {}",
                self.from_line,
                self.name,
                count_of(self.number, "line")
            ))
            .with_hint("use the number that the interrupted command printed, and the same input")),
            false => Ok(None),
        }
    }

    fn read(&self, text: &str) -> Result<(Pending, usize, Way), Failure> {
        let line: Line = serde_json::from_str(text).map_err(|error| {
            let place = json_fault::describe(text, &error, self.number);
            Failure::new(format!("{}, {place}", self.name)).with_hint(
                "each line must be an object such as {\"identifier\": \"send_email\", \"payload\": {\"to\": \"someone\"}}",
            )
        })?;
        let Some(identifier) = line.identifier.or_else(|| self.task.clone()) else {
            return Err(Failure::new(format!("{}, line {}: the task is missing", self.name, self.number))
                .with_hint(
                    "add \"identifier\" to the line, or give one task for all lines: atta add TASK --bulk FILE",
                ));
        };
        let way = match line.job_key_mode {
            _ if line.job_key.is_none() => Way::Many,
            Some(JobKeyMode::PreserveRunAt) => Way::ManyPreservingRunAt,
            Some(JobKeyMode::UnsafeDedupe) => Way::Single,
            _ => Way::Many,
        };
        let spec = JobSpec {
            queue_name: line.queue_name,
            run_at: line.run_at.map(|RunAt(when)| when.after(Utc::now() + self.ahead)),
            max_attempts: line.max_attempts,
            // Without a key, its mode has no meaning and must not decide how the batch is added.
            job_key_mode: line.job_key_mode.filter(|_| line.job_key.is_some()),
            job_key: line.job_key,
            priority: line.priority,
            flags: line.flags,
            ..JobSpec::default()
        };
        spec.check(&identifier).map_err(|error| {
            let message = format!("{}, line {}: {}", self.name, self.number, error.message());
            Failure::new(message).with_hint(error.hint().unwrap_or_default())
        })?;
        let payload = line.payload.unwrap_or_else(empty_payload);
        Ok((Pending { identifier, payload, spec }, text.len(), way))
    }
}

fn empty_payload() -> Box<RawValue> {
    RawValue::from_string("{}".into()).expect("{} is JSON")
}
