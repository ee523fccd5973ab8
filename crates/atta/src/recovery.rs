//! Death and recovery: workers say that they are alive, and the living bury the dead.
//!
//! A worker is in the table `_atta_workers` from its start to its orderly end, and beats with every look at the
//! database. One that was silent for the threshold is dead; whoever notices first takes its row away and frees its
//! jobs and queues, all in one statement, so it happens once. What the dead lock after that, by a statement that came
//! late, is freed a little later. Only workers of that table are judged so. Everybody else's locks, Node's too, fall under
//! Graphile's rule of four hours.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio_postgres::types::Type;

use crate::db::pool;
use crate::event::WorkerEvent;
use crate::worker::Shared;
use crate::{Error, Result};

/// Puts this worker into the table of the living.
pub(crate) async fn register(shared: &Shared) -> Result<()> {
    let client = pool::get(&shared.pulse_pool, "registering the worker").await?;
    let slots = i32::try_from(shared.slots).unwrap_or(i32::MAX);
    let pid = i32::try_from(std::process::id()).unwrap_or_default();
    let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 6] = [
        (&&*shared.worker_id, Type::TEXT),
        (&host(), Type::TEXT),
        (&pid, Type::INT4),
        (&env!("CARGO_PKG_VERSION"), Type::TEXT),
        (&shared.task_identifiers, Type::TEXT_ARRAY),
        (&slots, Type::INT4),
    ];
    shared
        .query(&client, &shared.sql.register_worker, &parameters)
        .await
        .map_err(|error| shared.utils.explain(Error::database("registering the worker", error)))?;
    Ok(())
}

/// Takes this worker out again, when it has given up all that it held. Tries a few times: a worker that ended in good
/// order should not be noted as dead.
pub(crate) async fn deregister(shared: &Shared) {
    for _ in 0..3 {
        match try_deregister(shared).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "could not deregister this worker"),
        }
    }
}

async fn try_deregister(shared: &Shared) -> Result<()> {
    let client = pool::get(&shared.pulse_pool, "deregistering the worker").await?;
    shared
        .query(&client, &shared.sql.deregister_worker, &[(&&*shared.worker_id, Type::TEXT)])
        .await
        .map_err(|error| Error::database("deregistering the worker", error))?;
    Ok(())
}

/// What follows from a look: we may have been buried alive, or others may be dead. Says whether others were buried.
pub(crate) async fn after_look(shared: &Shared, is_registered: bool, others_are_silent: bool) -> bool {
    if !is_registered && let Err(error) = register(shared).await {
        tracing::warn!(%error, "could not register this worker, trying again");
    }
    others_are_silent && recover(shared, &shared.sql.recover_workers).await
}

/// Frees what dead workers held, by one of the two statements for it, and tells of it. Says whether there were any.
async fn recover(shared: &Shared, sql: &str) -> bool {
    match try_recover(shared, sql).await {
        Ok(dead) => {
            for (worker_id, job_ids) in &dead {
                tell_recovered(shared, worker_id, job_ids);
            }
            !dead.is_empty()
        }
        Err(error) => {
            tracing::warn!(%error, "could not recover the jobs of dead workers, trying again");
            // The answer may have been lost after the deed.
            error.may_have_happened()
        }
    }
}

/// The dead, and the jobs that they held.
async fn try_recover(shared: &Shared, sql: &str) -> Result<Vec<(String, Vec<i64>)>> {
    let client = pool::get(&shared.pulse_pool, "recovering jobs").await?;
    let threshold = shared.recovery_threshold.as_secs_f64();
    let rows = shared
        .query(&client, sql, &[(&threshold, Type::FLOAT8)])
        .await
        .map_err(|error| Error::database("recovering jobs", error))?;
    let mut dead: Vec<(String, Vec<i64>)> = Vec::new();
    for row in &rows {
        let worker_id: String = row.get("worker_id");
        let job_id: Option<i64> = row.get("job_id");
        match dead.iter_mut().find(|(id, _)| *id == worker_id) {
            Some((_, job_ids)) => job_ids.extend(job_id),
            None => dead.push((worker_id, job_id.into_iter().collect())),
        }
    }
    Ok(dead)
}

/// Hooks in a task of their own: the next beat does not wait for them.
fn tell_recovered(shared: &Shared, worker_id: &str, job_ids: &[i64]) {
    tracing::warn!(dead = worker_id, jobs = ?job_ids, "a worker died; its jobs are free again");
    let event = WorkerEvent::WorkerRecovered { worker_id: worker_id.into(), job_ids: job_ids.into() };
    shared.events.send(|| event);
    if !shared.hooks.is_empty() {
        let (hooks, worker_id, job_ids) = (shared.hooks.clone(), worker_id.to_owned(), job_ids.to_vec());
        shared.hook_tasks.spawn(async move {
            hooks.call("on_recovery", |it| it.on_recovery(&worker_id, &job_ids)).await;
        });
    }
}

/// Another tool may have dropped our tables: put them back, or go on without them.
pub(crate) async fn restore_own_objects(shared: &Shared, error: &Error) {
    if error.db_code() != Some("42P01") {
        return;
    }
    match shared.utils.migrate().await {
        Ok(_) => tracing::info!("tables of atta were missing from the schema and are back"),
        Err(error) => tracing::warn!(%error, "tables of atta are missing from the schema"),
    }
}

/// When Graphile's rule of four hours is applied: at some moment of the first minute, then every eight to ten
/// minutes, so that the workers of a fleet do not do it all at once. And when it is looked after those who were buried: by
/// who has buried them, after each burial, and by everybody once, since that one may be dead by then.
pub(crate) struct SweepTimer {
    next: Instant,
    orphans: VecDeque<Instant>,
}

/// So many thresholds after a burial: a zombie may rise for one, and what it then locks must be one old.
const LOOK_AGAIN: u32 = 3;

impl SweepTimer {
    pub(crate) fn new(threshold: Duration) -> SweepTimer {
        let next = Instant::now() + Duration::from_millis(fastrand::u64(0..60_000));
        let mut timer = SweepTimer { next, orphans: VecDeque::new() };
        timer.look_again_later(threshold);
        timer
    }

    /// After a burial.
    pub(crate) fn look_again_later(&mut self, threshold: Duration) {
        // A later one does not put off an earlier one.
        self.orphans.push_back(Instant::now() + threshold.saturating_mul(LOOK_AGAIN));
    }

    pub(crate) async fn sweep_when_due(&mut self, shared: &Shared) {
        let now = Instant::now();
        let due = self.orphans.partition_point(|time| *time <= now);
        if due > 0 {
            self.orphans.drain(..due);
            if recover(shared, &shared.sql.recover_orphans).await {
                self.look_again_later(shared.recovery_threshold);
            }
        }
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + Duration::from_secs(fastrand::u64(480..600));
        match sweep(shared).await {
            Ok(0) => {}
            Ok(freed) => {
                tracing::warn!(freed, "jobs were locked for more than four hours and are free again")
            }
            Err(error) => tracing::warn!(%error, "could not sweep stale locks, trying again later"),
        }
    }
}

async fn sweep(shared: &Shared) -> Result<i64> {
    let client = pool::get(&shared.pulse_pool, "sweeping stale locks").await?;
    let rows = shared
        .query(&client, &shared.sql.sweep_stale_locks, &[])
        .await
        .map_err(|error| Error::database("sweeping stale locks", error))?;
    Ok(rows.first().map_or(0, |row| row.get("freed")))
}

/// The machine's name, for whoever looks at the table.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::fs::read_to_string("/etc/hostname"));
    name.ok().map(|name| name.trim().to_owned()).unwrap_or_else(|| "unknown".into())
}
