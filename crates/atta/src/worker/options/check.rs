//! Checks of the options of a worker.

use std::time::Duration;

use super::WorkerOptions;
use crate::Schema;
use crate::cron::CronItems;
use crate::db::pool;

/// The highest number of slots, and of jobs in a local queue. A higher number is certainly a mistake.
const MOST_JOBS: usize = 1_000_000;

impl WorkerOptions {
    /// Limits durations to a hundred years, so that adding them to a time can't overflow, neither here nor in
    /// PostgreSQL.
    pub(super) fn bound_times(&mut self) {
        const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        let plan = &mut self.plan;
        let times = [
            &mut self.poll_interval,
            &mut self.recovery_threshold,
            &mut self.recovery_delay,
            &mut self.interrupted_job_retry_delay,
            &mut self.hook_timeout,
            &mut plan.shutdown_grace_period,
            &mut plan.shutdown_abort_period,
            &mut plan.complete_job_batch_delay,
            &mut plan.fail_job_batch_delay,
        ];
        let refetch = plan.local_queue.iter_mut().flat_map(|queue| {
            let delay = queue.refetch_delay.as_mut().map(|delay| &mut delay.duration);
            [Some(&mut queue.ttl), delay].into_iter().flatten()
        });
        times.into_iter().chain(refetch).for_each(|time| *time = (*time).min(LONGEST));
    }

    pub(super) fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        let mut check = |is_fine: bool, mistake: String| {
            if !is_fine {
                mistakes.push(mistake);
            }
        };
        check(
            self.pool.is_some() || self.url().is_some(),
            "no database is given: call database_url or pg_pool, or set DATABASE_URL".into(),
        );
        check(self.concurrency >= 1, "concurrency is 0, and must be at least 1".into());
        check(
            self.concurrency <= MOST_JOBS,
            format!("concurrency is {}, and must be at most {MOST_JOBS}", self.concurrency),
        );
        check(self.max_pg_conn >= 2, format!("max_pg_conn is {}, and must be at least 2", self.max_pg_conn));
        check(
            self.max_pg_conn <= pool::MOST_CONNECTIONS,
            format!("max_pg_conn is {}, and must be at most {}", self.max_pg_conn, pool::MOST_CONNECTIONS),
        );
        check(self.poll_interval >= Duration::from_millis(1), "poll_interval must be at least 1 ms".into());
        check(
            self.recovery_threshold >= Duration::from_secs(1),
            "recovery_threshold must be at least 1 s".into(),
        );
        check(self.hook_timeout >= Duration::from_millis(1), "hook_timeout must be at least 1 ms".into());
        check(self.crash_limit >= 1, "crash_limit is 0, and must be at least 1".into());
        check(self.plan.claim_bytes >= 1, "max_claim_bytes is 0, and must be at least 1".into());
        let budget = Duration::from_millis(1)..=Duration::from_secs(1);
        check(budget.contains(&self.plan.hold_budget), "hold_budget must be between 1 ms and 1 s".into());
        let identifiers = self.tasks.identifiers();
        check(!identifiers.is_empty(), "no task is defined: call define_job at least once".into());
        for identifier in identifiers.iter().filter(|identifier| identifier.chars().count() > 128) {
            check(false, format!("the task identifier {identifier:?} is longer than 128 characters"));
        }
        for identifier in identifiers.iter().filter(|identifier| identifier.contains('\0')) {
            check(false, format!("the task identifier {identifier:?} contains a NUL character"));
        }
        if let Err(error) = Schema::new(self.schema.as_str()) {
            check(false, error.message().to_owned());
        }
        if let Some(local_queue) = &self.plan.local_queue {
            check(local_queue.size >= 1, "the local queue's size is 0, and must be at least 1".into());
            check(
                local_queue.size <= MOST_JOBS,
                format!("the local queue's size is {}, and must be at most {MOST_JOBS}", local_queue.size),
            );
            let pause = local_queue.refetch_delay.as_ref().map_or(Duration::ZERO, |delay| delay.duration);
            check(
                pause <= self.poll_interval,
                "the local queue's refetch delay is longer than poll_interval".into(),
            );
        }
        let cron = CronItems::new();
        let known = self.plan.cron.list();
        for item in known.into_iter().chain(self.cron.iter().cloned()) {
            if let Err(error) = cron.add(item) {
                check(false, error.message().to_owned());
            }
        }
        mistakes
    }
}
