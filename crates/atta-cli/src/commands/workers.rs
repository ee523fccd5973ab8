//! `atta workers`: lists our workers, and all others that hold a lock.

use anstyle::{AnsiColor, Style};
use atta::{WorkerStatus, WorkerSummary};
use chrono::{DateTime, Utc};
use clap::Args as ClapArgs;
use serde::Serialize;

use super::open::open;
use crate::args::Connection;
use crate::output::table::{Cell, Column, Table};
use crate::output::watch::Watch;
use crate::output::{Failure, note, print_json, time};

const COLUMNS: [Column; 12] = [
    Column::always("WORKER"),
    Column::always("STATUS"),
    Column::ranked(3, "HOST"),
    Column::ranked(5, "PID"),
    Column::ranked(10, "VERSION"),
    Column::ranked(8, "STARTED"),
    Column::ranked(2, "LAST HEARTBEAT"),
    Column::ranked(4, "SLOTS"),
    Column::ranked(1, "JOBS"),
    Column::ranked(7, "QUEUES"),
    Column::ranked(6, "OLDEST LOCK"),
    Column::ranked(9, "TASKS"),
];

/// List the workers of atta, and all others that have locked a job or a queue
///
/// A worker of atta that sent no heartbeat for its recovery threshold has the status stale: other workers declare it
/// dead and recover its jobs. Of other tools' workers, only their locks are known (status foreign); see `atta unlock`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Workers {
    #[command(flatten)]
    watch: Watch,

    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct WorkerJson<'a> {
    status: WorkerStatus,
    #[serde(flatten)]
    worker: &'a WorkerSummary,
}

pub(crate) async fn run(args: Workers, connection: &Connection) -> Result<(), Failure> {
    let utils = open(connection).await?;
    if args.json {
        let workers = utils.list_workers().await?;
        let json = |worker| WorkerJson { status: WorkerSummary::status(worker), worker };
        return print_json(&workers.iter().map(json).collect::<Vec<_>>());
    }
    args.watch.run(async || Ok(show(&utils.list_workers().await?, utils.read_clock().await?))).await
}

/// `now` is the database's time, as those of the workers are.
fn show(workers: &[WorkerSummary], now: DateTime<Utc>) -> String {
    if workers.is_empty() {
        note("no workers");
        return String::new();
    }
    let mut table = Table::new(&COLUMNS);
    for worker in workers {
        let (status, style) = match worker.status() {
            WorkerStatus::Alive => ("alive", AnsiColor::Green.on_default()),
            WorkerStatus::Stale => ("stale", AnsiColor::Red.on_default()),
            _ => ("foreign", Style::new()),
        };
        let ago = |at: Option<DateTime<Utc>>| Cell::maybe(at.map(|at| time::from_now(at, now)));
        table.row(vec![
            Cell::text(&worker.id),
            Cell::text(status).styled(style),
            Cell::maybe(worker.host.as_deref()),
            Cell::maybe(worker.pid.map(|pid| pid.to_string())),
            Cell::maybe(worker.version.as_deref()),
            ago(worker.started_at),
            ago(worker.heartbeat_at),
            Cell::maybe(worker.slots.map(|slots| slots.to_string())),
            Cell::number(worker.jobs),
            Cell::number(worker.queues),
            ago(worker.oldest_lock_at),
            Cell::maybe(worker.task_identifiers.as_ref().map(|tasks| tasks.join(" "))),
        ]);
    }
    table.show()
}
