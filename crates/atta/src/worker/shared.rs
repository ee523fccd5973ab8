//! What all parts of a worker share, and none of them changes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use chrono::{DateTime, Utc};
use deadpool_postgres::{Object, Pool};
use futures_util::future::join3;
use tokio::runtime::Handle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Statement};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::flags::FlagReader;
use super::hooks::HookBacklog;
use super::pause::PausedTasks;
use super::run::Tasks;
use crate::context::Extensions;
use crate::event::{EventSender, HookList};
use crate::recovery::{Continuity, Source};
use crate::testing::Clock;
use crate::{Schema, WorkerUtils};

const BEGIN: &str = "begin isolation level read committed";

pub(crate) struct Shared {
    pub(crate) worker_id: Arc<str>,
    pub(crate) utils: WorkerUtils,
    /// For claims.
    pub(crate) lane_pool: Pool,
    /// For releases of several jobs. Where the sessions are ours, their statements time out.
    pub(crate) release_pool: Pool,
    /// For releases of single jobs, which may take long.
    pub(crate) apart_pool: Pool,
    /// For polls and recovery.
    pub(crate) poll_pool: Pool,
    /// For cron.
    pub(crate) cron_pool: Pool,
    /// For the one connection that sends heartbeats.
    pub(crate) heartbeat_source: Source,
    pub(crate) sql: Statements,
    /// Whether statements are prepared: not behind a pooler that hands out another server for each transaction.
    pub(crate) use_prepared: bool,
    /// Whether the sessions of the worker's connections are its own: neither behind such a pooler nor of a pool that was given.
    pub(crate) is_own_session: bool,
    pub(crate) tasks: Tasks,
    pub(crate) task_identifiers: Vec<String>,
    /// Their jobs are not claimed for now.
    pub(crate) paused_tasks: PausedTasks,
    pub(crate) slots: usize,
    pub(crate) forbidden_flags: FlagReader,
    pub(crate) extensions: Extensions,
    pub(crate) events: EventSender,
    pub(crate) hooks: HookList,
    pub(crate) hook_tasks: TaskTracker,
    pub(crate) hook_backlog: HookBacklog,
    /// The runtime of the application, for its code.
    pub(crate) app_runtime: Handle,
    /// Whether jobs may be held: not while the fleet is under suspicion, or another tool's functions are in place.
    pub(crate) may_hold: AtomicBool,
    /// Whether the schema has our functions, by the last poll. Their notifications name the schema.
    pub(crate) functions_are_ours: AtomicBool,
    /// Whether the next poll should check the schema: a notification says that it was migrated.
    pub(crate) check_schema: AtomicBool,
    /// Jobs that notices told of since the worker last asked.
    pub(crate) announced: AtomicUsize,
    /// This worker's own heartbeats.
    pub(crate) continuity: Continuity,
    /// The time, when it is not the database's.
    pub(crate) clock: Option<Clock>,
    pub(crate) poll_interval: Duration,
    pub(crate) recovery_threshold: Duration,
    /// How long recovered jobs wait.
    pub(crate) recovery_delay: Duration,
    /// How many workers may die while they have a job before it fails permanently.
    pub(crate) crash_limit: u32,
    pub(crate) interrupted_job_retry_delay: Duration,
    /// No new jobs.
    pub(crate) stop: CancellationToken,
    /// Jobs should end.
    pub(crate) cancel: CancellationToken,
    /// Jobs are dropped.
    pub(crate) abort: CancellationToken,
    /// The database is given up.
    pub(crate) leave: CancellationToken,
    /// All jobs are released.
    pub(crate) ended: CancellationToken,
}

impl Shared {
    /// The tasks whose jobs are claimed now.
    pub(crate) fn active_tasks(&self) -> Vec<String> {
        self.task_identifiers.iter().filter(|task| !self.paused_tasks.contains(task)).cloned().collect()
    }

    /// The time to go by, if it is not the database's.
    pub(crate) fn local_now(&self) -> Option<DateTime<Utc>> {
        self.clock.as_ref().map(Clock::now)
    }

    /// Prepares a statement where that is possible, so that the next query of it is sent at once.
    pub(crate) async fn prepare(
        &self,
        client: &Object,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<(), tokio_postgres::Error> {
        if self.use_prepared {
            self.statement(client, sql, parameters).await?;
        }
        Ok(())
    }

    /// One round trip: prepared once a connection where that is possible, and unnamed where it is not.
    pub(crate) async fn query(
        &self,
        client: &Object,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if !self.use_prepared {
            return client.query_typed(sql, parameters).await;
        }
        let statement = self.statement(client, sql, parameters).await?;
        let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
        client.query(&statement, &values).await
    }

    /// The same for a statement that is a transaction by itself. Always at read committed: a session that is not ours may
    /// have another default. There it is three statements, which are all sent before the first is answered.
    pub(crate) async fn query_alone(
        &self,
        client: &Object,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if self.is_own_session {
            return self.query(client, sql, parameters).await;
        }
        self.prepare(client, sql, parameters).await?;
        let query = self.query(client, sql, parameters);
        let (begun, rows, committed) =
            join3(client.batch_execute(BEGIN), query, client.batch_execute("commit")).await;
        begun?;
        let rows = rows?;
        committed?;
        Ok(rows)
    }

    /// [`Shared::query`] for a statement that returns nothing; gives the number of rows that it changed.
    pub(crate) async fn execute(
        &self,
        client: &Object,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<u64, tokio_postgres::Error> {
        if !self.use_prepared {
            return client.execute_typed(sql, parameters).await;
        }
        let statement = self.statement(client, sql, parameters).await?;
        let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
        client.execute(&statement, &values).await
    }

    async fn statement(
        &self,
        client: &Object,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Statement, tokio_postgres::Error> {
        let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
        client.prepare_typed_cached(sql, &types).await
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("worker_id", &self.worker_id).finish_non_exhaustive()
    }
}

/// The worker's statements with the schema filled in, named like their files.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) claim_jobs: String,
    pub(crate) claim_level: String,
    pub(crate) pick_jobs: String,
    pub(crate) pick_level: String,
    pub(crate) pick_flagged_jobs: String,
    pub(crate) find_levels: String,
    pub(crate) read_payload: String,
    pub(crate) fail_unreadable_jobs: String,
    pub(crate) complete_held: String,
    pub(crate) fail_held: String,
    pub(crate) promote_held: String,
    pub(crate) postpone_held: String,
    pub(crate) promote_untouched: String,
    pub(crate) complete_claimed: String,
    pub(crate) complete_many_claimed: String,
    pub(crate) complete_claimed_queued: String,
    pub(crate) fail_claimed: String,
    pub(crate) return_claimed: String,
    pub(crate) return_unknown: String,
    pub(crate) refresh_locks: String,
    pub(crate) poll: String,
    pub(crate) heartbeat: String,
    pub(crate) register_worker: String,
    pub(crate) deregister_worker: String,
    pub(crate) declare_dead: String,
    pub(crate) recover_workers: String,
    pub(crate) forget_workers: String,
    pub(crate) sweep_stale_locks: String,
}

impl Statements {
    pub(crate) fn new(schema: &Schema) -> Statements {
        Statements {
            claim_jobs: schema.fill(include_str!("../../sql/queries/claim_jobs.sql")),
            claim_level: schema.fill(include_str!("../../sql/queries/claim_level.sql")),
            pick_jobs: schema.fill(include_str!("../../sql/queries/pick_jobs.sql")),
            pick_level: schema.fill(include_str!("../../sql/queries/pick_level.sql")),
            pick_flagged_jobs: schema.fill(include_str!("../../sql/queries/pick_flagged_jobs.sql")),
            find_levels: schema.fill(include_str!("../../sql/queries/find_levels.sql")),
            read_payload: schema.fill(include_str!("../../sql/queries/read_payload.sql")),
            fail_unreadable_jobs: schema.fill(include_str!("../../sql/queries/fail_unreadable_jobs.sql")),
            complete_held: schema.fill(include_str!("../../sql/queries/complete_held.sql")),
            fail_held: schema.fill(include_str!("../../sql/queries/fail_held.sql")),
            promote_held: schema.fill(include_str!("../../sql/queries/promote_held.sql")),
            postpone_held: schema.fill(include_str!("../../sql/queries/postpone_held.sql")),
            promote_untouched: schema.fill(include_str!("../../sql/queries/promote_untouched.sql")),
            complete_claimed: schema.fill(include_str!("../../sql/queries/complete_claimed.sql")),
            complete_many_claimed: schema.fill(include_str!("../../sql/queries/complete_many_claimed.sql")),
            complete_claimed_queued: schema
                .fill(include_str!("../../sql/queries/complete_claimed_queued.sql")),
            fail_claimed: schema.fill(include_str!("../../sql/queries/fail_claimed.sql")),
            return_claimed: schema.fill(include_str!("../../sql/queries/return_claimed.sql")),
            return_unknown: schema.fill(include_str!("../../sql/queries/return_unknown.sql")),
            refresh_locks: schema.fill(include_str!("../../sql/queries/refresh_locks.sql")),
            poll: schema.fill(include_str!("../../sql/queries/poll.sql")),
            heartbeat: schema.fill(include_str!("../../sql/queries/heartbeat.sql")),
            register_worker: schema.fill(include_str!("../../sql/queries/register_worker.sql")),
            deregister_worker: schema.fill(include_str!("../../sql/queries/deregister_worker.sql")),
            declare_dead: schema.fill(include_str!("../../sql/queries/declare_dead.sql")),
            recover_workers: schema.fill(include_str!("../../sql/queries/recover_workers.sql")),
            forget_workers: schema.fill(include_str!("../../sql/queries/forget_workers.sql")),
            sweep_stale_locks: schema.fill(include_str!("../../sql/queries/sweep_stale_locks.sql")),
        }
    }
}
