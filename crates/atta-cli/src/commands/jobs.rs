//! `atta jobs`: lists a page of jobs.

use atta::{Job, JobFilter, JobState, WorkerUtils};
use chrono::{DateTime, Utc};
use clap::Args as ClapArgs;
use serde_json::json;

use super::filter::Filter;
use super::open::open;
use crate::args::{Connection, whole_number};
use crate::output::job::{JobJson, table};
use crate::output::watch::Watch;
use crate::output::{Failure, note, print_json};

/// List jobs, in the order in which they were added
///
/// SINCE is how long a worker has had the job. FAILED AT is when its last attempt failed, as in --failed-since.
///
/// The options --key, --worker, --running-for and --state running find jobs by an index. The other filters read jobs in the
/// order of the list until there are enough. If few jobs match, this reads the whole table, as --count always does.
#[derive(Debug, ClapArgs)]
pub(crate) struct Jobs {
    /// Maximum number of jobs to list
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,

    /// List the newest jobs first
    #[arg(long)]
    newest: bool,

    /// Print only the number of jobs that match; reads the whole table
    #[arg(long, conflicts_with_all = ["limit", "newest", "after"])]
    count: bool,

    /// List the jobs that follow the one with this id: the last one of the previous page
    #[arg(long, value_name = "ID", value_parser = whole_number::<i64>)]
    after: Option<i64>,

    #[command(flatten)]
    watch: Watch,

    /// Print a JSON array; with --count, an object
    #[arg(long)]
    json: bool,

    // Last, because its heading in the help page also applies to the options after it.
    #[command(flatten)]
    filter: Filter,
}

pub(crate) async fn run(args: Jobs, connection: &Connection) -> Result<(), Failure> {
    let utils = open(connection).await?;
    if args.count {
        return count(&args, &utils).await;
    }
    if args.json {
        let (jobs, _) = page(&args, &utils).await?;
        let jobs: Result<Vec<JobJson<'_>>, _> =
            jobs.iter().map(|(job, state)| JobJson::of(job, Some(*state))).collect();
        return print_json(&jobs?);
    }
    let watch = args.watch;
    watch.run(async || Ok(show(page(&args, &utils).await?, utils.read_clock().await?))).await
}

async fn count(args: &Jobs, utils: &WorkerUtils) -> Result<(), Failure> {
    let count = async || -> Result<u64, Failure> {
        Ok(utils.count_matching_jobs(&args.filter.to_job_filter(utils).await?).await?)
    };
    if args.json {
        return print_json(&json!({ "count": count().await? }));
    }
    args.watch.run(async || Ok(format!("{}\n", count().await?))).await
}

/// `now` is the database's time.
fn show((jobs, has_more): (Vec<(Job, JobState)>, bool), now: DateTime<Utc>) -> String {
    match jobs.last() {
        None => note("no jobs"),
        Some((last, _)) if has_more => note(&format!("there are more; for the next: --after {}", last.id())),
        Some(_) => {}
    }
    if jobs.is_empty() { String::new() } else { table(&jobs, now) }
}

/// A page of jobs, and whether there is another page.
async fn page(args: &Jobs, utils: &WorkerUtils) -> Result<(Vec<(Job, JobState)>, bool), Failure> {
    let filter = JobFilter {
        after_id: args.after,
        newest_first: args.newest,
        limit: args.limit + 1,
        ..args.filter.to_job_filter(utils).await?
    };
    let mut jobs = utils.list_jobs_with_states(&filter).await?;
    let has_more = jobs.len() > args.limit as usize;
    jobs.truncate(args.limit as usize);
    Ok((jobs, has_more))
}
