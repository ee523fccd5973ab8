//! Lanes: connections that claim, a few of which are busy at a time. They act, and the owner decides.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::mpsc;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::Shared;
use super::backoff::Backoff;
use super::claim::{Claimable, Claimed, claim_jobs};
use super::hold::News;
use super::promote::Unsettled;
use super::release;
use super::run::Finished;
use super::unreadable::fail_unreadable_jobs;
use crate::db::pool;
use crate::{Error, Result};

/// Lanes that claim durably: one reads the jobs of its answer, one claims jobs that were seen by the claim before, and one
/// those that follow. Two claims of any jobs at a time would find the same ones.
pub(super) const DURABLE_LANES: usize = 3;

/// Lanes that hold: while the jobs of one run, the others pick and settle, and wait for the disk.
pub(super) const HOLDING_LANES: usize = 3;

/// Lanes whose settlement takes long, and that others hold instead of: the row locks are the claim, so the transaction has to
/// stay open as long as its statement takes.
pub(super) const SLOW_LANES: usize = 3;

/// A settlement that takes longer than this counts as slow.
pub(super) const SLOW: Duration = Duration::from_secs(1);

/// All lanes may be away at once.
pub(super) const LANES: usize = DURABLE_LANES + HOLDING_LANES + SLOW_LANES;

/// When durable claims of jobs were made, by job id. The time tells a claim from others of the same job.
pub(super) type Times = HashMap<i64, DateTime<Utc>>;

/// What a lane came back with.
pub(super) enum LaneResult {
    /// A durable claim.
    Durable { wanted: Box<Claimable>, claimed: Result<Claimed> },
    /// How many jobs were picked and settled. If the connection was lost, they are left to be claimed anew.
    Held { lane: u64, picked: Result<usize>, left: Left },
    /// Claimed jobs of this lane anew, whose connection was lost.
    Promoted { lane: u64, left: Left },
    /// Returned what a claim with a lost reply may have taken: the number of jobs, and of those that others keep locked.
    ClearedUp(Result<(usize, usize)>),
    /// Since when running jobs are locked, after old locks were renewed.
    Refreshed(Times),
}

/// Held jobs that are durable claims now.
#[derive(Default)]
pub(super) struct Left {
    /// When they became so.
    pub(super) locked_at: Times,
    /// Outcomes of some of them.
    pub(super) finished: Vec<Finished>,
    /// A reply was lost: they may have been written already.
    pub(super) is_unknown: bool,
    /// Those that are not ours yet.
    pub(super) unsettled: Option<Unsettled>,
}

/// One durable claim.
pub(super) async fn claim_durably(
    shared: Arc<Shared>,
    wanted: Claimable,
    news: mpsc::Sender<News>,
) -> LaneResult {
    let claimed = match pool::get(&shared.lane_pool, "claiming jobs").await {
        // Others may recover at once what it would claim.
        Ok(_) if shared.continuity.is_overdue(Instant::now()) => {
            Err(Error::unavailable("claiming jobs: no heartbeat of this worker succeeded recently"))
        }
        Ok(client) => claim_jobs(&shared, &client, &wanted, &news).await,
        Err(error) => Err(error),
    };
    if let Err(error) = &claimed {
        fail_unreadable_jobs(&shared, error).await;
    }
    LaneResult::Durable { wanted: Box::new(wanted), claimed }
}

/// Opens the connections that a worker can't do without, all at once: those of held claims, and one each for durable
/// claims, for releases and for polls. So no job waits for them, and a worker that is allowed fewer connections claims no
/// job that it could not release.
pub(super) async fn warm_up(shared: &Shared) -> Result<()> {
    let pools = [&shared.lane_pool, &shared.release_pool, &shared.poll_pool];
    let pools = std::iter::repeat_n(&shared.lane_pool, HOLDING_LANES).chain(pools);
    let open = pools.map(|pool| pool::get(pool, "connecting"));
    futures_util::future::try_join_all(open).await.map(drop)
}

/// Clears up what a claim in doubt may have taken.
pub(super) async fn clear_up(shared: Arc<Shared>, known: Vec<i64>) -> LaneResult {
    LaneResult::ClearedUp(release::return_unknown(&shared, &known).await)
}

/// Renews the locks of running jobs. Tries until the reply arrives: without it the times of the claims are unknown.
pub(super) async fn refresh(shared: Arc<Shared>, ids: Vec<i64>) -> LaneResult {
    let mut backoff = Backoff::default();
    loop {
        match renew(&shared, &ids).await {
            Ok(times) => return LaneResult::Refreshed(times),
            Err(error) if backoff.tries() == 0 => {
                tracing::warn!(%error, "could not renew the locks of running jobs; retrying");
            }
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next()) => {}
            () = shared.leave.cancelled() => return LaneResult::Refreshed(Times::new()),
        }
    }
}

async fn renew(shared: &Shared, ids: &[i64]) -> Result<Times> {
    let client = pool::get(&shared.lane_pool, "renewing locks").await?;
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&&*shared.worker_id, Type::TEXT), (&ids, Type::INT8_ARRAY)];
    let rows = shared.query_alone(&client, &shared.sql.refresh_locks, &parameters).await;
    Ok(read_times(&rows.map_err(|error| Error::database("renewing locks", error))?))
}

/// Reads rows of job ids and times.
pub(super) fn read_times(rows: &[Row]) -> Times {
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}
