//! After the connection of held jobs was lost: whatever nobody has touched since becomes ours durably, and is released in
//! the usual way.
//!
//! This goes on beside the lanes, and has none of their places: it takes as long as the database is away, or another
//! transaction keeps a row locked.

use std::collections::HashSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use tokio_postgres::types::{ToSql, Type};

use super::backoff::Backoff;
use super::hold::Settlement;
use super::lanes::{LaneResult, Left, Times};
use super::run::{Finished, Outcome};
use super::{Shared, release};
use crate::db::pool;
use crate::{Error, Job, Result};

/// Held jobs whose settlement was not written, as far as is known.
pub(super) struct Unsettled {
    finished: Vec<Finished>,
    running: Vec<Arc<Job>>,
    /// The reply to the commit was lost.
    may_be_committed: bool,
    backoff: Backoff,
}

impl Unsettled {
    pub(super) fn new(settlement: Settlement, may_be_committed: bool) -> Unsettled {
        let Settlement { mut finished, running, .. } = settlement;
        // These are free already.
        finished.retain(|one| !matches!(one.outcome, Outcome::Interrupted | Outcome::NotStarted));
        Unsettled { finished, running, may_be_committed, backoff: Backoff::default() }
    }

    fn jobs(&self) -> Vec<Arc<Job>> {
        self.finished.iter().map(|one| &one.job).chain(&self.running).cloned().collect()
    }
}

/// Claims jobs of this lane anew. Comes back with those that are ours, and with those that another transaction keeps
/// locked, to be tried again.
pub(super) async fn promote(shared: Arc<Shared>, lane: u64, mut unsettled: Unsettled) -> LaneResult {
    let jobs = unsettled.jobs();
    loop {
        if unsettled.backoff.tries() > 0 {
            tokio::select! {
                () = tokio::time::sleep(unsettled.backoff.next()) => {}
                () = shared.leave.cancelled() => return LaneResult::Promoted { lane, left: Left::default() },
            }
        }
        match claim_untouched(&shared, &jobs).await {
            Ok(claimed) => return LaneResult::Promoted { lane, left: split(&shared, unsettled, claimed) },
            Err(error) => {
                if unsettled.backoff.tries() == 0 {
                    tracing::warn!(%error, jobs = jobs.len(), "could not claim jobs again after a lost connection; retrying");
                    unsettled.backoff.next();
                }
            }
        }
    }
}

/// Sorts the jobs by what became of them. The claims of some are lost: somebody else has had them since, or they were
/// settled after all.
fn split(shared: &Arc<Shared>, mut unsettled: Unsettled, claimed: Claimed) -> Left {
    let Claimed { ours, blocked } = claimed;
    let is_unknown = unsettled.may_be_committed;
    let finished: Vec<Finished> =
        unsettled.finished.extract_if(.., |one| !blocked.contains(&one.job.id)).collect();
    unsettled.running.retain(|job| blocked.contains(&job.id));
    let (finished, others) = finished.into_iter().partition(|one| ours.contains_key(&one.job.id));
    release::tell(shared, others, is_unknown);
    if !blocked.is_empty() && unsettled.backoff.tries() == 0 {
        tracing::warn!(
            jobs = blocked.len(),
            "jobs can't be claimed again after a lost connection yet: another transaction has locked them"
        );
        unsettled.backoff.next();
    }
    let unsettled = (!blocked.is_empty()).then_some(unsettled);
    Left { locked_at: ours, finished, is_unknown, unsettled }
}

struct Claimed {
    ours: Times,
    /// Kept locked by another transaction.
    blocked: HashSet<i64>,
}

async fn claim_untouched(shared: &Shared, jobs: &[Arc<Job>]) -> Result<Claimed> {
    let client = pool::get(&shared.apart_pool, "claiming jobs again after a lost connection").await?;
    let ids: Vec<i64> = jobs.iter().map(|job| job.id).collect();
    let attempts: Vec<i16> = jobs.iter().map(|job| job.attempts - 1).collect();
    let revisions: Vec<i32> = jobs.iter().map(|job| job.revision).collect();
    let created_at: Vec<DateTime<Utc>> = jobs.iter().map(|job| job.created_at).collect();
    let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
        (&&*shared.worker_id, Type::TEXT),
        (&ids, Type::INT8_ARRAY),
        (&attempts, Type::INT2_ARRAY),
        (&revisions, Type::INT4_ARRAY),
        (&created_at, Type::TIMESTAMPTZ_ARRAY),
    ];
    let rows = shared.query_alone(&client, &shared.sql.promote_untouched, &parameters).await;
    let rows = rows.map_err(|error| Error::database("claiming jobs again after a lost connection", error))?;
    let mut claimed = Claimed { ours: Times::new(), blocked: HashSet::new() };
    for row in rows {
        let (id, locked_at): (i64, Option<DateTime<Utc>>) = (row.get(0), row.get(1));
        match locked_at {
            Some(locked_at) => drop(claimed.ours.insert(id, locked_at)),
            None => drop(claimed.blocked.insert(id)),
        }
    }
    Ok(claimed)
}
