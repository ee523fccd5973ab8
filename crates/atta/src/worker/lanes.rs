//! Lanes: errands to the database, a few of which are on their way at a time. They act, and the owner decides.

use std::sync::Arc;

use tokio_postgres::types::{ToSql, Type};

use super::Shared;
use super::claim::{Claimable, Claimed, claim_jobs};
use super::release;
use super::run::Finished;
use crate::db::pool;
use crate::{Error, Result};

/// Lanes that claim durably.
pub(super) const DURABLE_LANES: usize = 2;

/// Lanes that hold: while the jobs of one run, the others pick and settle, and wait for the disk.
pub(super) const HOLDING_LANES: usize = 3;

/// All lanes may be away at once.
pub(super) const LANES: usize = DURABLE_LANES + HOLDING_LANES + 1;

/// What a lane came back with.
pub(super) enum Errand {
    /// A durable claim.
    Durable { wanted: Claimable, claimed: Result<Claimed> },
    /// How many jobs were picked and settled. If the connection was lost, and the jobs were claimed anew, their outcomes are
    /// left to be released.
    Held { lane: u64, picked: Result<usize>, left: Left },
    /// Gave back what a claim in doubt may have taken: so many jobs.
    ClearedUp(Result<usize>),
    /// Something that needs no answer.
    Aside,
}

/// Outcomes of held jobs that are durable claims now.
#[derive(Default)]
pub(super) struct Left {
    pub(super) finished: Vec<Finished>,
    /// A reply was lost: they may have been written already.
    pub(super) is_unknown: bool,
}

/// One durable claim.
pub(super) async fn claim_durably(shared: Arc<Shared>, wanted: Claimable) -> Errand {
    let claimed = match pool::get(&shared.lane_pool, "claiming jobs").await {
        Ok(client) => claim_jobs(&shared, &client, &wanted).await,
        Err(error) => Err(error),
    };
    Errand::Durable { wanted, claimed }
}

/// Opens the connections that the first claims need, all at once, so that no job waits for them.
pub(super) async fn warm_up(lane_pool: &deadpool_postgres::Pool) -> Result<()> {
    let open = (0..HOLDING_LANES).map(|_| pool::get(lane_pool, "connecting"));
    futures_util::future::try_join_all(open).await.map(drop)
}

/// Clears up what a claim in doubt may have taken.
pub(super) async fn clear_up(shared: Arc<Shared>, known: Vec<i64>) -> Errand {
    Errand::ClearedUp(release::return_unknown(&shared, &known).await)
}

/// Renews the locks of running jobs.
pub(super) async fn refresh(shared: Arc<Shared>, ids: Vec<i64>) -> Errand {
    let refreshed = async {
        let client = pool::get(&shared.lane_pool, "renewing locks").await?;
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&&*shared.worker_id, Type::TEXT), (&ids, Type::INT8_ARRAY)];
        let renewed = shared.query(&client, &shared.sql.refresh_locks, &parameters).await;
        renewed.map_err(|error| Error::database("renewing locks", error))
    };
    if let Err(error) = refreshed.await {
        tracing::warn!(%error, "could not renew the locks of running jobs, trying again later");
    }
    Errand::Aside
}
