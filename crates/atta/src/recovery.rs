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
pub(crate) mod queries;
mod sweep;

use std::collections::BTreeMap;
use std::time::Instant;

#[cfg(test)]
pub(crate) use continuity::Heartbeat;
pub(crate) use continuity::{Continuity, OwnHeartbeats};
pub(crate) use heartbeat::{Heartbeats, PER_THRESHOLD, Source};
pub(crate) use sweep::SweepTimer;

use crate::Result;
use crate::db::lease::Lease;
use crate::event::WorkerEvent;
use crate::worker::Shared;
use queries::FreedJob;

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
    let own = shared.continuity.own_heartbeats(Instant::now());
    let declared = queries::declare_dead(shared.on(&connect(shared).await?), own).await?;
    let mut recovered = free(shared, false).await?;
    queries::forget_workers(shared.on(&connect(shared).await?)).await?;
    let is_new = !declared.is_empty();
    for worker_id in declared {
        recovered.entry(worker_id).or_default();
    }
    Ok((is_new, recovered))
}

/// Frees what dead workers have locked. With `with_orphans`, also the locks of dead workers whose row is gone.
async fn free(shared: &Shared, with_orphans: bool) -> Result<Recovered> {
    let mut recovered = Recovered::new();
    loop {
        let freed = queries::recover_workers(shared.on(&connect(shared).await?), with_orphans).await?;
        let is_last = i64::try_from(freed.len()).is_ok_and(|count| count < queries::BATCH);
        for FreedJob { worker_id, job_id } in freed {
            recovered.entry(worker_id).or_default().push(job_id);
        }
        if is_last {
            return Ok(recovered);
        }
    }
}

async fn connect(shared: &Shared) -> Result<Lease> {
    Lease::get(&shared.poll_pool, "recovering jobs").await
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
