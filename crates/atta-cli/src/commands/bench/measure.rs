//! The measurements, in the order in which they run.

use std::process::Stdio;
use std::time::{Duration, Instant};

use atta::{JobSpecBuilder, RawJobSpec, WorkerUtils};
use tokio::sync::mpsc;

use super::Progress;
use super::fleet::{COUNTED_TASK, Fleet, Start, TIMED_TASK, Tally, worker};
use super::report::{AddRates, CostPerJob, Drain, Report, Settings, Spread, Steady};
use super::site::{Site, measuring, seconds, seconds_now};
use crate::args::{Bench, ClaimsChoice};
use crate::output::{Failure, print};

/// A job that has not started after this time will not start.
const PATIENCE: Duration = Duration::from_secs(30);
/// Single adds are not measured for longer than this.
const SINGLE_ADDS: Duration = Duration::from_secs(3);
/// The number of jobs added at once in the steady state, and the largest number that may wait.
const STEADY_BATCH: usize = 500;
const STEADY_WAITING: u64 = 10_000;
/// Enough jobs for a worker to reach its full memory use.
const MEMORY_JOBS: usize = 50_000;

pub(super) async fn all(
    args: &Bench,
    site: &Site,
    fleet: &mut Fleet,
    progress: &Progress,
) -> Result<Report, Failure> {
    progress.say("start-up");
    let start_up_ms = start_up(args, site).await?;
    let (latency_ms, lateness_ms) = starts(args, site, fleet, progress).await?;
    site.clear().await?;
    let jobs = specs(args, args.jobs)?;
    let add = adds(args, site, &jobs, progress).await?;
    let (drain, cost_per_job) = drain(args, site, fleet, progress).await?;
    site.clear().await?;
    let steady = steady(args, site, fleet, &jobs, progress).await?;
    site.clear().await?;
    progress.say("memory");
    let memory_bytes = memory(args, site, &jobs).await?;
    Ok(Report {
        settings: Settings::new(args, site.server_version().await?),
        add,
        drain,
        steady,
        latency_ms,
        lateness_ms,
        start_up_ms,
        memory_bytes,
        cost_per_job,
    })
}

/// The time from nothing to a worker that has polled for jobs, found none, and ended. The median of five.
async fn start_up(args: &Bench, site: &Site) -> Result<f64, Failure> {
    let mut times = Vec::new();
    for _ in 0..5 {
        let began = Instant::now();
        worker(args, &site.url(), &Tally::endless(), None).await?.run_once().await?;
        times.push(milliseconds(began.elapsed()));
    }
    Ok(Spread::of(times).p50)
}

/// How soon an idle worker starts a job that was just added, and how late it starts a scheduled one.
async fn starts(
    args: &Bench,
    site: &Site,
    fleet: &mut Fleet,
    progress: &Progress,
) -> Result<(Spread, Spread), Failure> {
    let (sender, mut starts) = mpsc::unbounded_channel();
    fleet.start(vec![worker(args, &site.url(), &Tally::endless(), Some(sender)).await?]);
    let utils = site.utils()?;
    let latency = latency(args, &utils, &mut starts, progress).await?;
    progress.say("scheduled starts");
    let lateness = lateness(args, site, &utils, &mut starts).await?;
    fleet.stop().await?;
    Ok((latency, lateness))
}

async fn latency(
    args: &Bench,
    utils: &WorkerUtils,
    starts: &mut mpsc::UnboundedReceiver<Start>,
    progress: &Progress,
) -> Result<Spread, Failure> {
    let payload = payload(args);
    let warm_up = 10;
    let count = (args.jobs / 10).clamp(20, 500);
    let mut times = Vec::with_capacity(count);
    for n in 0..warm_up + count {
        progress.say(&format!("latency: {n} of {}", warm_up + count));
        let began = Instant::now();
        utils.add_raw_job(TIMED_TASK, &payload, JobSpecBuilder::new().build()).await?;
        let start = next(starts).await?;
        if n >= warm_up {
            times.push(milliseconds(start.at.duration_since(began)));
        }
        // Lets the worker become idle again, and keeps the next add from coming in step with anything.
        tokio::time::sleep(Duration::from_micros(fastrand::u64(2_000..6_000))).await;
    }
    Ok(Spread::of(times))
}

/// Jobs that become due one by one, ten milliseconds apart, starting one second ahead.
async fn lateness(
    args: &Bench,
    site: &Site,
    utils: &WorkerUtils,
    starts: &mut mpsc::UnboundedReceiver<Start>,
) -> Result<Spread, Failure> {
    let ahead = site.clock_ahead().await?;
    let count = (args.jobs / 10).clamp(20, 200);
    let first = chrono::DateTime::from_timestamp_micros(((seconds_now() + ahead + 1.0) * 1e6) as i64)
        .ok_or_else(|| Failure::new("the server returned an invalid time"))?;
    let payload = payload(args);
    let mut jobs = Vec::with_capacity(count);
    for n in (0_i64..).take(count) {
        let run_at = first + chrono::TimeDelta::milliseconds(10 * n);
        jobs.push(RawJobSpec::new(TIMED_TASK, &payload, JobSpecBuilder::new().run_at(run_at).build())?);
    }
    utils.insert_raw_jobs(&jobs).await?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = next(starts).await?;
        times.push((seconds(start.time) + ahead - seconds(start.run_at)) * 1e3);
    }
    Ok(Spread::of(times))
}

async fn next(starts: &mut mpsc::UnboundedReceiver<Start>) -> Result<Start, Failure> {
    match tokio::time::timeout(PATIENCE, starts.recv()).await {
        Ok(Some(start)) => Ok(start),
        Ok(None) => Err(Failure::new("the worker ended before its job started")),
        Err(_) => Err(Failure::new(format!("a job did not start within {} s", PATIENCE.as_secs()))),
    }
}

/// Adds one by one, then many that are returned, then many that are only counted. The last ones stay, to be drained.
async fn adds(
    args: &Bench,
    site: &Site,
    jobs: &[RawJobSpec],
    progress: &Progress,
) -> Result<AddRates, Failure> {
    progress.say("single adds");
    let utils = site.utils()?;
    let payload = payload(args);
    let began = Instant::now();
    let mut count = 0;
    while count < args.jobs && began.elapsed() < SINGLE_ADDS {
        utils.add_raw_job(COUNTED_TASK, &payload, JobSpecBuilder::new().build()).await?;
        count += 1;
    }
    let single_per_second = rate(count, began.elapsed());
    site.clear().await?;

    progress.say(&format!("adding {} jobs and getting them back", jobs.len()));
    let began = Instant::now();
    let added = utils.add_raw_jobs(jobs).await?;
    let bulk_returning_per_second = rate(added.len(), began.elapsed());
    drop(added);
    site.clear().await?;

    progress.say(&format!("adding {} jobs", jobs.len()));
    let began = Instant::now();
    let added = utils.insert_raw_jobs(jobs).await?;
    let bulk_per_second = rate(added, began.elapsed());
    Ok(AddRates { bulk_per_second, bulk_returning_per_second, single_per_second })
}

/// The time from the start of the workers until the last job is released and all workers have ended.
async fn drain(
    args: &Bench,
    site: &Site,
    fleet: &mut Fleet,
    progress: &Progress,
) -> Result<(Drain, CostPerJob), Failure> {
    let tally = Tally::towards(args.jobs as u64);
    let mut pin = if args.pin_xmin { Some(site.connect().await?) } else { None };
    let before = site.costs(i64::from(args.pin_xmin)).await?;
    let mut workers = Vec::new();
    for _ in 0..args.workers {
        workers.push(worker(args, &site.url(), &tally, None).await?);
    }
    let pinned = match &mut pin {
        Some(client) => Some(pin_xmin(client).await?),
        None => None,
    };
    let began = Instant::now();
    fleet.start(workers);
    tally.wait(|count| progress.say(&format!("drain: {count} of {}", args.jobs))).await?;
    fleet.stop().await?;
    let took = began.elapsed();
    let spent = site.costs(i64::from(args.pin_xmin)).await?.since(before);
    drop(pinned);

    let left = site.utils()?.count_jobs().await?;
    if left.total() != left.failed {
        return Err(Failure::new(format!(
            "{} jobs are left after the drain, but only {} of them have failed",
            left.total(),
            left.failed
        )));
    }
    let jobs = args.jobs as f64;
    let cost = CostPerJob {
        wal_bytes: spent.wal_bytes / jobs,
        commits: spent.commits / jobs,
        dead_rows: spent.dead_rows / jobs,
    };
    let (ran, seconds) = (tally.count(), took.as_secs_f64());
    Ok((Drain { ran, failed: left.failed, seconds, per_second: rate(args.jobs, took) }, cost))
}

/// As long as this transaction is open, rows that become dead from now on can't be vacuumed.
async fn pin_xmin(client: &mut tokio_postgres::Client) -> Result<tokio_postgres::Transaction<'_>, Failure> {
    let transaction = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await
        .map_err(measuring)?;
    let snapshot = include_str!("../../../sql/take_snapshot.sql");
    transaction.query_one(snapshot, &[]).await.map_err(measuring)?;
    Ok(transaction)
}

/// Adds and runs jobs at the same time. Adding pauses when the workers can't keep up.
async fn steady(
    args: &Bench,
    site: &Site,
    fleet: &mut Fleet,
    jobs: &[RawJobSpec],
    progress: &Progress,
) -> Result<Steady, Failure> {
    let tally = Tally::endless();
    let mut workers = Vec::new();
    for _ in 0..args.workers {
        workers.push(worker(args, &site.url(), &tally, None).await?);
    }
    let utils = site.utils()?;
    fleet.start(workers);
    let (began, length) = (Instant::now(), Duration::from_secs(args.seconds));
    let mut added = 0;
    let mut batches = jobs.chunks(STEADY_BATCH).cycle();
    while began.elapsed() < length {
        progress.say(&format!("steady state: {} jobs run", tally.count()));
        match batches.next() {
            Some(batch) if added < tally.count() + STEADY_WAITING => {
                added += utils.insert_raw_jobs(batch).await? as u64;
            }
            _ => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    let (ran, took) = (tally.count(), began.elapsed());
    fleet.stop().await?;
    let seconds = took.as_secs_f64();
    Ok(Steady { added, ran, seconds, per_second: ran as f64 / seconds })
}

/// The memory of a worker in a process of its own: this process has held all the jobs to add.
async fn memory(args: &Bench, site: &Site, jobs: &[RawJobSpec]) -> Result<Option<u64>, Failure> {
    let utils = site.utils()?;
    utils.insert_raw_jobs(&jobs[..jobs.len().min(MEMORY_JOBS)]).await?;
    let failed = |error: std::io::Error| Failure::new(format!("can't start a worker's process: {error}"));
    let mut command = tokio::process::Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["bench", "--memory-probe", "--schema", site.schema().name()]);
    command.args(["--concurrency", &args.concurrency.to_string()]);
    command.args(["--claims", if args.claims == ClaimsChoice::Held { "held" } else { "durable" }]);
    if let Some(size) = args.local_queue {
        command.args(["--local-queue", &size.to_string()]);
    }
    // Passed by the environment, where others can't read the password.
    command.env("DATABASE_URL", site.url()).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.map_err(failed)?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("a worker's process failed: {}", told.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse().ok())
}

/// The other process: runs the existing jobs, and prints its peak memory, if the system reports that.
pub(super) async fn probe_memory(args: &Bench) -> Result<(), Failure> {
    let url = args.connection.connection.as_deref().unwrap_or_default();
    worker(args, url, &Tally::endless(), None).await?.run_once().await?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    if let Some(kilobytes) = peak.and_then(|text| text.parse::<u64>().ok()) {
        print(&format!("{}\n", kilobytes * 1024));
    }
    Ok(())
}

fn specs(args: &Bench, count: usize) -> Result<Vec<RawJobSpec>, Failure> {
    let payload = payload(args);
    let mut specs = Vec::with_capacity(count);
    for n in 0..count {
        let mut spec = JobSpecBuilder::new();
        if args.queues > 0 {
            spec = spec.queue_name(format!("atta_bench_{}", n % args.queues));
        }
        if is_to_fail(n, args.fail_rate) {
            spec = spec.max_attempts(1);
        }
        specs.push(RawJobSpec::new(COUNTED_TASK, &payload, spec.build())?);
    }
    Ok(specs)
}

/// Whether job `n` fails. Failures are spread evenly, and are the same in each run.
fn is_to_fail(n: usize, rate: f64) -> bool {
    let failures_before = |n: usize| (n as f64 * rate).floor();
    failures_before(n + 1) > failures_before(n)
}

/// An object of the requested number of bytes, or the empty one.
fn payload(args: &Bench) -> serde_json::Value {
    let frame = r#"{"pad":""}"#.len();
    match args.payload_bytes.checked_sub(frame) {
        Some(rest) => serde_json::json!({ "pad": "x".repeat(rest) }),
        None => serde_json::json!({}),
    }
}

fn rate(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_jobs_fail_as_were_asked_for() {
        for (rate, expected) in [(0.0, 0), (0.01, 10), (0.25, 250), (1.0, 1000)] {
            assert_eq!((0..1000).filter(|n| is_to_fail(*n, rate)).count(), expected, "{rate}");
        }
    }
}
