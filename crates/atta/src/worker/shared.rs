//! What all parts of a worker share, and none of them changes.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use deadpool_postgres::{Object, Pool};
use tokio::runtime::Handle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Statement};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::flags::FlagReader;
use super::hooks::HookBacklog;
use super::run::Tasks;
use crate::context::Extensions;
use crate::event::{EventSender, HookList};
use crate::testing::Clock;
use crate::{Schema, WorkerUtils};

pub(crate) struct Shared {
    pub(crate) worker_id: Arc<str>,
    pub(crate) utils: WorkerUtils,
    /// For claims.
    pub(crate) lane_pool: Pool,
    /// For releases of several jobs. Where the sessions are ours, their statements time out.
    pub(crate) release_pool: Pool,
    /// For releases of single jobs, which may take long.
    pub(crate) apart_pool: Pool,
    /// For heartbeats and recovery.
    pub(crate) pulse_pool: Pool,
    pub(crate) sql: Statements,
    /// Whether statements are prepared: not behind a pooler that hands out another server for each transaction.
    pub(crate) use_prepared: bool,
    pub(crate) tasks: Tasks,
    pub(crate) task_identifiers: Vec<String>,
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
    /// Jobs that notices told of since the worker last asked.
    pub(crate) announced: AtomicUsize,
    pub(crate) beats: Beats,
    /// The time, when it is not the database's.
    pub(crate) clock: Option<Clock>,
    pub(crate) poll_interval: Duration,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) recovery_threshold: Duration,
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

    /// The same for a statement that returns nothing; gives the number of rows that it changed.
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

/// When the database last heard from us, at the earliest: when a look was sent. After a silence as long as the threshold
/// others may have taken us for dead, and our jobs for theirs.
pub(crate) struct Beats {
    threshold: Duration,
    /// The last beat, and the last that came after too long a silence.
    last: Mutex<(Instant, Option<Instant>)>,
}

impl Beats {
    pub(crate) fn new(threshold: Duration) -> Beats {
        Beats { threshold, last: Mutex::new((Instant::now(), None)) }
    }

    /// Notes a beat that was sent then and is answered now. Says whether others may have taken us for dead before.
    pub(crate) fn note(&self, sent_at: Instant, is_registered: bool) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_revival = now - last.0 > self.threshold || !is_registered;
        last.0 = sent_at;
        if is_revival {
            last.1 = Some(now);
        }
        is_revival
    }

    /// Whether what was claimed then may have been taken from us since.
    pub(crate) fn may_have_lost(&self, claimed_at: Instant) -> bool {
        let (beat, revival) = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_silent = beat.elapsed() > self.threshold && claimed_at.elapsed() > self.threshold;
        is_silent || revival.is_some_and(|revival| claimed_at < revival)
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
    pub(crate) pick_jobs: String,
    pub(crate) pick_flagged_jobs: String,
    pub(crate) find_levels: String,
    pub(crate) read_payload: String,
    pub(crate) complete_held: String,
    pub(crate) fail_held: String,
    pub(crate) harden_held: String,
    pub(crate) postpone_held: String,
    pub(crate) harden_untouched: String,
    pub(crate) complete_claimed: String,
    pub(crate) complete_claimed_queued: String,
    pub(crate) fail_claimed: String,
    pub(crate) return_claimed: String,
    pub(crate) return_unknown: String,
    pub(crate) refresh_locks: String,
    pub(crate) look: String,
    pub(crate) register_worker: String,
    pub(crate) deregister_worker: String,
    pub(crate) recover_workers: String,
    pub(crate) recover_orphans: String,
    pub(crate) sweep_stale_locks: String,
}

impl Statements {
    pub(crate) fn new(schema: &Schema) -> Statements {
        Statements {
            claim_jobs: schema.fill(include_str!("../../sql/queries/claim_jobs.sql")),
            pick_jobs: schema.fill(include_str!("../../sql/queries/pick_jobs.sql")),
            pick_flagged_jobs: schema.fill(include_str!("../../sql/queries/pick_flagged_jobs.sql")),
            find_levels: schema.fill(include_str!("../../sql/queries/find_levels.sql")),
            read_payload: schema.fill(include_str!("../../sql/queries/read_payload.sql")),
            complete_held: schema.fill(include_str!("../../sql/queries/complete_held.sql")),
            fail_held: schema.fill(include_str!("../../sql/queries/fail_held.sql")),
            harden_held: schema.fill(include_str!("../../sql/queries/harden_held.sql")),
            postpone_held: schema.fill(include_str!("../../sql/queries/postpone_held.sql")),
            harden_untouched: schema.fill(include_str!("../../sql/queries/harden_untouched.sql")),
            complete_claimed: schema.fill(include_str!("../../sql/queries/complete_claimed.sql")),
            complete_claimed_queued: schema
                .fill(include_str!("../../sql/queries/complete_claimed_queued.sql")),
            fail_claimed: schema.fill(include_str!("../../sql/queries/fail_claimed.sql")),
            return_claimed: schema.fill(include_str!("../../sql/queries/return_claimed.sql")),
            return_unknown: schema.fill(include_str!("../../sql/queries/return_unknown.sql")),
            refresh_locks: schema.fill(include_str!("../../sql/queries/refresh_locks.sql")),
            look: schema.fill(include_str!("../../sql/queries/look.sql")),
            register_worker: schema.fill(include_str!("../../sql/queries/register_worker.sql")),
            deregister_worker: schema.fill(include_str!("../../sql/queries/deregister_worker.sql")),
            recover_workers: schema.fill(include_str!("../../sql/queries/recover_workers.sql")),
            recover_orphans: schema.fill(include_str!("../../sql/queries/recover_orphans.sql")),
            sweep_stale_locks: schema.fill(include_str!("../../sql/queries/sweep_stale_locks.sql")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLD: Duration = Duration::from_secs(30);

    fn ago(seconds: u64) -> Instant {
        Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn what_was_asked_for_before_a_silence_may_be_lost_and_what_came_after_is_not() {
        let beats = Beats::new(THRESHOLD);
        assert!(!beats.note(ago(1), true));
        assert!(!beats.may_have_lost(ago(40)), "we were never silent");
        // The answer to the last look has waited for us, and so may the answer to a claim have.
        beats.note(ago(31), true);
        assert!(beats.may_have_lost(ago(31)));
        assert!(!beats.may_have_lost(ago(1)));
        assert!(beats.note(ago(0), true), "the next look tells");
        assert!(beats.may_have_lost(ago(1)));
        assert!(!beats.may_have_lost(Instant::now()));
    }

    #[test]
    fn who_was_buried_may_have_lost_all() {
        let beats = Beats::new(THRESHOLD);
        assert!(beats.note(ago(0), false));
        assert!(beats.may_have_lost(ago(1)));
    }
}
