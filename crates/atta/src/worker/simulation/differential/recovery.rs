//! Heartbeats, polls and recovery.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::super::queries;
use super::super::setup::TASKS;
use super::claims::forbidden;
use super::pair::{Answers, Both, Pair, same};
use super::real::THRESHOLD;
use super::state::Line;
use crate::recovery::{OwnHeartbeats, queries as recovery};

/// For how long the heartbeats of a worker have been continuous: long enough, or not.
fn continuous(is_continuous: bool) -> Duration {
    if is_continuous { THRESHOLD * 3 } else { THRESHOLD / 2 }
}

impl Pair {
    pub(super) async fn heartbeat(&mut self, worker: usize) -> Answers {
        let was_registered = self.model.heartbeat(self.now, worker);
        let it = &self.real.workers[worker];
        let times = recovery::heartbeat(&it.client, &it.shared).await.expect("a heartbeat");
        if times.is_none() {
            recovery::register_worker(&it.client, &it.shared, "host").await.expect("a registration");
        }
        let line = |was_registered: bool| Line::text(format!("was registered: {was_registered}"));
        Some(Both { model: line(was_registered), real: line(times.is_some()) })
    }

    pub(super) async fn deregister(&mut self, worker: usize) -> Answers {
        self.model.deregister(worker);
        let it = &self.real.workers[worker];
        recovery::deregister_worker(&it.client, &it.shared).await.expect("the end of a registration");
        same("deregistered".to_owned())
    }

    pub(super) async fn poll(
        &mut self,
        worker: usize,
        is_continuous: bool,
        for_jobs: bool,
        forbids: bool,
    ) -> Answers {
        let (continuous, forbidden) = (continuous(is_continuous), forbidden(forbids));
        let model = self.model.poll(self.now, worker, continuous, for_jobs, &forbidden);
        let it = &self.real.workers[worker];
        let tasks = TASKS.map(str::to_owned);
        let polled = queries::poll(it.shared.on(&it.client), &tasks, &forbidden, continuous, for_jobs).await;
        let real = polled.expect("a poll");
        let day = 24.0 * 3600.0;
        let text = |stale, dead, deaths| format!("stale {stale} dead {dead} deaths {deaths}");
        let due = model.next_due.iter().map(|due| due.as_secs_f64().min(day));
        Some(Both {
            model: Line::new(
                text(model.others_are_stale, model.others_are_dead, model.recent_deaths as i64),
                due,
            ),
            real: Line::new(
                text(real.others_are_stale, real.others_are_dead, real.recent_deaths),
                real.next_due.iter().map(|seconds| seconds.max(0.0)),
            ),
        })
    }

    pub(super) async fn declare_dead(&mut self, worker: usize, is_continuous: bool) -> Answers {
        let continuous = continuous(is_continuous);
        let last = self.model.workers.get(&worker).map(|row| row.heartbeat_at);
        let declared = self.model.declare_dead(self.now, worker, OwnHeartbeats { continuous, last });
        let it = &self.real.workers[worker];
        let sql = "select heartbeat_at from graphile_worker._atta_workers where id = $1";
        let row = it.client.query_opt(sql, &[&&*it.shared.worker_id]).await.expect("the own heartbeat");
        let own = OwnHeartbeats { continuous, last: row.map(|row| row.get(0)) };
        let real = recovery::declare_dead(it.shared.on(&it.client), own).await;
        let mut real: Vec<usize> =
            real.expect("a declaration").iter().filter_map(|id| self.worker_of(id)).collect();
        real.sort_unstable();
        let model: Vec<usize> = declared.into_iter().map(|(number, _)| number).collect();
        let line = |workers: Vec<usize>| Line::text(format!("declared dead: {workers:?}"));
        Some(Both { model: line(model), real: line(real) })
    }

    /// The server spreads the times of jobs at random. The model takes them over, if they are in the right range.
    pub(super) async fn recover(&mut self, worker: usize, with_orphans: bool) -> Answers {
        let model = self.model.recover(self.now, with_orphans, 0.5);
        let it = &self.real.workers[worker];
        let freed =
            recovery::recover_workers(it.shared.on(&it.client), with_orphans).await.expect("a recovery");
        let freed = freed.iter().filter_map(|freed| Some((self.worker_of(&freed.worker_id)?, freed.job_id)));
        let mut real: Vec<(usize, i64)> = freed.collect();
        real.sort_unstable_by_key(|(_, id)| *id);
        self.read_again().await;
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        model.iter().for_each(|(worker, _)| *counts.entry(*worker).or_default() += 1);
        for (_, id) in model.iter().filter(|(worker, _)| counts[worker] > 1) {
            let row = &self.model.rows()[id];
            let Some(real) = self.real_run_at(*id) else { continue };
            let apart = self.real_seconds(real) - self.model_seconds(row.job.run_at);
            // A job crashes at most twice here, so its time lies within two seconds.
            if row.job.job_queue_id.is_none() && apart.abs() < 2.5 {
                let run_at = real + self.advanced;
                self.model.update(self.now, *id, |row| row.job.run_at = run_at);
            }
        }
        let line = |freed: Vec<(usize, i64)>| Line::text(format!("freed {freed:?}"));
        Some(Both { model: line(model), real: line(real) })
    }

    pub(super) async fn forget_workers(&mut self, worker: usize) -> Answers {
        self.model.forget_workers();
        let it = &self.real.workers[worker];
        recovery::forget_workers(it.shared.on(&it.client)).await.expect("workers are forgotten");
        same("forgotten".to_owned())
    }
}
