//! The matrix: one fault per row, one guarantee per column. A part that is stuck may delay only itself.
//!
//! A binary provides its rows as [`Rows`] and calls [`main`]. Every row is run twice, each time on a new database and
//! with a worker in a separate process: once for the columns about a running worker, and once for the shutdown, which
//! is requested while the fault is present. The first row has no fault; it measures how long everything normally takes.
//!
//! `child` is the worker process, `world` has the database and the process of a run, `columns` measures, `table`
//! prints.

mod child;
mod columns;
mod table;
mod world;

use std::future::Future;
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::Duration;

use atta::WorkerOptions;

pub use child::{Child, SLOTS, THREADS, append};
pub use columns::Column;
pub use world::World;

use columns::{Cell, Normal};

/// Set by `cargo xtask matrix`: rows whose names contain this text are run; an empty text means all. If it is not set,
/// nothing is run.
const WANTED: &str = "ATTA_MATRIX";

/// The name of the row without a fault.
pub const NORMAL: &str = "nothing is broken";

/// How long running jobs may take to end after a shutdown was requested.
pub const GRACE: Duration = Duration::from_secs(2);

/// After how long without a heartbeat a worker is stale.
pub const THRESHOLD: Duration = Duration::from_secs(4);

/// Rows mostly wait, so several run at a time.
const ROWS_AT_A_TIME: usize = 4;

/// A row: a fault, and the columns that can't be expected to hold during it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What is broken.
    pub name: &'static str,
    /// Columns that can't hold by the nature of the fault, with the reason.
    pub skipped: &'static [(Column, &'static str)],
    /// Whether an orderly shutdown may leave the jobs and queues named `stuck…` locked. All others must be free.
    pub leaves_stuck: bool,
    /// Names of queued jobs that must start too, besides the usual one.
    pub must_start: &'static [&'static str],
}

impl Row {
    /// A row whose jobs must all be unlocked after a shutdown.
    pub const fn new(name: &'static str) -> Row {
        Row { name, skipped: &[], leaves_stuck: false, must_start: &[] }
    }

    /// A row whose jobs `stuck…` may stay locked, since nobody can release them.
    pub const fn leaving_stuck(name: &'static str) -> Row {
        Row { leaves_stuck: true, ..Row::new(name) }
    }
}

/// What a binary provides.
pub trait Rows {
    /// The rows, without the one in which nothing is broken.
    const ROWS: &'static [Row];

    /// Environment variables of the worker processes.
    const ENVIRONMENT: &'static [(&'static str, &'static str)] = &[];

    /// In the worker process: adds the tasks of a row to the options of its worker.
    fn options(child: &Child, options: WorkerOptions) -> impl Future<Output = WorkerOptions> + Send;

    /// In the worker process: called when the worker has ended in an orderly way.
    fn ended() -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Called before the worker starts.
    fn prepare(_row: &Row, _world: &mut World) -> impl Future<Output = ()> {
        async {}
    }

    /// Causes the fault, and returns when it is present.
    fn set(row: &Row, world: &mut World) -> impl Future<Output = ()>;

    /// Jobs to add for the column of unqueued jobs, besides the usual one: task and name.
    fn others(_row: &Row) -> Vec<(&'static str, &'static str)> {
        Vec::new()
    }
}

/// The main function of a binary. Fails if a cell is red.
pub fn main<R: Rows>() -> ExitCode {
    if let Some(child) = Child::of_this_process() {
        return child.run::<R>();
    }
    let Ok(wanted) = std::env::var(WANTED) else {
        println!("matrix: run by cargo xtask matrix");
        return ExitCode::SUCCESS;
    };
    if run::<R>(&wanted) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the rows. Returns whether all cells are green.
fn run<R: Rows>(wanted: &str) -> bool {
    let normal_row = Row::new(NORMAL);
    let mut normal = Normal::default();
    let cells = run_row::<R>(normal_row, &normal);
    normal.learn(&cells);
    let mut is_green = table::print(&normal_row, &cells);
    let rows: Vec<Row> = R::ROWS.iter().filter(|row| row.name.contains(wanted)).copied().collect();
    for rows in rows.chunks(ROWS_AT_A_TIME) {
        let running: Vec<_> = rows.iter().map(|row| start_row::<R>(*row, &normal)).collect();
        for (row, running) in rows.iter().zip(running) {
            is_green &= table::print(row, &finish_row(running));
        }
    }
    is_green
}

fn run_row<R: Rows>(row: Row, normal: &Normal) -> Vec<Cell> {
    finish_row(start_row::<R>(row, normal))
}

/// Starts both runs of a row, on a new thread and runtime.
fn start_row<R: Rows>(row: Row, normal: &Normal) -> JoinHandle<Vec<Cell>> {
    let normal = normal.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let (mut cells, end) = tokio::join!(
                columns::while_it_runs::<R>(&row, &normal),
                columns::shutdown::<R>(&row, &normal)
            );
            cells.push(end);
            cells
        })
    })
}

/// If a run can't even be set up, its cells are red, and the other rows continue.
fn finish_row(running: JoinHandle<Vec<Cell>>) -> Vec<Cell> {
    running.join().unwrap_or_else(|_| vec![Cell::Red("the run could not be set up".into()); 6])
}
