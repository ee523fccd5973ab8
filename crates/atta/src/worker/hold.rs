//! Held claims: jobs that a transaction keeps by row locks alone, from their pick to what became of them.
//!
//! A lane opens a transaction and picks; nobody else can take those jobs, Node's workers neither, and nothing was
//! written. They run. When all have ended, or the budget of the transaction is over, the lane settles: it deletes the
//! completed, writes down the failed, turns those that still run into durable claims, and commits. What was picked
//! and not begun is free again by that, at no cost. A worker that dies frees everything at once.
//!
//! If the connection is lost meanwhile, so are the row locks. Then the lane claims over another connection whatever
//! nobody has touched since, durably, and releases that in the usual way. So a job runs a second time only if its
//! connection was lost while it was held and another worker won the race for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::Object;
use futures_util::future::join;
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::Shared;
use super::claim;
use super::lanes::{Left, Times, read_times};
use super::promote::Unsettled;
use super::release::{self, Failures};
use super::run::{Finished, Outcome};
use super::scan::Cursor;
use crate::db::pool;
use crate::job::Place;
use crate::{Error, Job, Result};

/// The server ends a transaction of ours that hears nothing from us for so long, because our process is stopped, say.
pub(crate) const LONGEST_SILENCE: Duration = Duration::from_secs(10);

const BEGIN: &str =
    "begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s'";

/// On connections whose sessions are not ours: behind a pooler, or of a pool that was given. There each pick is planned
/// anew, by what is known of the table, which may be from when it was empty.
const BEGIN_BY_INDEXES: &str = "begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s'; \
     set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off";

/// What a lane tells while it is away.
pub(crate) enum News {
    /// It holds jobs, as many as it asked for, and this is the last of them: the next pick can begin there at once, while
    /// these are being read.
    Full(Cursor),
    Picked(Picked),
}

/// Jobs that a lane holds, and where it waits for what becomes of them.
pub(crate) struct Picked {
    pub(crate) lane: u64,
    pub(crate) from: Cursor,
    /// Whether there were as many as it asked for, so that there may be more.
    pub(crate) is_full: bool,
    pub(crate) took: Duration,
    pub(crate) jobs: Vec<Arc<Job>>,
    pub(crate) settle: oneshot::Sender<Settlement>,
}

/// What became of held jobs; those in neither list were not begun.
pub(crate) struct Settlement {
    pub(crate) finished: Vec<Finished>,
    pub(crate) running: Vec<Arc<Job>>,
}

/// What a lane should pick.
pub(crate) struct Wanted {
    pub(crate) lane: u64,
    pub(crate) count: usize,
    pub(crate) task_identifiers: Vec<String>,
    pub(crate) from: Cursor,
}

/// Picks, waits for what becomes of it, and settles. Returns how many it picked, and how long that took. What could not be
/// settled is put into `left`, to be claimed anew.
pub(crate) async fn hold(
    shared: &Arc<Shared>,
    wanted: Wanted,
    news: &mpsc::Sender<News>,
    left: &mut Left,
) -> Result<(usize, Duration)> {
    let client = pool::get(&shared.lane_pool, "claiming jobs").await?;
    let start = Instant::now();
    let picked = match pick(shared, &client, &wanted).await {
        Ok(rows) => {
            let took = start.elapsed();
            read(shared, &client, &rows, wanted.count, news).await.map(|jobs| (jobs, took))
        }
        Err(error) => Err(error),
    };
    let (jobs, took) = match picked {
        Ok(picked) => picked,
        Err(error) => {
            discard(client);
            return Err(error);
        }
    };
    let count = jobs.len();
    if jobs.is_empty() {
        if client.batch_execute("commit").await.is_err() {
            discard(client);
        }
        return Ok((0, took));
    }
    let (settle, settlement) = oneshot::channel();
    let is_full = count == wanted.count;
    let picked = Picked { lane: wanted.lane, from: wanted.from, is_full, took, jobs, settle };
    let sent = news.send(News::Picked(picked)).await;
    // Both ends are in one loop; if it is gone, so are the jobs.
    let (Ok(()), Ok(settlement)) = (sent, settlement.await) else {
        discard(client);
        return Ok((count, took));
    };
    match write(shared, &client, &settlement).await {
        Ok(locked_at) => {
            left.locked_at = locked_at;
            release::tell_all(shared, settlement.finished);
        }
        Err((error, may_be_committed)) => {
            tracing::warn!(%error, "could not settle held jobs, claiming them anew");
            discard(client);
            left.unsettled = Some(Unsettled::new(settlement, may_be_committed));
        }
    }
    Ok((count, took))
}

/// Closes a connection whose transaction is in no known state; the pool must not hand it out again.
fn discard(client: Object) {
    drop(Object::take(client));
}

async fn pick(shared: &Shared, client: &Object, wanted: &Wanted) -> Result<Vec<Row>> {
    let forbidden = shared.forbidden_flags.now().await?;
    let now = shared.local_now();
    let limit = i64::try_from(wanted.count).unwrap_or(i64::MAX);
    let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
        (&wanted.task_identifiers, Type::TEXT_ARRAY),
        (&forbidden, Type::TEXT_ARRAY),
        (&now, Type::TIMESTAMPTZ),
        (&limit, Type::INT8),
        (&wanted.from.priority, Type::INT2),
        (&wanted.from.run_at, Type::TIMESTAMPTZ),
        (&wanted.from.id, Type::INT8),
    ];
    shared.prepare(client, &shared.sql.pick_jobs, &parameters).await.map_err(failed)?;
    // One round trip: both are sent before the first is answered, in this order.
    let begin = if shared.use_prepared { BEGIN } else { BEGIN_BY_INDEXES };
    let (begun, rows) =
        join(client.batch_execute(begin), shared.query(client, &shared.sql.pick_jobs, &parameters)).await;
    begun.map_err(failed)?;
    rows.map_err(failed)
}

/// Reads what was picked, and tells first where the next pick can begin: reading takes a while.
async fn read(
    shared: &Shared,
    client: &Object,
    rows: &[Row],
    asked: usize,
    news: &mpsc::Sender<News>,
) -> Result<Vec<Arc<Job>>> {
    if let Some(last) = rows.last().filter(|_| rows.len() == asked) {
        // If the loop is gone, so are the jobs.
        let _ = news.send(News::Full(claim::read_cursor(last)?)).await;
        tokio::task::yield_now().await;
    }
    claim::read_picked(shared, client, rows).await
}

fn failed(error: tokio_postgres::Error) -> Error {
    Error::database("claiming jobs", error)
}

/// Writes the settlement and commits. Returns when the jobs that still run were claimed durably. On failure also says
/// whether the commit may have come through.
async fn write(shared: &Shared, client: &Object, settlement: &Settlement) -> Result<Times, (Error, bool)> {
    let failed = |error| (Error::database("settling held jobs", error), false);
    let ids_of = |is: fn(&Outcome) -> bool| -> Vec<i64> {
        settlement.finished.iter().filter(|one| is(&one.outcome)).map(|one| one.job.id).collect()
    };
    let failures = Failures::of(&settlement.finished);
    if !failures.ids.is_empty() {
        shared.query(client, &shared.sql.fail_held, &failures.parameters()).await.map_err(failed)?;
    }
    let running: Vec<i64> = settlement.running.iter().map(|job| job.id).collect();
    let mut locked_at = Times::new();
    if !running.is_empty() {
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&&*shared.worker_id, Type::TEXT), (&running, Type::INT8_ARRAY)];
        let rows = shared.query(client, &shared.sql.harden_held, &parameters).await.map_err(failed)?;
        locked_at = read_times(&rows);
    }
    let interrupted = ids_of(|outcome| matches!(outcome, Outcome::Interrupted));
    if !interrupted.is_empty() && !shared.interrupted_job_retry_delay.is_zero() {
        let delay = shared.interrupted_job_retry_delay.as_secs_f64();
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&interrupted, Type::INT8_ARRAY), (&delay, Type::FLOAT8)];
        shared.query(client, &shared.sql.postpone_held, &parameters).await.map_err(failed)?;
    }
    let completed = settlement.finished.iter().filter(|one| matches!(one.outcome, Outcome::Completed));
    let completed: Vec<Place> = completed.map(|one| one.job.place).collect();
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&completed, Type::TID_ARRAY)];
    shared.prepare(client, &shared.sql.complete_held, &parameters).await.map_err(failed)?;
    let (deleted, committed) =
        join(shared.execute(client, &shared.sql.complete_held, &parameters), client.batch_execute("commit"))
            .await;
    let deleted = deleted.map_err(failed)?;
    committed.map_err(|error| (Error::database("settling held jobs", error), true))?;
    if deleted == completed.len() as u64 {
        return Ok(locked_at);
    }
    // Cannot be, while we hold the rows. If it is, what is left of them is found by id.
    Err((Error::unavailable("settling held jobs: some were not where they had been"), true))
}

/// How many jobs to pick: as many as begin and end within the budget. Grows while they do, shrinks to what did.
#[derive(Debug)]
pub(crate) struct Size {
    least: usize,
    now: usize,
}

/// Twice as many as a thousand are a little faster; more were not tried, as one process should not sit on them.
const MOST: usize = 2000;

impl Size {
    /// Work that nobody knows yet is taken as it can be begun at once.
    pub(crate) fn new(slots: usize) -> Size {
        Size { least: slots.clamp(1, MOST), now: slots.clamp(1, MOST) }
    }

    pub(crate) fn get(&self) -> usize {
        self.now
    }

    /// A batch of `picked` jobs, of which `finished` ended, took this part of its budget.
    pub(crate) fn learn(&mut self, picked: usize, finished: usize, part_of_budget: f64) {
        if finished < picked {
            self.now = finished.clamp(self.least, MOST);
        } else if part_of_budget < 0.5 && picked >= self.now {
            // Far from the budget, so far that even eight times as many would stay well within.
            let factor = if part_of_budget < 0.05 { 8 } else { 2 };
            self.now = (self.now * factor).min(MOST);
        } else if part_of_budget > 0.8 {
            self.now = (self.now * 3 / 4).max(self.least);
        }
    }
}

/// How long the jobs of each task take, so that slow ones are claimed durably from the start.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    averages: HashMap<Arc<str>, f64>,
}

impl Durations {
    pub(crate) fn learn(&mut self, task_identifier: &str, took: Duration) {
        let took = took.as_secs_f64();
        match self.averages.get_mut(task_identifier) {
            Some(average) => *average += (took - *average) / 8.0,
            None => drop(self.averages.insert(task_identifier.into(), took)),
        }
    }

    pub(crate) fn is_slow(&self, task_identifier: &str, budget: Duration) -> bool {
        self.averages.get(task_identifier).is_some_and(|average| *average > budget.as_secs_f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_while_all_is_done_early_and_shrinks_to_what_is_done_in_time() {
        let mut size = Size::new(4);
        for expected in [8, 16, 32, 64, 128, 256, 512, 1024, 2000, 2000] {
            size.learn(size.get(), size.get(), 0.1);
            assert_eq!(size.get(), expected);
        }
        size.learn(2000, 300, 1.0);
        assert_eq!(size.get(), 300);
        size.learn(300, 0, 1.0);
        assert_eq!(size.get(), 4);
        // A batch that was not full says nothing about a larger one.
        size.learn(2, 2, 0.0);
        assert_eq!(size.get(), 4);
    }

    #[test]
    fn a_task_is_slow_by_its_average() {
        let mut durations = Durations::default();
        let budget = Duration::from_millis(50);
        assert!(!durations.is_slow("t", budget));
        for _ in 0..20 {
            durations.learn("t", Duration::from_millis(100));
        }
        assert!(durations.is_slow("t", budget));
        for _ in 0..20 {
            durations.learn("t", Duration::from_millis(1));
        }
        assert!(!durations.is_slow("t", budget));
    }
}
