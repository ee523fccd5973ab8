//! `atta cleanup`: deletes rows that are no longer needed.

use atta::{CleanupCounts, CleanupTask, Error, WorkerStatus, WorkerUtils};
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
    let deleted = clean_up(&utils, tasks, &keep).await?;
    if args.json {
        return print_json(&deleted);
    }
    print_styled(&format!("deleted {}\n", counts(&deleted)));
    Ok(())
}

/// Does the parts one by one, so that an error can report what was done before it.
async fn clean_up(
    utils: &WorkerUtils,
    mut tasks: Vec<CleanupTask>,
    keep: &[&str],
) -> Result<CleanupCounts, Failure> {
    tasks.sort_unstable();
    tasks.dedup();
    let mut deleted = CleanupCounts::default();
    for task in tasks {
        let more = utils.cleanup(&[task], keep).await.map_err(|error| stopped(error, &deleted))?;
        deleted.jobs += more.jobs;
        deleted.tasks += more.tasks;
        deleted.queues += more.queues;
    }
    Ok(deleted)
}

/// `deleted` is what the earlier parts deleted.
fn stopped(error: Error, deleted: &CleanupCounts) -> Failure {
    let is_first = *deleted == CleanupCounts::default();
    let state = match (error.may_have_happened(), is_first) {
        (false, true) => "nothing was deleted".to_owned(),
        (false, false) => {
            format!("this part changed nothing; before it, {} were deleted", counts(deleted))
        }
        (true, true) => "this part may have been done: the reply was lost".to_owned(),
        (true, false) => format!(
            "this part may have been done: the reply was lost; before it, {} were deleted",
            counts(deleted)
        ),
    };
    let hint = match error.db_code() {
        Some("55P03") => {
            "an open transaction uses the table, for example one that adds jobs; when it has ended, the command can be \
             repeated"
                .to_owned()
        }
        _ => match error.hint() {
            Some(hint) => format!("{hint}; then the command can be repeated"),
            None => "the command can be repeated".to_owned(),
        },
    };
    Failure::from(error).and(&state).with_hint(hint)
}

fn counts(deleted: &CleanupCounts) -> String {
    format!(
        "{}, {} and {}",
        count_of(deleted.jobs as usize, "job"),
        count_of(deleted.tasks as usize, "task"),
        count_of(deleted.queues as usize, "queue"),
    )
}
