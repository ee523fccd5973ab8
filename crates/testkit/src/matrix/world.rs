//! The database, the worker process and the open transactions of one run.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::child::{Child, append, notes, orders};
use super::{Row, Rows};
use crate::{Database, Process, Signal, wait_for};

/// How long to wait for a statement that the worker may have started, if nothing shows whether it has.
const SETTLE: Duration = Duration::from_millis(1500);

/// Everything that belongs to a run.
pub struct World {
    db: Database,
    /// A connection for observing.
    pub client: Client,
    row: &'static str,
    environment: &'static [(&'static str, &'static str)],
    folder: PathBuf,
    is_kept: bool,
    /// Started by [`World::start`].
    pub(super) process: Option<Process>,
    /// Other workers of a row, until they are killed.
    others: Vec<World>,
    /// Connections whose transactions stay open.
    holders: Vec<Client>,
}

impl World {
    /// A run of a row: its worker runs two jobs, and the fault is present.
    pub(super) async fn broken<R: Rows>(row: &Row) -> World {
        let mut world = World::new(row.name, R::ENVIRONMENT, Database::migrated().await).await;
        R::prepare(row, &mut world).await;
        world.start();
        let of_the_row = R::others(row);
        for (task, name) in &of_the_row {
            // Hosts start with their first job, and their start must not be measured.
            world.add(task, &format!("warm {name}"), "").await;
        }
        world.add("probe", "earlier queued", "'earlier', '{}', true").await;
        world.add("probe", "earlier plain", "null, '{}', true").await;
        for name in ["earlier queued", "earlier plain"] {
            world.noted(&format!("started {name}")).await;
            world.is_locked(name).await;
        }
        for (_, name) in &of_the_row {
            world.noted(&format!("started warm {name}")).await;
        }
        R::set(row, &mut world).await;
        world
    }

    async fn new(
        row: &'static str,
        environment: &'static [(&'static str, &'static str)],
        db: Database,
    ) -> World {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("atta-matrix-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for notes");
        let client = db.client().await;
        let (others, holders) = (Vec::new(), Vec::new());
        World { db, client, row, environment, folder, is_kept: false, process: None, others, holders }
    }

    fn start(&mut self) {
        let log = fs::File::create(self.folder.join("log")).expect("a log is made");
        let mut command = Child::command(self.row, &self.db.url(), &self.folder);
        command.envs(self.environment.iter().copied());
        self.process = Some(Process::start(command.stderr(log)));
    }

    /// Adds a job with this name in its payload. `more` continues the arguments: queue, other properties as JSON (job
    /// key), and whether the job waits until it is ordered to end.
    pub async fn add(&self, task: &str, name: &str, more: &str) {
        let more = if more.is_empty() { "null, '{}', false" } else { more };
        let sql = format!(
            "select graphile_worker.add_job($1, json_build_object('name', $2::text, 'waits', waits),
               queue_name => queue, job_key => more ->> 'key')
             from (values ({more})) as added (queue, more, waits)"
        )
        .replace("'{}'", "'{}'::json");
        let sql = sql.replace("(null,", "(null::text,");
        self.client.query_one(&sql, &[&task, &name]).await.expect("a job is added");
    }

    /// Adds jobs `stuck 1` to `stuck COUNT` that run until they are ordered to end, each in a queue of its name, and
    /// waits until their claims are durable.
    pub async fn add_stuck(&self, count: usize) {
        for number in 1..=count {
            let name = format!("stuck {number}");
            self.add("probe", &name, &format!("'{name}', '{{\"key\": \"{name}\"}}'::json, true")).await;
        }
        for number in 1..=count {
            self.noted(&format!("started stuck {number}")).await;
            self.is_locked(&format!("stuck {number}")).await;
        }
    }

    /// Ends the jobs `stuck…`, and waits until the worker has had time to release them.
    pub async fn end_stuck(&self, count: usize) {
        self.order("end stuck");
        for number in 1..=count {
            self.noted(&format!("ended stuck {number}")).await;
        }
        self.settle().await;
    }

    /// Waits until a connection waits for a lock or sleeps, or until enough time for that has passed.
    pub async fn settle(&self) {
        self.settle_within(SETTLE, "nothing").await;
    }

    /// The same with another time limit, or until the worker process has noted a line.
    pub async fn settle_within(&self, limit: Duration, line: &str) {
        let sql = "select count(*) from pg_stat_activity
                   where datname = current_database() and backend_type = 'client backend'
                     and state = 'active' and wait_event_type in ('Lock', 'Timeout')";
        let start = Instant::now();
        while start.elapsed() < limit && !self.has_noted(line) && self.count(sql).await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Runs statements in a transaction that stays open until the end of the run.
    pub async fn hold(&mut self, sql: &str) {
        let client = self.db.client().await;
        client.batch_execute(&format!("begin; {sql}")).await.expect("an application's transaction");
        self.holders.push(client);
    }

    /// Starts another worker of the same row, whose jobs the worker of this run must recover.
    pub async fn start_other(&mut self) {
        // Shares the database, which must exist as long as this run.
        let mut other = World::new(self.row, self.environment, self.db.share()).await;
        other.start();
        other.noted("worker").await;
        self.others.push(other);
    }

    /// Waits for a note of the other worker.
    pub async fn other_noted(&self, line: &str) {
        self.others.last().expect("another worker was started").noted(line).await;
    }

    /// `kill -9` of the other worker.
    pub fn kill_other(&mut self) {
        let other = self.others.last_mut().and_then(|other| other.process.as_mut());
        other.expect("another worker was started").kill();
    }

    /// Gives the worker process an order: `end NAME` ends the jobs whose names begin with this, `tick` moves its clock
    /// to the next minute.
    pub fn order(&self, line: &str) {
        append(&orders(&self.folder), line);
    }

    /// Whether the worker process has noted a line that begins with this.
    pub(super) fn has_noted(&self, line: &str) -> bool {
        let notes = fs::read_to_string(notes(&self.folder)).unwrap_or_default();
        notes.lines().any(|noted| noted.starts_with(line))
    }

    /// Waits for a note.
    pub async fn noted(&self, line: &str) {
        wait_for(&format!("{line:?} in the notes of {:?}", self.row), || async {
            self.has_noted(line).then_some(())
        })
        .await;
    }

    /// Waits until a job is claimed durably.
    pub async fn is_locked(&self, name: &str) {
        let sql = "select count(*) from graphile_worker._private_jobs
                   where payload ->> 'name' = $1 and locked_by is not null";
        wait_for(&format!("job {name:?} to be locked"), || async {
            let row = self.client.query_one(sql, &[&name]).await.expect("jobs are counted");
            (row.get::<_, i64>(0) == 1).then_some(())
        })
        .await;
    }

    /// The id of the worker.
    pub(super) async fn worker_id(&self) -> String {
        self.noted("worker ").await;
        let notes = fs::read_to_string(notes(&self.folder)).unwrap_or_default();
        notes.lines().find_map(|line| line.strip_prefix("worker ")).unwrap_or_default().to_owned()
    }

    /// The first column of the first row, which is a number.
    pub async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.expect("it can be counted").get(0)
    }

    pub(super) fn terminate(&mut self) {
        if self.has_ended() {
            return;
        }
        if let Some(process) = &self.process {
            process.signal(Signal::Terminate);
        }
    }

    pub(super) fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_none_or(Process::has_ended)
    }

    /// Keeps the notes and the log of the worker if a cell is red, and prints their path.
    pub(super) fn keep_if(&mut self, is_red: bool) {
        self.is_kept = is_red;
        if is_red {
            eprintln!("{}: {}", self.row, self.folder.display());
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.process = None;
        if !self.is_kept {
            // The files are small, and in a folder for temporary files.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
