//! Announced jobs that another worker should claim (`fleet.rs`). After a short time, this worker checks whether nobody has
//! claimed them, and asks for them if that is so.
//!
//! One statement checks all jobs that have waited for a while. It locks nothing and reads only these jobs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::super::fleet::SECOND;
use super::super::{Shared, queries};
use super::{WakeSenders, announce};
use crate::Result;
use crate::db::lease::Lease;

/// More jobs than this are not checked: this worker asks for jobs, as if it were the first.
pub(super) const MOST: usize = 1000;

/// How long a check may take before this worker asks for jobs without it.
const PATIENCE: Duration = Duration::from_millis(500);

/// A job that was announced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) id: i64,
    pub(super) since: Instant,
    /// When it is to be checked.
    pub(super) check_at: Instant,
}

/// Checks jobs until the worker stops.
pub(super) async fn check_later(
    shared: Arc<Shared>,
    mut added: mpsc::Receiver<Waiting>,
    soon: Duration,
    senders: WakeSenders,
) {
    let mut list = List::default();
    loop {
        let next = list.next().map(tokio::time::Instant::from_std);
        tokio::select! {
            waiting = added.recv() => match waiting {
                Some(waiting) => list.jobs.push(waiting),
                // The listener has ended.
                None => return,
            },
            () = tokio::time::sleep_until(next.unwrap_or_else(tokio::time::Instant::now)), if next.is_some() => {
                let ids = list.take(Instant::now());
                check(&shared, &ids, soon, &senders).await;
            }
            () = shared.stop.cancelled() => return,
        }
    }
}

async fn check(shared: &Shared, ids: &[i64], soon: Duration, senders: &WakeSenders) {
    let checked = tokio::time::timeout(PATIENCE, find(shared, ids, soon)).await;
    match checked {
        Ok(Ok(found)) => {
            if found.due > 0 {
                announce(shared, found.due, senders);
            }
            if found.soon > 0 {
                senders.poll.notify_one();
            }
        }
        // A claim reports errors of the database.
        Ok(Err(_)) | Err(_) => announce(shared, ids.len(), senders),
    }
}

async fn find(shared: &Shared, ids: &[i64], soon: Duration) -> Result<queries::Unanswered> {
    let client = Lease::get(&shared.claim_pool, "checking announced jobs").await?;
    queries::find_unanswered(shared.on(&client), ids, soon).await
}

/// The jobs that are to be checked.
#[derive(Debug, Default)]
struct List {
    jobs: Vec<Waiting>,
}

impl List {
    /// When the first job is to be checked.
    fn next(&self) -> Option<Instant> {
        self.jobs.iter().map(|job| job.check_at).min()
    }

    /// Takes all jobs that the first worker has had time to claim.
    fn take(&mut self, now: Instant) -> Vec<i64> {
        let is_old = |job: &mut Waiting| job.check_at <= now || job.since + SECOND <= now;
        self.jobs.extract_if(.., is_old).map(|job| job.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_includes_jobs_that_could_have_been_claimed_meanwhile() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let waiting = |id, since, check_at| Waiting { id, since: at(since), check_at: at(check_at) };
        let mut list = List { jobs: vec![waiting(1, 0, 15), waiting(2, 9, 24), waiting(3, 14, 29)] };
        assert_eq!(list.next(), Some(at(15)));
        assert_eq!(list.take(at(15)), [1, 2], "job 3 was just announced");
        assert_eq!(list.next(), Some(at(29)));
        assert_eq!(list.take(at(29)), [3]);
        assert_eq!(list.next(), None);
    }
}
