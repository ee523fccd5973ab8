//! Releases of durable claims, by the claims that still stand and by those that do not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::super::super::claim::KnownJobs;
use super::super::super::queries::{self, Claims, Failures};
use super::super::super::release::{Entry, Fate};
use super::super::super::run::{self, Failure, Finished, Outcome};
use super::operation::End;
use super::pair::{Answers, Both, Claim, Pair};
use super::state::Line;
use crate::{Job, Retry};

/// How a run of this job ends.
pub(super) fn outcome(end: End, id: i64) -> Outcome {
    let retry = match id % 3 {
        0 => Retry::Never,
        1 => Retry::Backoff,
        _ => Retry::In(Duration::from_secs(90)),
    };
    match end {
        End::Complete => Outcome::Completed,
        End::Fail => Outcome::Failed(Box::new(Failure { error: "no".into(), retry, payload: None })),
        End::Return => Outcome::NotStarted,
    }
}

fn finished(end: End, job: &Arc<Job>) -> Finished {
    let (outcome, duration) = (outcome(end, job.id), Duration::ZERO);
    Finished { outcome, job: job.clone(), duration, claim: run::Claim::Durable }
}

fn describe(fates: impl IntoIterator<Item = (i64, Fate)>) -> Line {
    let fates: BTreeMap<i64, String> =
        fates.into_iter().map(|(id, fate)| (id, format!("{fate:?}"))).collect();
    Line::text(format!("{fates:?}"))
}

impl Pair {
    /// The claims of a worker that a mask chooses, at most one of each job.
    fn chosen(&self, worker: usize, mask: u16) -> Vec<Claim> {
        let own = self.claims.iter().filter(|claim| claim.worker == worker);
        let chosen = own.enumerate().filter(|(number, _)| mask & (1 << (number % 16)) != 0);
        let by_id: BTreeMap<i64, &Claim> = chosen.map(|(_, claim)| (claim.job.model.id, claim)).collect();
        by_id.into_values().cloned().collect()
    }

    pub(super) async fn release(&mut self, worker: usize, end: End, mask: u16, is_quick: bool) -> Answers {
        let chosen = self.chosen(worker, mask);
        if chosen.is_empty() {
            return None;
        }
        let entry = |claim: &Claim| {
            Entry::new(Instant::now(), finished(end, &claim.job.model), Some(claim.at.model), false)
        };
        let entries: Vec<Entry> = chosen.iter().map(entry).collect();
        // The statements for many jobs wait for locked rows.
        let is_locked = |claim: &Claim| {
            self.model.rows().get(&claim.job.model.id).is_some_and(|row| row.is_used || row.held.is_some())
        };
        let is_quick = is_quick && !chosen.iter().any(is_locked);
        let real = self.release_really(worker, end, &chosen, is_quick).await;
        let model = match self.model.release(self.now, worker, &entries) {
            Ok(fates) => describe(fates),
            Err(error) => Line::text(error),
        };
        Some(Both { model, real })
    }

    async fn release_really(&self, worker: usize, end: End, chosen: &[Claim], is_quick: bool) -> Line {
        let worker = &self.real.workers[worker];
        let connection = worker.shared.on(&worker.client);
        let finished: Vec<Finished> = chosen.iter().map(|claim| finished(end, &claim.job.real)).collect();
        let claims = Claims {
            ids: chosen.iter().map(|claim| claim.job.real.id).collect(),
            times: chosen.iter().map(|claim| Some(claim.at.real)).collect(),
            queues: chosen.iter().map(|claim| claim.job.real.job_queue_id).collect(),
        };
        let is_queued = claims.queues.iter().any(Option::is_some);
        let is_of_one = claims.times.iter().all(|time| *time == claims.times[0]);
        let doing = "releasing jobs";
        let fates = match end {
            End::Complete if is_queued => {
                let statement = queries::complete_claimed_queued(connection, &claims).await;
                connection.alone(doing, statement.expect("a statement")).await
            }
            End::Complete if is_quick && is_of_one => {
                let statement =
                    queries::complete_claim(connection, claims.ids.clone(), claims.times[0]).await;
                connection.alone(doing, statement.expect("a statement")).await
            }
            End::Complete if is_quick => {
                let statement = queries::complete_many_claimed(connection, &claims).await;
                connection.alone(doing, statement.expect("a statement")).await
            }
            End::Complete => {
                let statement = queries::complete_claimed(connection, &claims).await;
                connection.alone(doing, statement.expect("a statement")).await
            }
            End::Fail => {
                let failures = Failures::of(&finished);
                let statement = queries::fail_claimed(connection, &claims, &failures).await;
                connection.alone(doing, statement.expect("a statement")).await
            }
            End::Return => {
                let statement = queries::return_claimed(connection, &claims, Duration::ZERO).await;
                connection.alone(doing, statement.expect("a statement")).await
            }
        };
        describe(fates.expect("a release"))
    }

    pub(super) async fn find_unknown(&mut self, worker: usize, mask: u16) -> Answers {
        let chosen = self.chosen(worker, mask);
        let known = KnownJobs {
            ids: chosen.iter().map(|claim| claim.job.model.id).collect(),
            queues: chosen.iter().filter_map(|claim| claim.job.model.job_queue_id).collect(),
        };
        let model = self.model.find_unknown(worker, &known);
        let it = &self.real.workers[worker];
        let real = queries::find_unknown(it.shared.on(&it.client), &known).await.expect("a search");
        let describe = |claims: &Claims, seconds: &dyn Fn(DateTime<Utc>) -> f64| {
            let mut found: Vec<_> = (0..claims.ids.len())
                .map(|index| (claims.ids[index], claims.queues[index], claims.times[index]))
                .collect();
            found.sort_unstable();
            let text: Vec<_> = found.iter().map(|(id, queue, _)| (id, queue)).collect();
            Line::new(format!("found {text:?}"), found.iter().filter_map(|(_, _, at)| *at).map(seconds))
        };
        let lines = Both {
            model: describe(&model, &|time| self.model_seconds(time)),
            real: describe(&real, &|time| self.real_seconds(time)),
        };
        self.unknown[worker] = Both { model, real };
        Some(lines)
    }

    pub(super) async fn return_unknown(&mut self, worker: usize) -> Answers {
        let Both { model, real } = self.unknown[worker].clone();
        if model.ids.is_empty() {
            return None;
        }
        let model = self.model.return_unknown(self.now, worker, &model);
        let it = &self.real.workers[worker];
        let statement = queries::return_claimed(it.shared.on(&it.client), &real, Duration::ZERO).await;
        let returned = it.shared.on(&it.client).alone("returning", statement.expect("a statement")).await;
        Some(Both { model: describe(model), real: describe(returned.expect("a return")) })
    }

    pub(super) async fn refresh_locks(&mut self, worker: usize) -> Answers {
        let ids: Vec<i64> = self.chosen(worker, u16::MAX).iter().map(|claim| claim.job.model.id).collect();
        let model = self.model.renew(self.now, worker, &ids);
        let it = &self.real.workers[worker];
        let real = queries::refresh_locks(it.shared.on(&it.client), &ids).await.expect("renewed locks");
        // The times are compared with the rows.
        let describe =
            |ids: Vec<i64>| Line::text(format!("{:?}", std::collections::BTreeSet::from_iter(ids)));
        let lines = Both {
            model: describe(model.keys().copied().collect()),
            real: describe(real.keys().copied().collect()),
        };
        for claim in self.claims.iter_mut().filter(|claim| claim.worker == worker) {
            let id = claim.job.model.id;
            if let (Some(model), Some(real)) = (model.get(&id), real.get(&id)) {
                claim.at = Both { model: *model, real: *real };
            }
        }
        Some(lines)
    }
}
