//! `atta add --bulk`: adds one job per line.
//!
//! A file is read twice, the first time to find errors: if a line is invalid, nothing is added. A stream is read only
//! once, and an error reports how many jobs of earlier lines were added, and where to continue. In both cases jobs are added in batches, in
//! the order of their lines; a batch is added as a whole or not at all.
//!
//! A separate thread reads, so that signals are handled while it waits for a stream. After a signal the current batch
//! is added, and the command ends with the number of the line to continue from.

mod lines;

use std::collections::HashSet;

use atta::{RawJobSpec, WorkerUtils};
use chrono::{TimeDelta, Utc};
use indicatif::ProgressBar;
use serde_json::json;
use tokio::sync::mpsc;

use super::warn_of_unknown;
use crate::args::Connection;
use crate::commands::interrupt::Interrupts;
use crate::commands::open::open;
use crate::output::progress::progress;
use crate::output::{Failure, count_of, print_json, print_styled};
use lines::{Batch, Lines, Pending, Way, read_batches};

/// The arguments of the command line.
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    /// The task of lines that name none.
    pub(super) task: Option<&'a str>,
    /// The first line to add, counted from 1.
    pub(super) from_line: usize,
}

pub(super) async fn run(source: Source<'_>, as_json: bool, connection: &Connection) -> Result<(), Failure> {
    let mut interrupts = Interrupts::watch()?;
    let (total, utils, ahead) = tokio::select! {
        biased;
        name = interrupts.requested() => return Err(Failure::interrupted(name, "no job was added")),
        prepared = prepare(&source, connection) => prepared?,
    };
    let task = source.task.map_or(String::new(), |task| format!("{task} "));
    let mut bulk = Bulk {
        utils,
        again: format!("atta add {task}--bulk {} --from-line", source.file),
        known: HashSet::new(),
        added: 0,
        next_line: source.from_line,
        progress: progress(total),
    };
    let done = bulk.add_all(read(&source, ahead), interrupts).await;
    bulk.progress.finish_and_clear();
    if as_json && matches!(done, Ok(()) | Err(End::Signal(_))) {
        print_json(&match done {
            Ok(()) => json!({ "added": bulk.added }),
            Err(_) => json!({ "added": bulk.added, "next_line": bulk.next_line }),
        })?;
    } else if done.is_ok() {
        print_styled(&format!("added {}\n", count_of(bulk.added, "job")));
    }
    done.map_err(|end| match end {
        End::Failure(failure) => failure,
        End::Signal(signal) => bulk.interrupted(signal),
    })
}

/// The number of jobs if it is known, the connection, and how far the database's clock is ahead of ours.
async fn prepare(
    source: &Source<'_>,
    connection: &Connection,
) -> Result<(Option<u64>, WorkerUtils, TimeDelta), Failure> {
    let (file, task, from_line) = (source.file.to_owned(), source.task.map(str::to_owned), source.from_line);
    // In a thread of its own, so that signals are handled meanwhile.
    let checked = tokio::task::spawn_blocking(move || check(&file, task.as_deref(), from_line));
    let total =
        checked.await.map_err(|error| Failure::new(format!("reading {}: {error}", source.file)))??;
    let utils = open(connection).await?;
    let ahead = utils.read_clock().await? - Utc::now();
    Ok((total, utils, ahead))
}

/// Reads a file to find errors, and counts its jobs. Skips a stream, which can't be read twice.
fn check(file: &str, task: Option<&str>, from_line: usize) -> Result<Option<u64>, Failure> {
    if file == "-" {
        return if is_stdin_closed() { Err(Failure::new("standard input is closed")) } else { Ok(None) };
    }
    let metadata =
        std::fs::metadata(file).map_err(|error| Failure::new(format!("can't read {file}: {error}")))?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let mut lines = Lines::open(file, task, from_line, TimeDelta::zero())?;
    let mut count = 0;
    while lines.next()?.is_some() {
        count += 1;
    }
    Ok(Some(count))
}

/// Whether the process was started without a standard input. Rust then opens the null device in its place, for reading
/// and writing; a shell with `</dev/null` opens it for reading.
fn is_stdin_closed() -> bool {
    use std::os::unix::fs::MetadataExt;
    let stdin = std::io::stdin();
    let is_writable =
        rustix::fs::fcntl_getfl(&stdin).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::RDWR));
    let null = std::fs::metadata("/dev/null").map(|null| null.rdev());
    is_writable
        && matches!((rustix::fs::fstat(&stdin), null), (Ok(it), Ok(null)) if it.st_rdev == null && null != 0)
}

/// Starts a thread that reads. One batch waits while another is added.
fn read(source: &Source<'_>, ahead: TimeDelta) -> mpsc::Receiver<Result<Batch, Failure>> {
    let (sender, batches) = mpsc::channel(1);
    let (file, task, from_line) = (source.file.to_owned(), source.task.map(str::to_owned), source.from_line);
    // The thread is not awaited: after a signal it may wait for a stream forever, and ends with the process.
    tokio::task::spawn_blocking(move || {
        let send = |batch| sender.blocking_send(batch).is_ok();
        match Lines::open(&file, task.as_deref(), from_line, ahead) {
            Ok(lines) => read_batches(lines, send),
            Err(failure) => drop(send(Err(failure))),
        }
    });
    batches
}

/// Why not all jobs were added.
enum End {
    Failure(Failure),
    /// The name of the signal, and the lines of a batch whose outcome is unknown.
    Signal(Signal),
}

struct Signal {
    name: &'static str,
    /// The lines of the batch that may or may not have been added.
    unknown: Option<(usize, usize)>,
}

struct Bulk {
    utils: WorkerUtils,
    /// The command that continues, without the number of the line.
    again: String,
    /// Tasks that were already checked.
    known: HashSet<String>,
    added: usize,
    /// The first line that is not added yet.
    next_line: usize,
    progress: ProgressBar,
}

impl Bulk {
    async fn add_all(
        &mut self,
        mut batches: mpsc::Receiver<Result<Batch, Failure>>,
        mut interrupts: Interrupts,
    ) -> Result<(), End> {
        loop {
            let batch = tokio::select! {
                biased;
                name = interrupts.requested() => return Err(End::Signal(Signal { name, unknown: None })),
                batch = batches.recv() => batch,
            };
            let batch = match batch {
                None => return Ok(()),
                Some(Ok(batch)) => batch,
                Some(Err(failure)) => return Err(End::Failure(self.stopped(failure))),
            };
            let lines = batch.lines;
            match interrupts.finish(self.add(batch)).await {
                Ok(added) => added.map_err(End::Failure)?,
                Err(name) => return Err(End::Signal(Signal { name, unknown: Some(lines) })),
            }
        }
    }

    async fn add(&mut self, batch: Batch) -> Result<(), Failure> {
        let (first, last) = batch.lines;
        let denied = self.warn_of_unknown(&batch.jobs).await;
        let count = add(&self.utils, batch.way, batch.jobs).await.map_err(|error| {
            let may_be_added = error.may_have_happened();
            let lines = match (first == last, may_be_added) {
                (true, false) => format!("line {first} was not added"),
                (true, true) => format!("line {first} may have been added: the reply was lost"),
                (false, false) => format!("none of lines {first} to {last} was added"),
                (false, true) => {
                    format!("lines {first} to {last} may have been added, all or none: the reply was lost")
                }
            };
            let failure = Failure::from(error).with_hint_if_denied(denied).and(&lines);
            match may_be_added {
                true => failure.and(&self.so_far()).with_hint(format!(
                    "check with atta jobs --newest whether they are there, then continue with --from-line {first} or \
                     --from-line {}",
                    last + 1
                )),
                false => self.stopped(failure),
            }
        })?;
        self.added += count;
        self.next_line = last + 1;
        self.progress.inc(count as u64);
        Ok(())
    }

    async fn warn_of_unknown(&mut self, batch: &[Pending]) -> Option<String> {
        let tasks = batch.iter().map(|job| job.identifier.as_str());
        let new: Vec<&str> = tasks.filter(|task| self.known.insert((*task).to_owned())).collect();
        if new.is_empty() { None } else { warn_of_unknown(&self.utils, &new).await }
    }

    /// The jobs of the lines from `next_line` on were not added. A repetition must not add the others twice.
    fn stopped(&self, failure: Failure) -> Failure {
        let failure = failure.and(&self.so_far());
        match self.added {
            0 => failure,
            _ => failure.with_further_hint(&format!(
                "to continue after the last job that was added, run: {} {}",
                self.again, self.next_line
            )),
        }
    }

    fn so_far(&self) -> String {
        match self.added {
            0 => "before that, no job was added".to_owned(),
            1 => "before that, 1 job was added".to_owned(),
            added => format!("before that, {added} jobs were added"),
        }
    }

    fn interrupted(&self, signal: Signal) -> Failure {
        let (added, next) = (count_of(self.added, "job"), self.next_line);
        let was = if self.added == 1 { "was" } else { "were" };
        let mut failure = Failure::interrupted(
            signal.name,
            &match self.added {
                0 => "no job was added".to_owned(),
                _ => format!("{added} {was} added, up to line {}", next - 1),
            },
        );
        let again = &self.again;
        if let Some((first, last)) = signal.unknown {
            failure = failure.and(&format!(
                "lines {first} to {last} may have been added, or will be: the command did not wait for the result"
            ));
            return failure.with_hint(format!(
                "check with atta jobs --newest whether they are there, then run: {again} {first}, or: {again} {}",
                last + 1
            ));
        }
        failure.with_hint(format!("to continue with the same input, run: {again} {next}"))
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
