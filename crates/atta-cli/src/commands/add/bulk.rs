//! `atta add --bulk`: a job a line.
//!
//! A file is read twice: the first time to find mistakes, so that a wrong line means that nothing was added. A stream is
//! read once, and an error says how many jobs of the lines before are added. Either way jobs are added in batches, in
//! the order of their lines; a batch is added as a whole or not at all.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};

use atta::{JobKeyMode, JobSpec, RawJobSpec, WorkerUtils};
use chrono::{TimeDelta, Utc};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::warn_of_unknown;
use crate::args::Connection;
use crate::commands::open::open;
use crate::output::time::{When, parse_when};
use crate::output::{Failure, count_of, json_fault, print_json, print_styled};

/// Jobs in one transaction.
const BATCH: usize = 5_000;

/// A batch has no more payload than this, roughly, so that memory stays small.
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

/// A job that is to be added.
struct Pending {
    identifier: String,
    payload: Box<RawValue>,
    spec: JobSpec,
}

/// How the library adds a job: what can go together in one batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Many,
    /// The mode counts for a whole batch.
    ManyPreservingRunAt,
    /// Only one at a time.
    Single,
}

pub(super) async fn run(
    file: &str,
    task: Option<&str>,
    as_json: bool,
    connection: &Connection,
) -> Result<(), Failure> {
    let total = check(file, task)?;
    let utils = open(connection).await?;
    let mut lines = Lines::open(file, task)?;
    lines.ahead = utils.read_clock().await? - Utc::now();
    let mut bulk = Bulk {
        utils,
        batch: Vec::new(),
        bytes: 0,
        way: Way::Many,
        first_line: 1,
        known: HashSet::new(),
        added: 0,
        progress: progress(total),
    };
    let done = bulk.add_all(&mut lines).await;
    bulk.progress.finish_and_clear();
    done?;
    if as_json {
        return print_json(&json!({ "added": bulk.added }));
    }
    print_styled(&format!("added {}\n", count_of(bulk.added, "job")));
    Ok(())
}

/// Reads a file for its mistakes, and counts its jobs. A stream can't be read twice.
fn check(file: &str, task: Option<&str>) -> Result<Option<u64>, Failure> {
    if file == "-" || !std::fs::metadata(file).is_ok_and(|metadata| metadata.is_file()) {
        return Ok(None);
    }
    let mut lines = Lines::open(file, task)?;
    let mut count = 0;
    while lines.next()?.is_some() {
        count += 1;
    }
    Ok(Some(count))
}

/// On a terminal only: that is what the library of progress bars does by itself.
fn progress(total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => {
            (ProgressBar::new(total), "{bar:40} {human_pos} of {human_len} jobs, {per_sec}, {eta} to go")
        }
        None => (ProgressBar::new_spinner(), "{spinner} {human_pos} jobs, {per_sec}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

struct Bulk {
    utils: WorkerUtils,
    batch: Vec<Pending>,
    bytes: usize,
    way: Way,
    /// Of the batch.
    first_line: usize,
    /// Tasks that were asked about.
    known: HashSet<String>,
    added: usize,
    progress: ProgressBar,
}

impl Bulk {
    async fn add_all(&mut self, lines: &mut Lines) -> Result<(), Failure> {
        loop {
            let next = match lines.next() {
                Ok(next) => next,
                Err(failure) => {
                    // What stands before the mistake is as good as if the stream had ended there.
                    self.flush(lines.number - 1).await?;
                    return Err(failure.and(&self.so_far()));
                }
            };
            let Some((job, bytes, way)) = next else { break };
            if !self.takes(way) {
                self.flush(lines.number - 1).await?;
                self.first_line = lines.number;
            }
            self.way = way;
            self.bytes += bytes;
            self.batch.push(job);
        }
        self.flush(lines.number).await
    }

    fn takes(&self, way: Way) -> bool {
        let is_full = self.batch.len() >= BATCH || self.bytes >= BATCH_BYTES;
        !is_full && (self.batch.is_empty() || (way == self.way && way != Way::Single))
    }

    async fn flush(&mut self, last_line: usize) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        if batch.is_empty() {
            return Ok(());
        }
        self.warn_of_unknown(&batch).await;
        let count = add(&self.utils, self.way, batch).await.map_err(|error| {
            let first = self.first_line;
            let none = match first == last_line {
                true => format!("line {first} was not added"),
                false => format!("none of lines {first} to {last_line} was added"),
            };
            Failure::from(error).and(&none).and(&self.so_far())
        })?;
        self.added += count;
        self.progress.inc(count as u64);
        Ok(())
    }

    async fn warn_of_unknown(&mut self, batch: &[Pending]) {
        let tasks = batch.iter().map(|job| job.identifier.as_str());
        let new: Vec<&str> = tasks.filter(|task| self.known.insert((*task).to_owned())).collect();
        if !new.is_empty() {
            warn_of_unknown(&self.utils, &new).await;
        }
    }

    fn so_far(&self) -> String {
        match self.added {
            0 => "nothing was added".to_owned(),
            1 => "before that, 1 job was added".to_owned(),
            added => format!("before that, {added} jobs were added"),
        }
    }
}

async fn add(utils: &WorkerUtils, way: Way, batch: Vec<Pending>) -> atta::Result<usize> {
    if way != Way::Single {
        let jobs: atta::Result<Vec<RawJobSpec>> =
            batch.into_iter().map(|job| RawJobSpec::new(job.identifier, job.payload, job.spec)).collect();
        return utils.insert_raw_jobs(&jobs?).await;
    }
    let count = batch.len();
    for job in batch {
        utils.add_raw_job(job.identifier, job.payload, job.spec).await?;
    }
    Ok(count)
}

/// The lines of a file or stream, one by one.
struct Lines {
    name: String,
    reader: Box<dyn BufRead>,
    /// For lines that name none.
    task: Option<String>,
    /// Of the last line that was read, from 1.
    number: usize,
    /// How far the clock of the database is ahead of this machine's.
    ahead: TimeDelta,
}

impl Lines {
    fn open(file: &str, task: Option<&str>) -> Result<Lines, Failure> {
        let (name, reader): (String, Box<dyn BufRead>) = match file {
            "-" => ("standard input".into(), Box::new(std::io::stdin().lock())),
            path => {
                let file =
                    File::open(path).map_err(|error| Failure::new(format!("can't read {path}: {error}")))?;
                (path.into(), Box::new(BufReader::with_capacity(1 << 16, file)))
            }
        };
        Ok(Lines { name, reader, task: task.map(str::to_owned), number: 0, ahead: TimeDelta::zero() })
    }

    /// The next job, its size, and the way in which it is added. Empty lines are left out.
    fn next(&mut self) -> Result<Option<(Pending, usize, Way)>, Failure> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            self.number += 1;
            let read = self.reader.read_until(b'\n', &mut bytes);
            let read = read.map_err(|error| Failure::new(format!("can't read {}: {error}", self.name)))?;
            if read == 0 {
                self.number -= 1;
                return Ok(None);
            }
            let Ok(text) = std::str::from_utf8(&bytes) else {
                return Err(Failure::new(format!("{}, line {}: this is no UTF-8", self.name, self.number)));
            };
            let text = text.trim_end_matches(['\n', '\r']);
            // Some editors leave a byte order mark at the start of a file.
            let text = if self.number == 1 { text.trim_start_matches('\u{feff}') } else { text };
            if !text.trim().is_empty() {
                return self.read(text).map(Some);
            }
        }
    }

    fn read(&self, text: &str) -> Result<(Pending, usize, Way), Failure> {
        let line: Line = serde_json::from_str(text).map_err(|error| {
            let place = json_fault::describe(text, &error, self.number);
            Failure::new(format!("{}, {place}", self.name)).with_hint(
                "each line is an object such as {\"identifier\": \"send_email\", \"payload\": {\"to\": \"someone\"}}",
            )
        })?;
        let Some(identifier) = line.identifier.or_else(|| self.task.clone()) else {
            return Err(Failure::new(format!("{}, line {}: there is no task", self.name, self.number))
                .with_hint(
                    "name it in the line, \"identifier\": …, or for all lines: atta add TASK --bulk FILE",
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
            // Without a key its mode means nothing, and must not make a batch what it is not.
            job_key_mode: line.job_key_mode.filter(|_| line.job_key.is_some()),
            job_key: line.job_key,
            priority: line.priority,
            flags: line.flags,
        };
        let payload = line.payload.unwrap_or_else(empty_payload);
        Ok((Pending { identifier, payload, spec }, text.len(), way))
    }
}

fn empty_payload() -> Box<RawValue> {
    RawValue::from_string("{}".into()).expect("{} is JSON")
}
