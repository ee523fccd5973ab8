//! `atta cleanup`: deletes rows that are no longer needed.

use atta::{CleanupTask, WorkerStatus};
use clap::Args as ClapArgs;

use super::open::open;
use crate::args::{CleanupChoice, Connection};
use crate::output::ask::confirm;
use crate::output::{Failure, count_of, print_json, print_styled};

/// Delete tasks and queues that no job needs, and, if told to, jobs that failed for good
///
/// Safe while workers of atta run. Node's workers remember tasks by number: while such run, leave out
/// GC_TASK_IDENTIFIERS, or name their tasks by --keep.
#[derive(Debug, ClapArgs)]
pub(crate) struct Cleanup {
    /// What to clean up [default: GC_TASK_IDENTIFIERS and GC_JOB_QUEUES]
    #[arg(value_enum, ignore_case = true, value_delimiter = ',', value_name = "WHAT")]
    what: Vec<CleanupChoice>,

    /// A task that stays although no job is of it; can be given several times
    ///
    /// Those that running workers of atta know stay anyhow.
    #[arg(long, value_name = "TASK")]
    keep: Vec<String>,

    /// Don't ask before jobs are deleted
    #[arg(short, long)]
    yes: bool,

    /// Say how much was deleted as JSON
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
            confirm(&format!("delete {} that failed for good", count_of(failed as usize, "job")), args.yes)?;
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
