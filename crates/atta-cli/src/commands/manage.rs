//! `atta complete`, `fail`, `reschedule`, `retry`, `remove` and `unlock`: manage jobs by id, key or filter.
//!
//! All of them work the same way: choose the jobs ([`choose`]), ask for confirmation with their number, change them by
//! id in batches, report. Jobs that were chosen by a filter are checked again right before they are changed. A job that
//! no longer matches is skipped, so that the command never changes a job that it did not ask about.

mod choose;
mod report;

use atta::{Job, JobFilter, RescheduleJobOptions, WorkerUtils};
use clap::{ArgGroup, Args as ClapArgs};

use super::filter::Filter;
use super::interrupt::Interrupts;
use super::open::open;
use crate::args::{Connection, whole_number};
use crate::output::ask::confirm;
use crate::output::progress::progress;
use crate::output::time::{When, parse_when};
use crate::output::{Failure, count_of};
use choose::{BATCH, Chosen, Reason};
use report::Report;

/// Which jobs, and how to go about it.
#[derive(Debug, ClapArgs)]
pub(crate) struct Selection {
    /// The jobs' ids
    #[arg(value_name = "ID", value_parser = whole_number::<i64>)]
    ids: Vec<i64>,

    /// All jobs that the command can change
    #[arg(long, help_heading = "Which jobs")]
    all: bool,

    /// Maximum number of matching jobs to change, oldest first
    #[arg(long, value_name = "N", help_heading = "Which jobs")]
    limit: Option<usize>,

    /// Only jobs with a higher id, to continue a command that was interrupted
    #[arg(long, value_name = "ID", value_parser = whole_number::<i64>, conflicts_with = "ids", help_heading = "Which jobs")]
    after: Option<i64>,

    /// Don't ask for confirmation
    #[arg(short, long)]
    yes: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    // Last, because its heading in the help page also applies to the options after it.
    #[command(flatten)]
    filter: Filter,
}

/// Delete jobs as if they had succeeded
///
/// Running jobs are skipped.
#[derive(Debug, ClapArgs)]
pub(crate) struct Complete {
    #[command(flatten)]
    selection: Selection,
}

/// Fail jobs permanently, so that they are not retried
///
/// The jobs stay in the database, and `atta retry` runs them again. Running jobs are skipped.
#[derive(Debug, ClapArgs)]
pub(crate) struct Fail {
    /// Reason, which becomes the last error of the jobs
    #[arg(long, value_name = "TEXT", default_value = "failed by hand")]
    reason: String,

    #[command(flatten)]
    selection: Selection,
}

/// Change the time, the priority or the attempts of jobs
///
/// Running jobs are skipped.
#[derive(Debug, ClapArgs)]
#[command(group(
    ArgGroup::new("change").args(["run_at", "priority", "attempts", "max_attempts"]).required(true).multiple(true)
))]
pub(crate) struct Reschedule {
    /// Earliest time to run: a time (RFC 3339), or a duration from now (30s, 5m, 2h, 1d, 1w)
    #[arg(long, value_name = "TIME", value_parser = parse_when)]
    run_at: Option<When>,

    /// Lower numbers run first
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i16>,

    /// Number of attempts so far
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i16).range(0..))]
    attempts: Option<i16>,

    /// Maximum number of attempts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i16).range(1..))]
    max_attempts: Option<i16>,

    #[command(flatten)]
    selection: Selection,
}

/// Run jobs again now, with all their attempts
///
/// A filter without --state matches failed jobs: those that wait for a retry, and those that failed permanently.
/// Running jobs are skipped.
#[derive(Debug, ClapArgs)]
pub(crate) struct Retry {
    #[command(flatten)]
    selection: Selection,
}

/// Delete jobs
///
/// Running jobs are skipped. With --key, a running job is not retried after it fails, and its key becomes free.
#[derive(Debug, ClapArgs)]
pub(crate) struct Remove {
    #[command(flatten)]
    selection: Selection,
}

/// Unlock jobs of workers that no longer exist
///
/// The jobs of dead workers of atta are recovered automatically, within half a minute by default. The locks of other
/// workers, such as Node's, last four hours; this command removes them. With --worker ID it unlocks all jobs and queues
/// of that worker. If the worker is still alive, its jobs run twice.
#[derive(Debug, ClapArgs)]
pub(crate) struct Unlock {
    /// Also unlock jobs of workers of atta that are alive
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    selection: Selection,
}

/// The change to make to each of the jobs.
enum Action {
    Complete,
    Fail(String),
    Reschedule(RescheduleJobOptions),
    Retry,
    Remove,
    Unlock { force: bool },
}

pub(crate) async fn complete(args: Complete, connection: &Connection) -> Result<(), Failure> {
    manage(Action::Complete, args.selection, connection).await
}

pub(crate) async fn fail(args: Fail, connection: &Connection) -> Result<(), Failure> {
    manage(Action::Fail(args.reason), args.selection, connection).await
}

pub(crate) async fn reschedule(args: Reschedule, connection: &Connection) -> Result<(), Failure> {
    let run_at = match args.run_at {
        Some(when) => Some(when.on(&open(connection).await?).await?),
        None => None,
    };
    let options = RescheduleJobOptions {
        run_at,
        priority: args.priority,
        attempts: args.attempts,
        max_attempts: args.max_attempts,
    };
    manage(Action::Reschedule(options), args.selection, connection).await
}

pub(crate) async fn retry(args: Retry, connection: &Connection) -> Result<(), Failure> {
    manage(Action::Retry, args.selection, connection).await
}

pub(crate) async fn remove(args: Remove, connection: &Connection) -> Result<(), Failure> {
    check(&Action::Remove, &args.selection)?;
    match args.selection.filter.only_key() {
        Some(key) => remove_by_key(key, &args.selection, connection).await,
        None => manage(Action::Remove, args.selection, connection).await,
    }
}

pub(crate) async fn unlock(args: Unlock, connection: &Connection) -> Result<(), Failure> {
    let action = Action::Unlock { force: args.force };
    check(&action, &args.selection)?;
    match args.selection.filter.only_worker() {
        Some(worker) => unlock_worker(worker, args.force, &args.selection, connection).await,
        None => manage(action, args.selection, connection).await,
    }
}

impl Action {
    fn verb(&self) -> &'static str {
        match self {
            Action::Complete => "complete",
            Action::Fail(_) => "fail",
            Action::Reschedule(_) => "reschedule",
            Action::Retry => "retry",
            Action::Remove => "remove",
            Action::Unlock { .. } => "unlock",
        }
    }

    async fn act(&self, utils: &WorkerUtils, ids: &[i64]) -> atta::Result<Vec<Job>> {
        match self {
            Action::Complete | Action::Remove => utils.complete_jobs(ids).await,
            Action::Fail(reason) => utils.permanently_fail_jobs(ids, reason).await,
            Action::Reschedule(options) => utils.reschedule_jobs(ids, options.clone()).await,
            Action::Retry => utils.retry_jobs(ids).await,
            Action::Unlock { .. } => utils.unlock_jobs(ids).await,
        }
    }
}

async fn manage(action: Action, selection: Selection, connection: &Connection) -> Result<(), Failure> {
    check(&action, &selection)?;
    let utils = open(connection).await?;
    let mut chosen = choose::choose(&utils, &action, &selection).await?;
    let mut report = Report::new(action.verb());
    if !chosen.ids.is_empty() {
        let count = count_of(chosen.ids.len(), "job");
        confirm(&format!("{} {count}", action.verb()), selection.yes)?;
        report.chosen = chosen.ids.len();
        report.is_by_filter = chosen.filter.is_some();
        report.is_limited = selection.limit.is_some();
        act(&utils, &action, &mut chosen, &mut report).await?;
    }
    report.skipped.append(&mut chosen.skipped);
    report.print(selection.json)
}

/// Acts in batches by id. Jobs that were not changed had been claimed by a worker, or were gone.
async fn act(
    utils: &WorkerUtils,
    action: &Action,
    chosen: &mut Chosen,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut interrupts = Interrupts::watch()?;
    let progress = progress(Some(chosen.ids.len() as u64));
    for batch in chosen.ids.chunks(BATCH) {
        let done = match interrupts.check().await {
            None => interrupts.finish(act_on(utils, action, chosen.filter.as_ref(), batch)).await,
            Some(signal) => {
                report.interrupted = Some(signal);
                break;
            }
        };
        let done = match done {
            Ok(done) => done.map_err(|failure| {
                failure.and(&format!("before that, {} changed", count_of(report.ids.len(), "job")))
            })?,
            Err(signal) => {
                report.interrupted = Some(signal);
                report.unknown = batch.len();
                break;
            }
        };
        progress.inc(batch.len() as u64);
        report.handled += batch.len();
        report.last_id = batch.last().copied();
        let left = batch.iter().filter(|id| !done.contains(id));
        chosen.skipped.extend(left.map(|id| (*id, Reason::Changed)));
        report.ids.extend(done);
    }
    progress.finish_and_clear();
    Ok(())
}

/// Returns the jobs of the batch that were changed.
async fn act_on(
    utils: &WorkerUtils,
    action: &Action,
    filter: Option<&JobFilter>,
    batch: &[i64],
) -> Result<Vec<i64>, Failure> {
    let still = match filter {
        Some(filter) => choose::still_matching(utils, filter, batch).await?,
        None => batch.to_vec(),
    };
    Ok(action.act(utils, &still).await?.iter().map(Job::id).collect())
}

/// A running job is not removed, but is not retried: that is what the library does for keys.
async fn remove_by_key(key: &str, selection: &Selection, connection: &Connection) -> Result<(), Failure> {
    let utils = open(connection).await?;
    let filter = atta::JobFilter { key: Some(key.to_owned()), ..atta::JobFilter::default() };
    let mut report = Report::new("remove");
    if !utils.list_job_ids(&filter).await?.is_empty() {
        confirm(&format!("remove the job with the key {key:?}"), selection.yes)?;
        report.ids.extend(utils.remove_job(key).await?.map(|job| job.id()));
    }
    report.print(selection.json)
}

/// Unlocks everything that the worker has locked, including queues without a job.
async fn unlock_worker(
    worker: &str,
    force: bool,
    selection: &Selection,
    connection: &Connection,
) -> Result<(), Failure> {
    let utils = open(connection).await?;
    let workers = utils.list_workers().await?;
    let mut report = Report::new("unlock");
    let Some(found) = workers.iter().find(|found| found.id == worker && found.jobs + found.queues > 0) else {
        return Err(Failure::not_so(format!("worker {worker:?} has locked no job and no queue"))
            .with_hint("to list the workers that have, run: atta workers"));
    };
    if found.status() == atta::WorkerStatus::Alive && !force {
        return Err(Failure::not_so(format!("worker {worker:?} is alive"))
            .with_hint("stop it first; --force unlocks its jobs anyway, and they may run twice"));
    }
    let filter = JobFilter { locked_by: Some(worker.to_owned()), ..JobFilter::default() };
    report.ids = choose::all_ids(&utils, &filter, None).await?;
    let (jobs, queues) = (count_of(report.ids.len(), "job"), count_of(found.queues as usize, "queue"));
    confirm(&format!("unlock {jobs} and {queues} of worker {worker:?}"), selection.yes)?;
    utils.force_unlock_workers(&[worker]).await?;
    report.queues = Some(found.queues);
    report.print(selection.json)
}

/// Requires either ids, or a filter, or `--all`, so that jobs are never chosen by mistake.
fn check(action: &Action, selection: &Selection) -> Result<(), Failure> {
    let verb = action.verb();
    let ways = [!selection.ids.is_empty(), !selection.filter.is_empty(), selection.all];
    match ways.iter().filter(|is_used| **is_used).count() {
        1 => Ok(()),
        0 => Err(Failure::new(format!("no jobs were given to be {}", past(verb))).with_hint(format!(
            "give their ids (atta {verb} 7 8), or select them by --key, --state, --task or another filter, or use --all"
        ))),
        _ => Err(Failure::new("ids, filters and --all can't be combined")
            .with_hint("to list the jobs that match a filter, run: atta jobs")),
    }
}

fn past(verb: &str) -> String {
    match verb {
        "retry" => "retried".into(),
        verb if verb.ends_with('e') => format!("{verb}d"),
        verb => format!("{verb}ed"),
    }
}
