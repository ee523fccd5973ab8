//! `atta stats`: counts of jobs.

use std::time::Duration;

use atta::{JobCounters, JobCounts, Stats as Numbers, WorkerUtils};
use chrono::{DateTime, Utc};
use clap::Args as ClapArgs;
use serde::Serialize;

use super::open::open;
use crate::args::Connection;
use crate::output::job::count_cells;
use crate::output::table::{Cell, Column, Table};
use crate::output::watch::Watch;
use crate::output::{Failure, print_json, time};

/// The columns after the name.
const COUNTS: [Column; 7] = [
    Column::unless_zero("READY"),
    Column::ranked(2, "WAITING"),
    Column::ranked(3, "SCHEDULED"),
    Column::ranked(1, "RETRYING"),
    Column::unless_zero("RUNNING"),
    Column::unless_zero("FAILED"),
    Column::always("TOTAL"),
];

/// Count jobs by state, by task and by queue
#[derive(Debug, ClapArgs)]
pub(crate) struct Stats {
    /// Number of tasks and queues to list, those with the most jobs first
    #[arg(long, default_value_t = 20, value_name = "N")]
    top: u32,

    /// Measure for this long how many jobs are added and finished per second
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600), conflicts_with = "watch")]
    sample: Option<u64>,

    #[command(flatten)]
    watch: Watch,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct StatsJson<'a> {
    jobs: CountsJson<'a>,
    oldest_due_at: Option<chrono::DateTime<Utc>>,
    tasks: Vec<TaskJson<'a>>,
    queues: Vec<QueueJson<'a>>,
    rates: Option<Rates>,
}

#[derive(Serialize)]
struct CountsJson<'a> {
    #[serde(flatten)]
    counts: &'a JobCounts,
    total: u64,
}

#[derive(Serialize)]
struct TaskJson<'a> {
    task_identifier: &'a str,
    #[serde(flatten)]
    jobs: CountsJson<'a>,
}

#[derive(Serialize)]
struct QueueJson<'a> {
    queue_name: Option<&'a str>,
    #[serde(flatten)]
    jobs: CountsJson<'a>,
}

/// Rates between two readings of the server's counters. A job that is removed counts as finished.
#[derive(Clone, Copy, Serialize)]
struct Rates {
    seconds: f64,
    added_per_second: f64,
    finished_per_second: f64,
}

pub(crate) async fn run(args: Stats, connection: &Connection) -> Result<(), Failure> {
    let utils = open(connection).await?;
    let mut before = None;
    if let Some(seconds) = args.sample {
        before = utils.read_job_counters().await?;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
    if args.json {
        let rates = rates(&utils, &mut before).await?;
        return print_json(&to_json(&utils.read_stats(args.top).await?, rates));
    }
    args.watch
        .run(async || {
            let rates = rates(&utils, &mut before).await?;
            Ok(show(&utils.read_stats(args.top).await?, rates, utils.read_clock().await?))
        })
        .await
}

/// The rates since the previous reading of the counters, if there was one. Reads them again.
async fn rates(utils: &WorkerUtils, before: &mut Option<JobCounters>) -> Result<Option<Rates>, Failure> {
    let now = utils.read_job_counters().await?;
    let earlier = std::mem::replace(before, now);
    let (Some(earlier), Some(now)) = (earlier, now) else { return Ok(None) };
    let seconds = (now.at - earlier.at).as_seconds_f64();
    // The server's counters start at zero when somebody resets them.
    let rate = |now: u64, earlier: u64| now.saturating_sub(earlier) as f64 / seconds;
    Ok((seconds > 0.0).then(|| Rates {
        seconds,
        added_per_second: rate(now.added, earlier.added),
        finished_per_second: rate(now.deleted, earlier.deleted),
    }))
}

fn to_json(stats: &Numbers, rates: Option<Rates>) -> StatsJson<'_> {
    let counts = |counts| CountsJson { counts, total: JobCounts::total(counts) };
    StatsJson {
        jobs: counts(&stats.jobs),
        oldest_due_at: stats.oldest_due_at,
        tasks: stats
            .tasks
            .iter()
            .map(|(task_identifier, jobs)| TaskJson { task_identifier, jobs: counts(jobs) })
            .collect(),
        queues: stats
            .queues
            .iter()
            .map(|(name, jobs)| QueueJson { queue_name: name.as_deref(), jobs: counts(jobs) })
            .collect(),
        rates,
    }
}

/// `now` is the database's time.
fn show(stats: &Numbers, rates: Option<Rates>, now: DateTime<Utc>) -> String {
    let mut parts = vec![table("", [("all jobs", &stats.jobs)].into_iter())];
    let mut about = String::new();
    if let Some(due) = stats.oldest_due_at {
        about.push_str(&format!("oldest due: {}\n", time::from_now(due, now)));
    }
    if let Some(rates) = rates {
        let Rates { seconds, added_per_second, finished_per_second } = rates;
        about.push_str(&format!(
            "in the last {seconds:.0} s: {added_per_second:.1}/s added, {finished_per_second:.1}/s finished\n"
        ));
    }
    if !about.is_empty() {
        parts.push(about);
    }
    if !stats.tasks.is_empty() {
        parts.push(table("TASK", stats.tasks.iter().map(|(name, jobs)| (name.as_str(), jobs))));
    }
    if stats.queues.iter().any(|(name, _)| name.is_some()) {
        let queues = stats.queues.iter();
        parts.push(table("QUEUE", queues.map(|(name, jobs)| (name.as_deref().unwrap_or("(none)"), jobs))));
    }
    parts.join("\n")
}

fn table<'a>(heading: &'static str, rows: impl Iterator<Item = (&'a str, &'a JobCounts)>) -> String {
    let mut columns = vec![Column::always(heading)];
    columns.extend(COUNTS);
    let mut table = Table::new(&columns);
    for (name, jobs) in rows {
        let mut row = vec![Cell::text(name)];
        row.extend(count_cells(jobs));
        row.push(Cell::number(jobs.total()));
        table.row(row);
    }
    table.show()
}
