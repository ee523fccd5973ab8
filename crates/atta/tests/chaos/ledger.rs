//! The ledger records what each run of a job did. It uses connections that no fault affects, and repeats each statement
//! until it succeeds.
//!
//! The times of a run are the server's, taken after the real start and before the real end. So two runs that overlap in
//! the ledger did overlap.

use std::collections::HashMap;
use std::time::Duration;

use atta::{Job, WorkerUtils};
use chrono::{DateTime, Utc};

/// The `application_name` of connections that do not belong to a worker.
pub(crate) const NAME: &str = "chaos";

/// Also records declarations: a worker that was declared dead may still run its jobs while others run them. And every
/// end of a durable claim: its owner, and the connection that ended it. The `application_name` of a connection is the
/// instance of its worker.
const TABLES: &str = "
    create schema chaos;
    create table chaos.runs (
      id text primary key,
      instance text not null,
      worker_id text not null,
      job_id bigint not null,
      kind text not null,
      revision integer not null,
      attempt integer not null,
      -- Null while the job is only held.
      claimed_at timestamptz,
      run_at timestamptz not null,
      payload text not null,
      began_at timestamptz not null default clock_timestamp(),
      ended_at timestamptz,
      is_done boolean not null default false,
      items_done bigint[]
    );
    create index on chaos.runs (began_at);
    create table chaos.declarations (worker_id text not null, at timestamptz not null default clock_timestamp());
    create table chaos.lost_claims (worker_id text not null, job_id bigint not null);
    create function chaos.note_declaration() returns trigger language plpgsql as $$
    begin
      insert into chaos.declarations (worker_id) values (new.worker_id);
      return null;
    end $$;
    create trigger note_declaration after insert on graphile_worker._atta_dead_workers
      for each row execute function chaos.note_declaration();
    create trigger note_second_declaration after update on graphile_worker._atta_dead_workers
      for each row when (new.found_at > old.found_at) execute function chaos.note_declaration();
    create table chaos.instances (worker_id text primary key, instance text not null);
    create function chaos.note_instance() returns trigger language plpgsql as $$
    begin
      insert into chaos.instances (worker_id, instance)
      values (new.id, current_setting('application_name')) on conflict do nothing;
      return null;
    end $$;
    create trigger note_instance after insert on graphile_worker._atta_workers
      for each row execute function chaos.note_instance();
    create table chaos.changes (
      job_id bigint not null,
      attempts integer not null,
      owner text not null,
      instance text not null default current_setting('application_name'),
      is_deleted boolean not null,
      at timestamptz not null default clock_timestamp()
    );
    create index on chaos.changes (at);
    create function chaos.note_change() returns trigger language plpgsql as $$
    begin
      insert into chaos.changes (job_id, attempts, owner, is_deleted)
      values (old.id, old.attempts, old.locked_by, tg_op = 'DELETE');
      return null;
    end $$;
    create trigger note_update after update on graphile_worker._private_jobs
      for each row when (old.locked_by is not null and new.locked_by is distinct from old.locked_by)
      execute function chaos.note_change();
    create trigger note_delete after delete on graphile_worker._private_jobs
      for each row when (old.locked_by is not null)
      execute function chaos.note_change();
    -- Ten minutes must be backfilled, and all workers try to do it.
    insert into graphile_worker._private_known_crontabs (identifier, known_since)
    values ('tick', now() - interval '10 minutes');
";

/// One run of a job.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) instance: String,
    pub(crate) worker_id: String,
    pub(crate) job_id: i64,
    pub(crate) kind: String,
    pub(crate) revision: i32,
    pub(crate) attempt: i32,
    pub(crate) claimed_at: Option<DateTime<Utc>>,
    pub(crate) run_at: DateTime<Utc>,
    pub(crate) payload: String,
    pub(crate) began_at: DateTime<Utc>,
    pub(crate) ended_at: Option<DateTime<Utc>>,
    /// The run has ended with success.
    pub(crate) is_done: bool,
    pub(crate) items_done: Vec<i64>,
}

/// A worker that was declared dead.
#[derive(Clone, Debug)]
pub(crate) struct Declaration {
    pub(crate) worker_id: String,
    pub(crate) at: DateTime<Utc>,
}

/// The end of a durable claim.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) job_id: i64,
    pub(crate) attempts: i32,
    /// The worker whose claim it was.
    pub(crate) owner: String,
    /// The `application_name` of the connection that ended it.
    pub(crate) instance: String,
    /// If false, the job was unlocked.
    pub(crate) is_deleted: bool,
    pub(crate) at: DateTime<Utc>,
}

#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    utils: WorkerUtils,
}

impl Ledger {
    pub(crate) fn connect(url: &str) -> Ledger {
        Ledger { utils: WorkerUtils::connect(&with_name(url, NAME)).expect("a connection string") }
    }

    pub(crate) fn utils(&self) -> &WorkerUtils {
        &self.utils
    }

    pub(crate) async fn make(&self) {
        let client = self.utils.pool().get().await.expect("a connection");
        client.batch_execute(TABLES).await.expect("the ledger is made");
    }

    /// Repeats a statement until it succeeds. The statement must have the same effect if it runs twice.
    pub(crate) async fn insist(&self, sql: &str, parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)]) {
        loop {
            if let Ok(client) = self.utils.pool().get().await {
                match client.execute(sql, parameters).await {
                    Ok(_) => return,
                    Err(error) if error.is_closed() || is_passing(&error) => {}
                    Err(error) => panic!("the ledger refuses {sql}: {error:?}"),
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Repeats a query until it succeeds.
    pub(crate) async fn rows(
        &self,
        sql: &str,
        parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Vec<tokio_postgres::Row> {
        loop {
            if let Ok(client) = self.utils.pool().get().await {
                match client.query(sql, parameters).await {
                    Ok(rows) => return rows,
                    Err(error) if error.is_closed() || is_passing(&error) => {}
                    Err(error) => panic!("the ledger refuses {sql}: {error:?}"),
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Records the start of a run. Returns the run's id.
    pub(crate) async fn begin(&self, instance: &str, worker_id: &str, job: &Job) -> String {
        let id = format!("{:032x}", fastrand::u128(..));
        let sql = "insert into chaos.runs
                     (id, instance, worker_id, job_id, kind, revision, attempt, claimed_at, run_at, payload)
                   values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) on conflict do nothing";
        let attempt = i32::from(job.attempts());
        self.insist(
            sql,
            &[
                &id,
                &instance,
                &worker_id,
                &job.id(),
                &job.task_identifier(),
                &job.revision(),
                &attempt,
                &job.locked_at(),
                &job.run_at(),
                &job.payload_json(),
            ],
        )
        .await;
        id
    }

    /// Records the end of a run.
    pub(crate) async fn end(&self, id: &str, is_done: bool, items_done: &[i64]) {
        let sql = "update chaos.runs
                   set ended_at = coalesce(ended_at, clock_timestamp()), is_done = $2, items_done = $3
                   where id = $1";
        self.insist(sql, &[&id, &is_done, &items_done]).await;
    }

    /// The runs that started after this time, in the order of their starts.
    pub(crate) async fn runs_since(&self, since: DateTime<Utc>) -> Vec<Run> {
        let sql = "select instance, worker_id, job_id, kind, revision, attempt, claimed_at, run_at, payload, began_at,
                     ended_at, is_done, items_done
                   from chaos.runs where began_at > $1 order by began_at";
        let read = |row: &tokio_postgres::Row| Run {
            instance: row.get(0),
            worker_id: row.get(1),
            job_id: row.get(2),
            kind: row.get(3),
            revision: row.get(4),
            attempt: row.get(5),
            claimed_at: row.get(6),
            run_at: row.get(7),
            payload: row.get(8),
            began_at: row.get(9),
            ended_at: row.get(10),
            is_done: row.get(11),
            items_done: row.get::<_, Option<Vec<i64>>>(12).unwrap_or_default(),
        };
        self.rows(sql, &[&since]).await.iter().map(read).collect()
    }

    pub(crate) async fn declarations(&self) -> Vec<Declaration> {
        let rows = self.rows("select worker_id, at from chaos.declarations order by at", &[]).await;
        rows.iter().map(|row| Declaration { worker_id: row.get(0), at: row.get(1) }).collect()
    }

    /// Durable claims that ended after this time.
    pub(crate) async fn changes_since(&self, since: DateTime<Utc>) -> Vec<Change> {
        let sql = "select job_id, attempts, owner, instance, is_deleted, at from chaos.changes where at > $1";
        let read = |row: &tokio_postgres::Row| Change {
            job_id: row.get(0),
            attempts: row.get(1),
            owner: row.get(2),
            instance: row.get(3),
            is_deleted: row.get(4),
            at: row.get(5),
        };
        self.rows(sql, &[&since]).await.iter().map(read).collect()
    }

    /// Worker id to instance, for workers of atta.
    pub(crate) async fn instances(&self) -> HashMap<String, String> {
        let rows = self.rows("select worker_id, instance from chaos.instances", &[]).await;
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    pub(crate) async fn count(&self, sql: &str) -> i64 {
        self.rows(sql, &[]).await.first().map_or(0, |row| row.get(0))
    }
}

/// The connection string with this `application_name`.
pub(crate) fn with_name(url: &str, name: &str) -> String {
    format!("{url}?application_name={name}")
}

/// The server was stopped, is stopping or starting, or the connection was ended by a fault.
fn is_passing(error: &tokio_postgres::Error) -> bool {
    let code = error.code().map(|code| code.code().to_owned()).unwrap_or_default();
    code.is_empty() || code.starts_with("57P") || code.starts_with("08") || code.starts_with("40")
}
