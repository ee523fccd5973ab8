//! A job: as JSON, as a row of a table, and with all its fields.

use anstyle::{AnsiColor, Style};
use atta::{Job, JobCounts, JobState};
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;

use super::table::{Cell, Column, Table};
use super::{Failure, clean, clean_lines, styled, time};

/// A job with the names of its columns, and its state if known.
#[derive(Serialize)]
pub(crate) struct JobJson<'a> {
    id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<JobState>,
    task_identifier: &'a str,
    queue_name: Option<&'a str>,
    payload: &'a RawValue,
    priority: i16,
    run_at: DateTime<Utc>,
    attempts: i16,
    max_attempts: i16,
    last_error: Option<&'a str>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    key: Option<&'a str>,
    locked_at: Option<DateTime<Utc>>,
    locked_by: Option<&'a str>,
    revision: i32,
    flags: Vec<&'a str>,
}

impl<'a> JobJson<'a> {
    pub(crate) fn of(job: &'a Job, state: Option<JobState>) -> Result<JobJson<'a>, Failure> {
        let payload = serde_json::from_str(job.payload_json()).map_err(|error| {
            Failure::new(format!("the payload of job {} is not valid JSON: {error}", job.id()))
        })?;
        Ok(JobJson {
            id: job.id(),
            state,
            task_identifier: job.task_identifier(),
            queue_name: job.queue_name(),
            payload,
            priority: job.priority(),
            run_at: job.run_at(),
            attempts: job.attempts(),
            max_attempts: job.max_attempts(),
            last_error: job.last_error(),
            created_at: job.created_at(),
            updated_at: job.updated_at(),
            key: job.key(),
            locked_at: job.locked_at(),
            locked_by: job.locked_by(),
            revision: job.revision(),
            flags: job.flags(),
        })
    }
}

/// The columns of a list of jobs. In a narrow terminal, the queue, the key and the worker may be left out, because the id
/// is enough to find the job.
const COLUMNS: [Column; 11] = [
    Column::always("ID"),
    Column::always("STATE"),
    Column::always("TASK"),
    Column::ranked(3, "QUEUE"),
    Column::ranked(6, "KEY"),
    Column::always("DUE"),
    Column::ranked(4, "TRIED"),
    Column::ranked(8, "WORKER"),
    Column::ranked(7, "SINCE"),
    Column::ranked(5, "FAILED AT"),
    Column::long_text(2, "ERROR"),
];

/// A table with one row per job.
pub(crate) fn table(jobs: &[(Job, JobState)], now: DateTime<Utc>) -> String {
    let mut table = Table::new(&COLUMNS);
    for (job, state) in jobs {
        table.row(vec![
            Cell::number(job.id()),
            Cell::text(state.as_str()).styled(state_style(*state)),
            Cell::text(job.task_identifier()),
            Cell::maybe(job.queue_name()),
            Cell::maybe(job.key()),
            Cell::text(time::from_now(job.run_at(), now)),
            Cell::text(format!("{}/{}", job.attempts(), job.max_attempts())),
            Cell::maybe(job.locked_by()),
            Cell::maybe(job.locked_at().map(|at| time::from_now(at, now))),
            Cell::maybe(failed_at(job).map(|at| time::from_now(at, now))),
            Cell::maybe(job.last_error()),
        ]);
    }
    table.show()
}

/// When the job last failed. There is no column for it: workers of atta set `updated_at` when a job fails, and a claim does
/// not change it. A retry by hand sets the attempts to zero.
fn failed_at(job: &Job) -> Option<DateTime<Utc>> {
    (job.last_error().is_some() && job.attempts() > 0).then(|| job.updated_at())
}

/// All fields of a job, one per line.
pub(crate) fn in_full(job: &Job, state: JobState, now: DateTime<Utc>) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| text.push_str(&format!("{name:<11}{}\n", value.trim_end()));
    line("job", &job.id().to_string());
    line("state", &styled(state_style(state), state.as_str()));
    line("task", &clean(job.task_identifier()));
    if let Some(queue) = job.queue_name() {
        line("queue", &clean(queue));
    }
    if let Some(key) = job.key() {
        line("key", &clean(key));
    }
    line("priority", &job.priority().to_string());
    line("attempts", &format!("{} of {}", job.attempts(), job.max_attempts()));
    line("run at", &time::both(job.run_at(), now));
    line("created at", &time::both(job.created_at(), now));
    line("updated at", &time::both(job.updated_at(), now));
    if let (Some(worker), Some(since)) = (job.locked_by(), job.locked_at()) {
        line("locked by", &clean(worker));
        line("locked at", &time::both(since, now));
    }
    if job.revision() > 0 {
        line("revision", &job.revision().to_string());
    }
    if !job.flags().is_empty() {
        line("flags", &clean(&job.flags().join(", ")));
    }
    if let Some(at) = failed_at(job) {
        line("failed at", &time::both(at, now));
    }
    if let Some(error) = job.last_error() {
        line("error", &indented(error));
    }
    line("payload", &indented(job.payload_json()));
    text
}

fn indented(text: &str) -> String {
    clean_lines(text).replace('\n', "\n           ")
}

pub(crate) fn state_style(state: JobState) -> Style {
    match state {
        JobState::Running => AnsiColor::Cyan.on_default(),
        JobState::Failed => AnsiColor::Red.on_default(),
        JobState::Retrying => AnsiColor::Yellow.on_default(),
        JobState::Ready => AnsiColor::Green.on_default(),
        _ => Style::new(),
    }
}

/// The count for each state, in the order of their declaration.
pub(crate) fn count_cells(counts: &JobCounts) -> Vec<Cell> {
    let JobCounts { ready, waiting, scheduled, retrying, running, failed, .. } = *counts;
    let styles = [
        JobState::Ready,
        JobState::Waiting,
        JobState::Scheduled,
        JobState::Retrying,
        JobState::Running,
        JobState::Failed,
    ];
    let cell = |(count, state): (u64, JobState)| {
        let style = if count == 0 { Style::new().dimmed() } else { state_style(state) };
        Cell::number(count).styled(style)
    };
    [ready, waiting, scheduled, retrying, running, failed].into_iter().zip(styles).map(cell).collect()
}
