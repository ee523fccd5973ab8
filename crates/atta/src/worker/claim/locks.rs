//! Statements about locks that this worker has: search for those that it does not know of, and renew old ones.

use std::sync::Arc;

use super::{KnownJobs, Shared, Times};
use crate::Result;
use crate::db::lease::Lease;
use crate::worker::backoff::Backoff;
use crate::worker::planner::Event;
use crate::worker::{queries, release};

/// Returns jobs that are locked by this worker and not among the known ones: a claim with a lost reply took them.
pub(crate) async fn search(shared: Arc<Shared>, known: KnownJobs) -> Event {
    Event::Searched(release::return_unknown(&shared, &known).await)
}

/// Renews the locks of running jobs. Tries until the reply arrives: without it the times of the claims are unknown.
pub(crate) async fn renew_locks(shared: Arc<Shared>, ids: Vec<i64>) -> Event {
    let mut backoff = Backoff::default();
    loop {
        match renew(&shared, &ids).await {
            Ok(times) => return Event::Renewed(times),
            Err(error) if backoff.tries() == 0 => {
                tracing::warn!(%error, "could not renew the locks of running jobs; retrying");
            }
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next()) => {}
            () = shared.leave.cancelled() => return Event::Renewed(Times::new()),
        }
    }
}

async fn renew(shared: &Shared, ids: &[i64]) -> Result<Times> {
    let client = Lease::get(&shared.lane_pool, "renewing locks").await?;
    queries::refresh_locks(shared.on(&client), ids).await
}
