//! Promotion after the connection of held jobs was lost, or after the database refused to commit their batch: jobs
//! that were not changed since are claimed durably, and released as durable claims.
//!
//! This does not count as a lane. It may take long: until the database is reachable again, and until other transactions
//! have unlocked the rows.

use std::collections::HashSet;
use std::sync::Arc;

use super::held::Settlement;
use super::{Left, Shared, Times};
use crate::db::lease::Lease;
use crate::worker::backoff::Backoff;
use crate::worker::planner::Event;
use crate::worker::queries::{self, Promoted};
use crate::worker::release;
use crate::worker::run::{Finished, Outcome};
use crate::{Error, Job, Result};

/// Held jobs whose settlement failed, or may have failed.
pub(crate) struct Unsettled {
    finished: Vec<Finished>,
    running: Vec<Arc<Job>>,
    /// The reply to the commit was lost.
    may_be_committed: bool,
    pub(crate) backoff: Backoff,
    /// The database refused the commit of the batch, or a promotion, with this error.
    pub(crate) refusal: Option<Error>,
}

impl Unsettled {
    pub(crate) fn new(settlement: Settlement, may_be_committed: bool) -> Unsettled {
        let Settlement { mut finished, apart, running, .. } = settlement;
        finished.extend(apart);
        // These jobs became free when the transaction ended.
        finished.retain(|one| !matches!(one.outcome, Outcome::Interrupted | Outcome::NotStarted));
        Unsettled { finished, running, may_be_committed, backoff: Backoff::default(), refusal: None }
    }

    pub(crate) fn jobs(&self) -> Vec<Arc<Job>> {
        self.finished.iter().map(|one| &one.job).chain(&self.running).cloned().collect()
    }
}

/// Claims the jobs of this lane again. Returns the jobs that were claimed, and those that another transaction keeps
/// locked, for another attempt.
pub(crate) async fn promote(shared: Arc<Shared>, lane: u64, mut unsettled: Unsettled) -> Event {
    let jobs = unsettled.jobs();
    loop {
        if unsettled.backoff.tries() > 0 {
            tokio::select! {
                () = tokio::time::sleep(unsettled.backoff.next()) => {}
                () = shared.leave.cancelled() => return Event::Promoted { lane, left: Left::default() },
            }
        }
        match claim_untouched(&shared, &jobs).await {
            Ok((promoted, refusal)) => {
                let Split { mut left, others } = split(unsettled, promoted);
                if let Some(unsettled) = &mut left.unsettled {
                    unsettled.refusal = refusal;
                }
                release::report_outcomes(&shared, others, left.is_unknown);
                return Event::Promoted { lane, left };
            }
            Err(error) => {
                if unsettled.backoff.tries() == 0 {
                    tracing::warn!(%error, jobs = jobs.len(), "could not claim jobs again after a lost connection; retrying");
                    unsettled.backoff.next();
                }
            }
        }
    }
}

/// The jobs of a batch after the new claim.
pub(crate) struct Split {
    pub(crate) left: Left,
    /// Outcomes of jobs that could not be claimed. Others have claimed them since, or the settlement was written after
    /// all.
    pub(crate) others: Vec<Finished>,
}

/// Sorts the jobs by the result of the new claim. Pure.
pub(crate) fn split(mut unsettled: Unsettled, promoted: Promoted) -> Split {
    let Promoted { ours, blocked } = promoted;
    let is_unknown = unsettled.may_be_committed;
    let finished: Vec<Finished> =
        unsettled.finished.extract_if(.., |one| !blocked.contains(&one.job.id)).collect();
    let running: Vec<Arc<Job>> = unsettled.running.extract_if(.., |job| !blocked.contains(&job.id)).collect();
    let (finished, others) = finished.into_iter().partition(|one| ours.contains_key(&one.job.id));
    if !blocked.is_empty() && unsettled.backoff.tries() == 0 {
        tracing::warn!(
            jobs = blocked.len(),
            "jobs can't be claimed again after a lost connection yet: another transaction has locked them, or the database refuses it"
        );
        unsettled.backoff.next();
    }
    let unsettled = (!blocked.is_empty()).then_some(unsettled);
    Split {
        left: Left { locked_at: ours, running, finished, is_unknown, unsettled, ..Left::default() },
        others,
    }
}

/// Claims these jobs again. If the database refuses that, for example because a trigger raises an error for one of
/// them, each half is tried apart, and so on. A job that is refused alone counts as blocked: it is tried again later.
/// The last such error is returned too.
async fn claim_untouched(shared: &Shared, jobs: &[Arc<Job>]) -> Result<(Promoted, Option<Error>)> {
    let mut promoted = Promoted { ours: Times::new(), blocked: HashSet::new() };
    let mut refusal = None;
    let mut parts = vec![jobs];
    while let Some(part) = parts.pop() {
        match claim_part(shared, part).await {
            Ok(Promoted { ours, blocked }) => {
                promoted.ours.extend(ours);
                promoted.blocked.extend(blocked);
            }
            Err(error) if !error.is_refusal() => return Err(error),
            Err(error) => match part {
                [job] => {
                    let (worker, job) = (&*shared.worker_id, job.id);
                    tracing::debug!(worker, job, %error, "the database refuses to claim a held job durably");
                    promoted.blocked.insert(job);
                    refusal = Some(error);
                }
                _ => parts.extend(<[_; 2]>::from(part.split_at(part.len() / 2))),
            },
        }
    }
    Ok((promoted, refusal))
}

async fn claim_part(shared: &Shared, jobs: &[Arc<Job>]) -> Result<Promoted> {
    // The statements of several jobs have a time limit there.
    let pool = if jobs.len() > 1 { &shared.release_pool } else { &shared.apart_pool };
    let client = Lease::get(pool, "claiming jobs again after a lost connection").await?;
    queries::promote_untouched(shared.on(&client), jobs).await
}
