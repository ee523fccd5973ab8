//! The small set of rows that every case starts from, the sessions that it uses, and the log of what they change.
//!
//! A lane is a database of its own with its sessions, so that cases can run side by side. A trigger logs each change of
//! a job or a queue with the statement that made it; the log of a transaction that is rolled back is gone with it. A
//! second trigger is a gate: it pauses a statement after its snapshot was taken and before it reads or locks a row.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;
use testkit::Database;
use tokio_postgres::{Client, Statement};

use crate::statements::prepare_all;

/// Which rows exist when a case starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum World {
    /// Jobs with and without queues, keys and flags, of living, stale and dead workers.
    Mixed,
    /// Only jobs without queues and flags: `claim_level.sql` takes nothing in the other world.
    Plain,
}

impl World {
    pub(crate) fn name(self) -> &'static str {
        match self {
            World::Mixed => "mixed",
            World::Plain => "plain",
        }
    }
}

/// A job or a queue. The columns that a queue does not have keep their default values. Times are in microseconds.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(crate) struct Row {
    pub(crate) id: i64,
    pub(crate) job_queue_id: Option<i64>,
    pub(crate) task_id: i64,
    pub(crate) queue_name: Option<String>,
    pub(crate) payload: Value,
    pub(crate) priority: i64,
    pub(crate) run_at: Option<i64>,
    pub(crate) attempts: i64,
    pub(crate) max_attempts: i64,
    pub(crate) last_error: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) locked_at: Option<i64>,
    pub(crate) locked_by: Option<String>,
    pub(crate) revision: i64,
    pub(crate) flags: Value,
}

/// One change of a row, as the trigger logged it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Change {
    pub(crate) pid: i32,
    /// The text that the session had sent.
    pub(crate) query: String,
    /// When the transaction began.
    pub(crate) now: i64,
    pub(crate) is_job: bool,
    pub(crate) old: Option<Row>,
    pub(crate) new: Option<Row>,
}

/// All rows at one time, and the log up to then.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Rows {
    pub(crate) jobs: Vec<Row>,
    pub(crate) queues: Vec<Row>,
    pub(crate) task_ids: Vec<i64>,
    pub(crate) log: Vec<Change>,
}

pub(crate) struct Session {
    pub(crate) client: std::sync::Arc<Client>,
    pub(crate) pid: i32,
}

/// A database with the sessions of the actors, one that observes, and one that keeps the gates closed.
pub(crate) struct Lane {
    _database: Database,
    pub(crate) sessions: Vec<Session>,
    pub(crate) observer: Client,
    pub(crate) gatekeeper: Session,
    /// When the running jobs of the world were claimed, as text.
    pub(crate) claimed_at: String,
    reset: Statement,
    rows: Statement,
    resets: u32,
    /// The rows of each world.
    initial: HashMap<World, Rows>,
}

const SET_UP: &str = include_str!("set_up.sql");
const WORLD: &str = include_str!("world.sql");
const ROWS: &str = include_str!("rows.sql");

/// What many resets fill with dead rows.
const VACUUMED: [&str; 5] = [
    "graphile_worker._private_jobs",
    "graphile_worker._private_job_queues",
    "graphile_worker._private_tasks",
    "graphile_worker._atta_workers",
    "public.change",
];

impl Lane {
    pub(crate) async fn open() -> Lane {
        let database = Database::migrated().await;
        let observer = database.client().await;
        observer.batch_execute(SET_UP).await.unwrap();
        observer.batch_execute(WORLD).await.unwrap();
        let rows = observer.prepare(ROWS).await.unwrap();
        let claimed_at: String = observer
            .query_one("select (date_trunc('second', now()) - interval '1 minute')::text", &[])
            .await
            .unwrap()
            .get(0);
        let reset = format!("select public.reset_world('{claimed_at}', $1)");
        let reset = observer.prepare(&reset).await.unwrap();
        let mut sessions = Vec::new();
        for _ in 0..3 {
            let session = session(&database).await;
            prepare_all(&session.client).await;
            sessions.push(session);
        }
        let gatekeeper = session(&database).await;
        Lane {
            _database: database,
            sessions,
            observer,
            gatekeeper,
            claimed_at,
            reset,
            rows,
            resets: 0,
            initial: HashMap::new(),
        }
    }

    /// Returns the rows that are there now.
    pub(crate) async fn reset(&mut self, world: World) -> Rows {
        self.observer.execute(&self.reset, &[&(world == World::Plain)]).await.unwrap();
        self.resets += 1;
        if self.resets.is_multiple_of(50) {
            for table in VACUUMED {
                let vacuum = format!("vacuum {table}");
                self.observer.batch_execute(&vacuum).await.unwrap();
            }
        }
        if let Some(rows) = self.initial.get(&world) {
            return rows.clone();
        }
        let rows = self.rows().await;
        self.initial.insert(world, rows.clone());
        rows
    }

    pub(crate) async fn rows(&self) -> Rows {
        let text: String = self.observer.query_one(&self.rows, &[]).await.unwrap().get(0);
        serde_json::from_str(&text).unwrap()
    }
}

async fn session(database: &Database) -> Session {
    let client = database.client().await;
    let settings = "set enable_seqscan = off; set enable_bitmapscan = off; set enable_mergejoin = off;
      set enable_hashjoin = off; set jit = off; set plan_cache_mode = force_generic_plan;
      set deadlock_timeout = '20ms'; set timezone = 'UTC'; set application_name = 'interleavings'";
    client.batch_execute(settings).await.unwrap();
    let pid = client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    Session { client: std::sync::Arc::new(client), pid }
}
