//! `atta add`: one job, or a file of them.

mod bulk;
mod single;

use std::io::Read;

use atta::{Job, JobKeyMode, JobSpec, WorkerUtils};
use chrono::{DateTime, Utc};
use clap::{Args as ClapArgs, ValueEnum};
use serde_json::value::RawValue;

use super::interrupt::Interrupts;
use super::open::open_with;
use crate::args::{Connection, whole_number};
use crate::connect::settings;
use crate::output::job::JobJson;
use crate::output::time::{When, from_now, parse_when};
use crate::output::{Failure, clean, hint, json_fault, print_json, print_styled, warn};

/// Add a job, or many jobs from a file with --bulk
#[derive(Debug, ClapArgs)]
pub(crate) struct Add {
    /// The task; with --bulk, the task for lines without an identifier
    #[arg(value_name = "TASK", required_unless_present = "bulk")]
    task: Option<String>,

    /// The payload: JSON, @FILE to read it from a file, or - from standard input [default: {}]
    #[arg(value_name = "JSON", allow_negative_numbers = true, conflicts_with = "bulk")]
    payload: Option<String>,

    /// Add many jobs: a file with one JSON object per line, or - for standard input
    ///
    /// Fields: identifier, payload, queueName, runAt, maxAttempts, jobKey, jobKeyMode, priority, flags, also in
    /// snake_case. A file is checked as a whole before the first job is added.
    #[arg(long, value_name = "FILE", conflicts_with_all = SPEC)]
    bulk: Option<String>,

    /// Skip the lines before this one, to continue an interrupted --bulk
    #[arg(long, value_name = "N", requires = "bulk", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    from_line: u32,

    /// Queue of the job; the jobs of a queue run one after the other
    #[arg(long, value_name = "NAME", visible_alias = "queue-name")]
    queue: Option<String>,

    /// Earliest time to run: a time (RFC 3339), or a duration from now (30s, 5m, 2h, 1d, 1w) [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse_when)]
    run_at: Option<When>,

    /// Maximum number of attempts [default: 25]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i16).range(1..))]
    max_attempts: Option<i16>,

    /// Job key, by which the job can be changed or removed later
    #[arg(long, value_name = "KEY", visible_alias = "job-key")]
    key: Option<String>,

    /// What happens to an existing job with this key [default: replace]
    #[arg(long, value_enum, value_name = "MODE", visible_alias = "job-key-mode", requires = "key")]
    key_mode: Option<KeyModeChoice>,

    /// Lower numbers run first [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number::<i16>)]
    priority: Option<i16>,

    /// Flag; workers can be configured not to claim jobs with certain flags; can be given several times
    #[arg(long = "flag", value_name = "FLAG")]
    flags: Vec<String>,

    /// Print the job as JSON; with --bulk, the number of added jobs
    #[arg(long)]
    json: bool,
}

/// The options that each line of a bulk file sets itself.
const SPEC: [&str; 7] = ["queue", "run_at", "max_attempts", "key", "key_mode", "priority", "flags"];

/// See `atta::JobKeyMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum KeyModeChoice {
    /// It gets all the new values
    Replace,
    /// It gets the new values but keeps its time
    PreserveRunAt,
    /// It stays as it is, even if it is running or permanently failed
    UnsafeDedupe,
}

pub(crate) async fn run(args: Add, connection: &Connection) -> Result<(), Failure> {
    if let Some(file) = &args.bulk {
        let source = bulk::Source { file, task: args.task.as_deref(), from_line: args.from_line as usize };
        return bulk::run(source, args.json, connection).await;
    }
    let task = args.task.clone().unwrap_or_default();
    let payload = read_payload(args.payload.as_deref())?;
    let settings = settings(connection)?;
    let utils = open_with(&settings, connection)?;
    // From here on: while a payload is read from a terminal, a signal ends the process by itself.
    let mut interrupts = Interrupts::watch()?;
    let prepare = async {
        let denied = warn_of_unknown(&utils, &[&task]).await;
        let run_at = match args.run_at {
            Some(when) => Some(when.on(&utils).await?),
            None => None,
        };
        Ok::<_, Failure>((denied, run_at))
    };
    let (denied, run_at) = tokio::select! {
        biased;
        name = interrupts.requested() => return Err(Failure::interrupted(name, "no job was added")),
        prepared = prepare => prepared?,
    };
    let job = single::NewJob { task, payload, spec: spec(&args, run_at) };
    let added = single::add(&utils, &settings, job, &mut interrupts).await;
    let job = added.map_err(|failure| failure.with_hint_if_denied(denied))?;
    let added = || format!("job {} was added", job.id());
    if args.json {
        print_json(&JobJson::of(&job, None)?)?;
    } else {
        let now = tokio::select! {
            now = utils.read_clock() => now?,
            name = interrupts.requested() => return Err(Failure::interrupted(name, &added())),
        };
        print_styled(&summary(&job, now));
    }
    match interrupts.check().await {
        Some(name) => Err(Failure::interrupted(name, &added())),
        None => Ok(()),
    }
}

fn spec(args: &Add, run_at: Option<DateTime<Utc>>) -> JobSpec {
    JobSpec {
        queue_name: args.queue.clone(),
        run_at,
        max_attempts: args.max_attempts,
        job_key: args.key.clone(),
        job_key_mode: args.key_mode.map(|mode| match mode {
            KeyModeChoice::Replace => JobKeyMode::Replace,
            KeyModeChoice::PreserveRunAt => JobKeyMode::PreserveRunAt,
            KeyModeChoice::UnsafeDedupe => JobKeyMode::UnsafeDedupe,
        }),
        priority: args.priority,
        flags: (!args.flags.is_empty()).then(|| args.flags.clone()),
        ..JobSpec::default()
    }
}

fn summary(job: &Job, now: DateTime<Utc>) -> String {
    let done = if job.revision() > 0 { "changed" } else { "added" };
    let due = match (job.run_at() - now).num_seconds() {
        1.. => format!(", due {}", from_now(job.run_at(), now)),
        _ => String::new(),
    };
    format!("{done} job {} ({}{due})\n", job.id(), clean(job.task_identifier()))
}

/// An unknown task is not an error, since its worker may be started later; but it may be misspelt. If the role may not
/// read the tasks, returns the hint, for the case that it may not add either.
async fn warn_of_unknown(utils: &WorkerUtils, identifiers: &[&str]) -> Option<String> {
    let unknown = match utils.unknown_tasks(identifiers).await {
        Ok(unknown) => unknown,
        // If this query fails, the add fails for the same reason, with a better message.
        Err(error) => return error.hint().filter(|_| error.db_code() == Some("42501")).map(str::to_owned),
    };
    for task in &unknown {
        warn(&format!("task {task:?} is unknown: it has never had a job, and no running worker has it"));
    }
    if !unknown.is_empty() {
        hint("check the spelling; the job waits until a worker that has this task is started");
    }
    None
}

/// The text of the payload is kept as it was given.
fn read_payload(argument: Option<&str>) -> Result<Box<RawValue>, Failure> {
    let (text, what) = match argument {
        None => ("{}".to_owned(), String::new()),
        Some("-") => (read_stdin()?, " on standard input".to_owned()),
        Some(argument) => match argument.strip_prefix('@') {
            Some(file) => (read_file(file)?, format!(" in {file}")),
            None => (argument.to_owned(), String::new()),
        },
    };
    if text.trim().is_empty() {
        return Err(Failure::new(format!("the payload{what} is empty"))
            .with_hint("to add the job with the payload {}, omit the argument"));
    }
    serde_json::from_str(&text).map_err(|error| {
        Failure::new(format!("the payload{what} is not valid JSON: {}", json_fault::describe(&text, &error, 1)))
            .with_hint("in a shell, quote it: '{\"to\": \"someone\"}'; use @FILE to read a file, and - for standard input")
    })
}

fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    match std::io::stdin().lock().read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::new(format!("can't read standard input: {error}"))),
    }
}

fn read_file(file: &str) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| {
        Failure::new(format!("can't read {file}: {error}"))
            .with_hint("@ must be followed by the name of a file that contains the payload")
    })
}
