//! Heartbeats, and recovery of jobs whose worker stopped sending them.
//!
//! A worker is registered in `_atta_workers` from its start to its orderly end, and sends heartbeats meanwhile
//! ([`heartbeat`]). A worker that sent none for its own threshold is stale. Another worker, whose own heartbeats have
//! been continuous for as long ([`continuity`]), declares it dead, once. Then the workers free its jobs and queues,
//! except for rows that some transaction keeps locked. Those are freed later, and until then the row of the dead worker
//! stays. Locks that the dead worker takes after that, by a statement that arrived late, are freed a little later too
//! ([`sweep`]). These rules apply only to registered workers. All other locks, including those of Node's workers, fall
//! under Graphile's rule of four hours.

mod continuity;
mod heartbeat;
mod sweep;

use std::collections::BTreeMap;
use std::time::Instant;

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

pub(crate) use continuity::Continuity;
pub(crate) use heartbeat::{Heartbeats, PER_THRESHOLD, Source};
pub(crate) use sweep::SweepTimer;

use crate::db::pool;
use crate::event::WorkerEvent;
use crate::worker::Shared;
use crate::{Error, Result};

/// Ids of dead workers, and their jobs that were freed.
type Recovered = BTreeMap<String, Vec<i64>>;

/// Declares stale workers dead and frees what dead workers have locked. Returns whether any were declared dead.
pub(crate) async fn recover(shared: &Shared) -> bool {
    match try_recover(shared).await {
        Ok((is_new, recovered)) => {
            report(shared, &recovered);
            is_new
        }
        Err(error) => {
            tracing::warn!(%error, "could not recover the jobs of dead workers; retrying");
            // The reply may have been lost after the commit.
            error.may_have_happened()
        }
    }
}

async fn try_recover(shared: &Shared) -> Result<(bool, Recovered)> {
    let continuous = shared.continuity.duration(Instant::now()).as_secs_f64();
    let threshold = shared.recovery_threshold.as_secs_f64();
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&&*shared.worker_id, Type::TEXT), (&continuous, Type::FLOAT8), (&threshold, Type::FLOAT8)];
    let declared = ask(shared, &shared.sql.declare_dead, &parameters).await?;
    let declared: Vec<String> = declared.iter().map(|row| row.get("worker_id")).collect();
    let mut recovered = free(shared, false).await?;
    ask(shared, &shared.sql.forget_workers, &[]).await?;
    let is_new = !declared.is_empty();
    for worker_id in declared {
        recovered.entry(worker_id).or_default();
    }
    Ok((is_new, recovered))
}

/// How many jobs one statement recovers, so that it never takes long.
const BATCH: i64 = 1000;

/// Frees what dead workers have locked. With `with_orphans`, also the locks of dead workers whose row is gone.
async fn free(shared: &Shared, with_orphans: bool) -> Result<Recovered> {
    let crash_limit = i64::from(shared.crash_limit);
    let delay = shared.recovery_delay.as_secs_f64();
    let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
        (&crash_limit, Type::INT8),
        (&BATCH, Type::INT8),
        (&with_orphans, Type::BOOL),
        (&delay, Type::FLOAT8),
    ];
    let mut recovered = Recovered::new();
    loop {
        let rows = ask(shared, &shared.sql.recover_workers, &parameters).await?;
        for row in &rows {
            recovered.entry(row.get("worker_id")).or_default().push(row.get("job_id"));
        }
        if i64::try_from(rows.len()).is_ok_and(|count| count < BATCH) {
            return Ok(recovered);
        }
    }
}

async fn ask(shared: &Shared, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>> {
    let client = pool::get(&shared.poll_pool, "recovering jobs").await?;
    let answered = shared.query_alone(&client, sql, parameters).await;
    answered.map_err(|error| Error::database("recovering jobs", error))
}

/// Logs, sends the events, and calls the hooks in a separate task, so that the next poll does not wait for them.
fn report(shared: &Shared, recovered: &Recovered) {
    for (worker_id, job_ids) in recovered {
        tracing::warn!(worker = worker_id, jobs = ?job_ids, "a worker was declared dead and its jobs were recovered");
        let event = WorkerEvent::WorkerRecovered {
            worker_id: worker_id.as_str().into(),
            job_ids: job_ids.as_slice().into(),
        };
        shared.events.send(|| event);
        if !shared.hooks.is_empty() {
            let (hooks, worker_id, job_ids) = (shared.hooks.clone(), worker_id.clone(), job_ids.clone());
            let call = async move {
                hooks.call("on_recovery", |it| it.on_recovery(&worker_id, &job_ids)).await;
            };
            shared.hook_tasks.spawn_on(call, &shared.app_runtime);
        }
    }
}
