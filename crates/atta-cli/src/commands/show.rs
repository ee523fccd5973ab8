//! `atta show`: one job with all its fields.

use atta::JobFilter;
use clap::{ArgGroup, Args as ClapArgs};

use super::open::open;
use crate::args::{Connection, whole_number};
use crate::output::job::{JobJson, in_full};
use crate::output::{Failure, print_json, print_styled};

/// Show all details of a job, including its payload and error
#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("which").args(["id", "key"]).required(true)))]
pub(crate) struct Show {
    /// The job's id
    #[arg(value_name = "ID", value_parser = whole_number::<i64>)]
    id: Option<i64>,

    /// The job's key
    #[arg(long, value_name = "KEY", visible_alias = "job-key")]
    key: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Show, connection: &Connection) -> Result<(), Failure> {
    let utils = open(connection).await?;
    let filter = JobFilter { ids: args.id.map(|id| vec![id]), key: args.key.clone(), ..JobFilter::default() };
    let Some((job, state)) = utils.list_jobs_with_states(&filter).await?.pop() else {
        let which = match (&args.key, args.id) {
            (Some(key), _) => format!("there is no job with the key {key:?}"),
            (None, id) => format!("there is no job {}", id.unwrap_or_default()),
        };
        return Err(Failure::not_so(which).with_hint("jobs are deleted once they are done; see: atta jobs"));
    };
    if args.json {
        return print_json(&JobJson::of(&job, Some(state))?);
    }
    print_styled(&in_full(&job, state, utils.read_clock().await?));
    Ok(())
}
