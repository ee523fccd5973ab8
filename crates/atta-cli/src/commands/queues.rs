//! `atta queues`: lists queues, the workers that have locked them, and their jobs.

use anstyle::AnsiColor;
use chrono::{DateTime, Utc};
use clap::Args as ClapArgs;

use super::open::open;
use crate::args::Connection;
use crate::output::job::count_cells;
use crate::output::table::{Cell, Column, Table};
use crate::output::watch::Watch;
use crate::output::{Failure, note, print_json, time};

const COLUMNS: [Column; 10] = [
    Column::always("QUEUE"),
    Column::unless_zero("READY"),
    Column::ranked(2, "WAITING"),
    Column::ranked(3, "SCHEDULED"),
    Column::ranked(1, "RETRYING"),
    Column::unless_zero("RUNNING"),
    Column::unless_zero("FAILED"),
    Column::ranked(4, "OLDEST DUE"),
    Column::ranked(5, "WORKER"),
    Column::ranked(6, "SINCE"),
];

/// List queues, with the worker that has locked each queue, and the numbers of its jobs by state
#[derive(Debug, ClapArgs)]
pub(crate) struct Queues {
    /// Maximum number of queues to list
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,

    /// List the queues after this name, the last one of the previous page
    #[arg(long, value_name = "NAME")]
    after: Option<String>,

    #[command(flatten)]
    watch: Watch,

    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Queues, connection: &Connection) -> Result<(), Failure> {
    let utils = open(connection).await?;
    let list = async || utils.list_queues(args.after.as_deref(), args.limit).await;
    if args.json {
        return print_json(&list().await?);
    }
    args.watch.run(async || Ok(show(&list().await?, args.limit, utils.read_clock().await?))).await
}

/// `now` is the database's time.
fn show(queues: &[atta::QueueSummary], limit: u32, now: DateTime<Utc>) -> String {
    let Some(last) = queues.last() else {
        note("no queues");
        return String::new();
    };
    if queues.len() == limit as usize {
        note(&format!("there may be more; for the next: --after {:?}", last.queue_name));
    }
    let mut table = Table::new(&COLUMNS);
    for queue in queues {
        let mut row = vec![Cell::text(&queue.queue_name)];
        row.extend(count_cells(&queue.jobs));
        row.push(Cell::maybe(queue.oldest_due_at.map(|due| time::from_now(due, now))));
        row.push(Cell::maybe(queue.locked_by.as_deref()).styled(AnsiColor::Cyan.on_default()));
        row.push(Cell::maybe(queue.locked_at.map(|since| time::from_now(since, now))));
        table.row(row);
    }
    table.show()
}
