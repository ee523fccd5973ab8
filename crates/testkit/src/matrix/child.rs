//! The worker of a run, in a separate process: this same binary, started again.
//!
//! It reads its orders from one file and appends notes about its actions to another. The threads and calls that do this
//! need neither the database nor the runtime, since either may be what is broken.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atta::testing::Clock;
use atta::{WorkerContext, WorkerOptions};
use chrono::{TimeDelta, Timelike};

use super::{GRACE, Rows, THRESHOLD};

/// The environment variable with the name of the row, the connection string and the folder, one per line.
const SETUP: &str = "ATTA_MATRIX_WORKER";

/// Threads of the runtime that the worker and its handlers run on.
pub const THREADS: usize = 3;

/// Jobs that the worker runs at a time.
pub const SLOTS: usize = 12;

/// Its job is added every minute and not run: no worker has this task.
const CRONTAB: &str = "* * * * * tick ?id=tick";

/// The worker process of a run.
#[derive(Clone, Debug)]
pub struct Child {
    /// The name of the row.
    pub row: String,
    /// The connection string.
    pub url: String,
    /// The folder of this process.
    pub folder: PathBuf,
    orders: Arc<Mutex<BTreeSet<String>>>,
    clock: Clock,
}

impl Child {
    /// None if this process was not started as a worker.
    pub(super) fn of_this_process() -> Option<Child> {
        let setup = std::env::var(SETUP).ok()?;
        let mut lines = setup.lines().map(str::to_owned);
        let mut next = || lines.next().expect("a row, a connection string and a folder");
        let (row, url, folder) = (next(), next(), next().into());
        Some(Child { row, url, folder, orders: Arc::default(), clock: Clock::system() })
    }

    /// The command that starts such a process.
    pub(super) fn command(row: &str, url: &str, folder: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this process knows its binary"));
        command.env(SETUP, format!("{row}\n{url}\n{}", folder.display()));
        command
    }

    pub(super) fn run<R: Rows>(self) -> ExitCode {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
        let reader = self.clone();
        std::thread::spawn(move || reader.read());
        runtime.expect("a runtime").block_on(async {
            let options = R::options(&self, self.base()).await;
            let worker = options.init().await.expect("the worker starts");
            self.note(&format!("worker {}", worker.id()));
            worker.run().await.expect("the worker ends in good order");
            R::ended().await;
            // Dropping the runtime would wait for a thread that a handler blocks.
            std::process::exit(0)
        })
    }

    fn base(&self) -> WorkerOptions {
        let child = self.clone();
        WorkerOptions::default()
            .database_url(&self.url)
            .concurrency(SLOTS)
            .max_pg_conn(4)
            .poll_interval(Duration::from_millis(500))
            .recovery_threshold(THRESHOLD)
            .shutdown_grace_period(GRACE)
            .shutdown_abort_period(Duration::from_millis(500))
            .listen_os_shutdown_signals(true)
            .clock(self.clock.clone())
            .with_cron(CRONTAB)
            .expect("the crontab is valid")
            .define_raw_job("probe", move |ctx| probe(child.clone(), ctx))
    }

    /// Whether the process got this order, or one that is a prefix of it.
    pub fn has_order(&self, text: &str) -> bool {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.iter().any(|line| text.starts_with(line.as_str()))
    }

    /// Appends a line to the notes of the process.
    pub fn note(&self, line: &str) {
        append(&notes(&self.folder), line);
    }

    /// The file with the notes of the process, for others that append to it.
    pub fn notes(&self) -> PathBuf {
        notes(&self.folder)
    }

    /// Reads the orders for as long as the process lives.
    fn read(&self) {
        let parent = std::os::unix::process::parent_id();
        let mut ticks = 0;
        while std::os::unix::process::parent_id() == parent {
            let lines = fs::read_to_string(orders(&self.folder)).unwrap_or_default();
            let wanted = lines.lines().filter(|line| *line == "tick").count();
            if wanted > ticks {
                ticks = wanted;
                // Moves the clock to the start of the next minute.
                let left = 60 - i64::from(self.clock.now().second());
                self.clock.advance(TimeDelta::seconds(left));
            }
            self.orders
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(lines.lines().map(str::to_owned));
            std::thread::sleep(Duration::from_millis(10));
        }
        // The parent has gone, and nobody would end this process any more.
        std::process::exit(1);
    }
}

/// A job that notes its start, and its end when it is ordered to end (or at once, unless its payload has `waits`).
async fn probe(child: Child, ctx: WorkerContext) {
    let payload: serde_json::Value = ctx.payload().unwrap_or_default();
    let name = payload["name"].as_str().unwrap_or_default().to_owned();
    child.note(&format!("started {name}"));
    while payload["waits"] == true && !child.has_order(&format!("end {name}")) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    child.note(&format!("ended {name}"));
}

/// Appends a line to a file, in one write.
pub fn append(file: &Path, line: &str) {
    let file = OpenOptions::new().append(true).create(true).open(file);
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.expect("a line of notes is written");
}

/// The file to which a process appends its notes.
pub(super) fn notes(folder: &Path) -> PathBuf {
    folder.join("notes")
}

/// The file from which it reads its orders.
pub(super) fn orders(folder: &Path) -> PathBuf {
    folder.join("orders")
}
