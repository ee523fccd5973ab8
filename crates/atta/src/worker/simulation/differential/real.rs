//! The sessions on the real server: those of workers, with a connection per lane, those of applications, and one that only
//! observes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::Database;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::super::super::{Shared, Worker, WorkerOptions};
use super::super::setup::TASKS;
use super::operation::{LANES, QUEUES, SESSIONS, WORKERS};
use super::state;
use crate::db::lease::Lease;

/// Short, so that the server has been running for longer than this.
pub(super) const THRESHOLD: Duration = Duration::from_secs(4);

/// The delay of recovered jobs. Their times are spread over some seconds from then on, which no step of time reaches.
pub(super) const RECOVERY_DELAY: Duration = Duration::from_secs(25);

/// A statement that takes longer than this hangs.
const DEADLINE: Duration = Duration::from_secs(20);

/// A statement that should go on, and does not within this time, still waits.
const PATIENCE: Duration = Duration::from_millis(400);

pub(super) struct RealWorker {
    _worker: Worker,
    pub(super) shared: Arc<Shared>,
    /// For everything but held claims.
    pub(super) client: Lease,
    pub(super) lanes: Vec<Lease>,
    /// The server processes of the lanes.
    pub(super) pids: Vec<i32>,
}

/// What a statement of an application returned: the id of a job, or the code of an error.
pub(super) type Returned = Result<Option<i64>, String>;

pub(super) struct Session {
    pub(super) client: Arc<Client>,
    pub(super) pid: i32,
    running: Option<JoinHandle<Returned>>,
}

/// A statement of an application has ended, or waits for these server processes.
pub(super) enum Progress {
    Ended(Returned),
    Waits(Vec<i32>),
}

pub(super) struct Real {
    _database: Database,
    pub(super) control: Client,
    pub(super) workers: Vec<RealWorker>,
    pub(super) sessions: Vec<Session>,
    /// The ids of the queues.
    pub(super) queues: Vec<i32>,
}

impl Real {
    pub(super) async fn new() -> Real {
        let database = Database::migrated().await;
        let control = database.client().await;
        let mut workers = Vec::new();
        for _ in 0..WORKERS {
            workers.push(RealWorker::new(&database).await);
        }
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            let client = database.client().await;
            let pid = pid_of(&client).await;
            sessions.push(Session { client: Arc::new(client), pid, running: None });
        }
        let names: Vec<String> = (0..QUEUES).map(|number| format!("q{number}")).collect();
        let sql = "insert into graphile_worker._private_job_queues (queue_name) select unnest($1::text[]) returning id";
        let queues =
            control.query(sql, &[&names]).await.expect("queues").iter().map(|row| row.get(0)).collect();
        let sql = "insert into graphile_worker._private_tasks (identifier) select unnest($1::text[])";
        control.execute(sql, &[&TASKS.to_vec()]).await.expect("tasks");
        control.batch_execute(state::TRIGGER).await.expect("a trigger");
        testkit::wait_for("a server that has run for longer than the threshold", || async {
            let sql = "select extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8";
            let seconds: f64 = control.query_one(sql, &[]).await.ok()?.get(0);
            (seconds > THRESHOLD.as_secs_f64() + 1.0).then_some(())
        })
        .await;
        Real { _database: database, control, workers, sessions, queues }
    }

    /// The server processes that this one waits for.
    async fn blockers(&self, pid: i32) -> Vec<i32> {
        let row = self.control.query_one("select pg_blocking_pids($1)", &[&pid]).await;
        row.expect("pg_blocking_pids").get(0)
    }

    /// Waits until the statement of a session has ended, or waits for another transaction.
    pub(super) async fn progress(&mut self, session: usize) -> Progress {
        let began = Instant::now();
        loop {
            if self.sessions[session].running.as_ref().is_some_and(JoinHandle::is_finished) {
                return Progress::Ended(self.end(session).await);
            }
            let blockers = self.blockers(self.sessions[session].pid).await;
            if !blockers.is_empty() {
                return Progress::Waits(blockers);
            }
            assert!(began.elapsed() < DEADLINE, "a statement of an application hangs");
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
    }

    /// A statement that waited may go on: the server wakes it a little later.
    pub(super) async fn give_time(&self, session: usize) {
        let began = Instant::now();
        let running = self.sessions[session].running.as_ref();
        while running.is_some_and(|running| !running.is_finished()) && began.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
    }

    /// Waits for the end of a statement.
    pub(super) async fn end(&mut self, session: usize) -> Returned {
        let running = self.sessions[session].running.take().expect("a statement is under way");
        let ended = tokio::time::timeout(DEADLINE, running).await;
        ended.expect("a statement ends").expect("a statement does not panic")
    }

    /// Sends a statement that returns the id of a job, or nothing.
    pub(super) fn send(&mut self, session: usize, sql: String) {
        let client = self.sessions[session].client.clone();
        let run = async move {
            let rows = client.query(&sql, &[]).await.map_err(|error| {
                error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned())
            })?;
            Ok(rows.first().and_then(|row| row.get(0)))
        };
        self.sessions[session].running = Some(tokio::spawn(run));
    }

    /// Ends all transactions. The one that waits is last.
    pub(super) async fn roll_back(&mut self) {
        for worker in &self.workers {
            for lane in &worker.lanes {
                lane.batch_execute("rollback").await.expect("a lane rolls back");
            }
        }
        for session in self.sessions.iter().filter(|session| session.running.is_none()) {
            session.client.batch_execute("rollback").await.expect("a session rolls back");
        }
        for number in 0..self.sessions.len() {
            if self.sessions[number].running.is_some() {
                // What it returns no longer matters.
                let _ = self.end(number).await;
                self.sessions[number].client.batch_execute("rollback").await.expect("a session rolls back");
            }
        }
    }
}

impl RealWorker {
    async fn new(database: &Database) -> RealWorker {
        let options = WorkerOptions::default()
            .database_url(database.direct_url())
            .recovery_threshold(THRESHOLD)
            .recovery_delay(RECOVERY_DELAY)
            .crash_limit(2);
        let options = TASKS.iter().fold(options, |options, task| options.define_raw_job(task, |_| async {}));
        let worker = options.init().await.expect("a worker");
        let shared = worker.shared.clone();
        let mut lanes = Vec::new();
        for _ in 0..LANES {
            lanes.push(Lease::get(&shared.lane_pool, "claiming").await.expect("a connection"));
        }
        let mut pids = Vec::new();
        for lane in &lanes {
            pids.push(pid_of(lane).await);
        }
        let client = Lease::get(&shared.poll_pool, "testing").await.expect("a connection");
        RealWorker { _worker: worker, shared, client, lanes, pids }
    }
}

async fn pid_of(client: &Client) -> i32 {
    client.query_one("select pg_backend_pid()", &[]).await.expect("a process").get(0)
}
