//! `atta cleanup`: deletes rows that are no longer needed.

use atta::{CleanupTask, WorkerStatus};
use clap::Args as ClapArgs;

use super::open::open;
use crate::args::{CleanupChoice, Connection};
use crate::output::ask::confirm;
use crate::output::{Failure, count_of, print_json, print_styled};

/// Delete tasks and queues that have no jobs, and on request jobs that failed permanently
///
/// Safe while workers of atta run. Node's workers remember the ids of tasks: while they run, leave out
/// GC_TASK_IDENTIFIERS, or name their tasks with --keep.
#[derive(Debug, ClapArgs)]
pub(crate) struct Cleanup {
    /// What to clean up [default: GC_TASK_IDENTIFIERS and GC_JOB_QUEUES]
    #[arg(value_enum, ignore_case = true, value_delimiter = ',', value_name = "WHAT")]
    what: Vec<CleanupChoice>,

    /// Keep this task even if it has no jobs; can be given several times
    ///
    /// Tasks of running workers of atta are always kept.
    #[arg(long, value_name = "TASK")]
    keep: Vec<String>,

    /// Don't ask for confirmation before jobs are deleted
    #[arg(short, long)]
    yes: bool,

    /// Print the numbers of deleted rows as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Cleanup, connection: &Connection) -> Result<(), Failure> {
    let mut tasks: Vec<CleanupTask> = args.what.iter().map(|choice| (*choice).into()).collect();
    if tasks.is_empty() {
        tasks = vec![CleanupTask::GcTaskIdentifiers, CleanupTask::GcJobQueues];
    }
    let utils = open(connection).await?;
    if tasks.contains(&CleanupTask::DeletePermafailedJobs) {
        let failed = utils.count_jobs().await?.failed;
        if failed > 0 {
            confirm(
                &format!("delete {} that failed permanently", count_of(failed as usize, "job")),
                args.yes,
            )?;
        }
    }
    let mut keep = args.keep;
    if tasks.contains(&CleanupTask::GcTaskIdentifiers) {
        let workers = utils.list_workers().await?;
        let living = workers.into_iter().filter(|worker| worker.status() == WorkerStatus::Alive);
        keep.extend(living.flat_map(|worker| worker.task_identifiers.unwrap_or_default()));
    }
    let keep: Vec<&str> = keep.iter().map(String::as_str).collect();
    let deleted = utils.cleanup(&tasks, &keep).await?;
    if args.json {
        return print_json(&deleted);
    }
    print_styled(&format!(
        "deleted {}, {} and {}\n",
        count_of(deleted.jobs as usize, "job"),
        count_of(deleted.tasks as usize, "task"),
        count_of(deleted.queues as usize, "queue"),
    ));
    Ok(())
}
