//! Two checks that run rarely: for locks of workers that were declared dead earlier, and Graphile's rule of four hours.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{connect, free, queries, report};
use crate::worker::Shared;

/// When each of the two checks is due.
pub(crate) struct SweepTimer {
    /// Graphile's rule: at a random time within the first minute, then every eight to ten minutes, so that the workers
    /// of a fleet do not all run it at once.
    next: Instant,
    /// For locks of dead workers whose rows are gone: after each time that this worker declares another dead, and once
    /// after its own start, since the worker that declared somebody dead may be dead itself by now.
    orphans: VecDeque<Instant>,
}

/// How many thresholds after a declaration the check runs: a resumed worker may claim jobs for one threshold, and such
/// a lock must be one threshold old.
const LATER: u32 = 3;

impl SweepTimer {
    pub(crate) fn new(threshold: Duration) -> SweepTimer {
        let next = Instant::now() + Duration::from_millis(fastrand::u64(0..60_000));
        let mut timer = SweepTimer { next, orphans: VecDeque::new() };
        timer.check_later(threshold);
        timer
    }

    /// Schedules a check after a worker was declared dead.
    pub(crate) fn check_later(&mut self, threshold: Duration) {
        // A later check does not delay an earlier one.
        self.orphans.push_back(Instant::now() + threshold.saturating_mul(LATER));
    }

    pub(crate) async fn sweep_when_due(&mut self, shared: &Shared) {
        let now = Instant::now();
        let due = self.orphans.partition_point(|time| *time <= now);
        if due > 0 {
            self.orphans.drain(..due);
            self.recover_orphans(shared).await;
        }
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + Duration::from_secs(fastrand::u64(480..600));
        // Frees rows that somebody kept locked at every earlier check.
        self.recover_orphans(shared).await;
        apply_four_hours(shared).await;
    }

    async fn recover_orphans(&mut self, shared: &Shared) {
        let is_to_repeat = match free(shared, true).await {
            Ok(recovered) => {
                report(shared, &recovered);
                !recovered.is_empty()
            }
            Err(error) => {
                tracing::warn!(%error, "could not recover the jobs of dead workers; retrying later");
                true
            }
        };
        if is_to_repeat {
            self.check_later(shared.recovery_threshold);
        }
    }
}

async fn apply_four_hours(shared: &Shared) {
    let swept = async { queries::sweep_stale_locks(shared.on(&connect(shared).await?)).await };
    match swept.await {
        Ok(0) => {}
        Ok(freed) => tracing::warn!(freed, "unlocked jobs that had been locked for more than four hours"),
        Err(error) => tracing::warn!(%error, "could not remove locks older than four hours; retrying later"),
    }
}
