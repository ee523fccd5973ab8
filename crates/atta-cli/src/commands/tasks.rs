//! `atta tasks`: lists tasks, how many workers know each, and their jobs.

use anstyle::AnsiColor;
use chrono::{DateTime, Utc};
use clap::Args as ClapArgs;

use super::open::open;
use crate::args::Connection;
use crate::output::job::count_cells;
use crate::output::table::{Cell, Column, Table};
use crate::output::watch::Watch;
use crate::output::{Failure, note, print_json, time};

const COLUMNS: [Column; 9] = [
    Column::always("TASK"),
    Column::always("WORKERS"),
    Column::unless_zero("READY"),
    Column::ranked(2, "WAITING"),
    Column::ranked(3, "SCHEDULED"),
    Column::ranked(1, "RETRYING"),
    Column::unless_zero("RUNNING"),
    Column::unless_zero("FAILED"),
    Column::ranked(4, "OLDEST DUE"),
];

/// List tasks, with the number of workers that have each task, and the numbers of its jobs by state
///
/// Lists tasks that have or had jobs, and tasks of running workers of atta. Node's workers don't register their tasks.
#[derive(Debug, ClapArgs)]
pub(crate) struct Tasks {
    /// Maximum number of tasks to list
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,

    /// List the tasks after this one, the last one of the previous page
    #[arg(long, value_name = "TASK")]
    after: Option<String>,

    #[command(flatten)]
    watch: Watch,

    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Tasks, connection: &Connection) -> Result<(), Failure> {
    let utils = open(connection).await?;
    let list = async || utils.list_tasks(args.after.as_deref(), args.limit).await;
    if args.json {
        return print_json(&list().await?);
    }
    args.watch.run(async || Ok(show(&list().await?, args.limit, utils.read_clock().await?))).await
}

/// `now` is the database's time.
fn show(tasks: &[atta::TaskSummary], limit: u32, now: DateTime<Utc>) -> String {
    let Some(last) = tasks.last() else {
        note("no tasks");
        return String::new();
    };
    if tasks.len() == limit as usize {
        note(&format!("there may be more; for the next: --after {:?}", last.task_identifier));
    }
    let mut table = Table::new(&COLUMNS);
    for task in tasks {
        let workers = Cell::number(task.workers);
        let is_stuck = task.workers == 0 && task.jobs.ready > 0;
        let style = if is_stuck { AnsiColor::Yellow.on_default() } else { anstyle::Style::new() };
        let mut row = vec![Cell::text(&task.task_identifier), workers.styled(style)];
        row.extend(count_cells(&task.jobs));
        row.push(Cell::maybe(task.oldest_due_at.map(|due| time::from_now(due, now))));
        table.row(row);
    }
    table.show()
}
