//! Claims: durable ones, and held ones from their pick to their end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::super::claim::{Claimable, Level};
use super::super::super::planner::scan::{EVERYTHING, Gap, Kind, LevelKey, Request, Scan, Seen};
use super::super::super::queries;
use super::super::super::run::{self, Finished, Outcome};
use super::super::model::{Cause, RefusedChange, Refusing};
use super::super::setup::TASKS;
use super::operation::{End, FLAGS, Operation};
use super::pair::{Answers, Both, Claim, Pair, same};
use super::releases::outcome;
use super::state::Line;
use crate::Job;
use crate::job::Order;

/// As the worker opens the transaction of a held claim.
const BEGIN: &str = "begin isolation level read committed";

/// The code of the trigger's error.
const REFUSED: &str = "P0001";

fn tasks(mask: u8) -> Vec<String> {
    let is_in = |number: &usize| mask & (1 << number) != 0;
    (0..TASKS.len()).filter(is_in).map(|number| TASKS[number].to_owned()).collect()
}

pub(super) fn forbidden(forbids: bool) -> Vec<String> {
    if forbids { vec![FLAGS[0].to_owned()] } else { Vec::new() }
}

/// What must be the same of claimed jobs, in their order.
fn describe<'a>(jobs: impl IntoIterator<Item = &'a Job>, level: Option<&Level>) -> Line {
    let job = |job: &Job| {
        (job.id, job.task_identifier.to_string(), job.priority, job.attempts, job.revision, job.job_queue_id)
    };
    let jobs: Vec<_> = jobs.into_iter().map(job).collect();
    let level = level.map(|level| {
        let ahead = level.ahead.map(|((_, id), count)| (id, count));
        (level.task_identifier.to_string(), level.priority, level.position.map(|(_, id)| id), ahead)
    });
    Line::text(format!("{jobs:?} {level:?}"))
}

impl Pair {
    /// The place of a job in the order of both sides, chosen by a number.
    fn order(&self, which: usize) -> Option<Both<Order>> {
        let model = self.any_row(which)?.job.order();
        let run_at = self.real_run_at(model.2)?;
        Some(Both { model, real: (model.0, run_at, model.2) })
    }

    pub(super) async fn claim(&mut self, operation: &Operation) -> Answers {
        let Operation::Claim {
            worker,
            tasks: queued,
            unqueued,
            count,
            before,
            forbids,
            looks_ahead,
            left_out,
            one_by_one,
        } = operation
        else {
            return None;
        };
        let before = before.and_then(|which| self.order(which));
        let before = before.unwrap_or(Both { model: EVERYTHING, real: EVERYTHING });
        // Both sides have the same ids.
        let left_out: Vec<i64> =
            left_out.and_then(|which| self.any_row(which)).map(|row| row.job.id).into_iter().collect();
        let wanted = |before| Claimable {
            count: *count,
            left_out: left_out.clone(),
            tasks: tasks(*queued),
            unqueued: tasks(*unqueued & *queued),
            before,
            looks_ahead: *looks_ahead,
            has_few_queues: *looks_ahead,
            one_by_one: *one_by_one,
            ..Claimable::for_tests(Instant::now())
        };
        let wanted = Both { model: wanted(before.model), real: wanted(before.real) };
        self.compare_claim(*worker, wanted, *forbids).await
    }

    /// A claim of the level that the last claim of this worker has returned.
    pub(super) async fn claim_level(&mut self, operation: &Operation) -> Answers {
        let Operation::ClaimLevel { worker, unqueued, count, from_start, with_ahead } = operation else {
            return None;
        };
        let wanted = |mut level: Level| {
            level.position = level.position.filter(|_| !from_start);
            level.ahead = level.ahead.filter(|_| *with_ahead);
            Claimable {
                count: *count,
                unqueued: tasks(*unqueued),
                level: Some(level),
                ..Claimable::for_tests(Instant::now())
            }
        };
        let Both { model, real } = self.levels[*worker].clone()?;
        self.compare_claim(*worker, Both { model: wanted(model), real: wanted(real) }, false).await
    }

    async fn compare_claim(&mut self, worker: usize, wanted: Both<Claimable>, forbids: bool) -> Answers {
        let forbidden = forbidden(forbids);
        if wanted.model.one_by_one {
            return self.compare_one_by_one(worker, wanted, forbidden).await;
        }
        let is_refused = self.model.refuses_claim(self.now, &wanted.model, &forbidden);
        let it = &self.real.workers[worker];
        let connection = it.shared.on(&it.client);
        let rows = match &wanted.real.level {
            Some(level) => queries::claim_level(connection, &wanted.real, level).await,
            None if wanted.real.has_few_queues => {
                queries::claim_by_queue(connection, &wanted.real, &forbidden).await
            }
            None => queries::claim_by_job(connection, &wanted.real, &forbidden).await,
        };
        let rows = match rows {
            Err(error) if is_refused && error.db_code() == Some(REFUSED) => {
                self.refusals += 1;
                return same("refused".to_owned());
            }

            _ if is_refused => {
                return Some(Both { model: Line::text("refused"), real: Line::text("claimed") });
            }
            rows => rows.expect("a claim"),
        };
        let model = self.model.claim(self.now, worker, &wanted.model, &forbidden);
        let level = rows.level(&wanted.real).expect("a level");
        let mut jobs = rows.decode(&it.shared.worker_id, &wanted.real).await.expect("jobs");
        jobs.sort_by_key(Job::order);
        let lines =
            Both { model: describe(&model.0, model.1.as_ref()), real: describe(&jobs, level.as_ref()) };
        if let (Some(model), Some(real)) = (model.1, level) {
            self.levels[worker] = Some(Both { model, real });
        }
        self.add_claims(worker, model.0, jobs);
        Some(lines)
    }

    /// Claims as `one_by_one.rs` does.
    async fn compare_one_by_one(
        &mut self,
        worker: usize,
        wanted: Both<Claimable>,
        forbidden: Vec<String>,
    ) -> Answers {
        let (of_model, refused) = self.model.claim_one_by_one(self.now, worker, &wanted.model, &forbidden);
        let describe = |jobs: &[Job], refused: Vec<i64>| {
            Line::text(format!("{} refused {refused:?}", describe(jobs, None).text))
        };
        let model = describe(&of_model, refused.iter().map(|job| job.id).collect());
        let it = &self.real.workers[worker];
        let connection = it.shared.on(&it.client);
        let (mut rows, mut refused) = (Vec::new(), Vec::new());
        connection.client.batch_execute(BEGIN).await.expect("a transaction");
        let found = queries::find_claimable(connection, &wanted.real, &forbidden).await.expect("jobs");
        for job in &found {
            connection.client.batch_execute("savepoint one").await.expect("a savepoint");
            match queries::mark_claimed(connection, job).await.expect("a statement").await {
                Ok(claimed) => rows.extend(claimed),
                Err(error) if error.db_code() == Some(REFUSED) => {
                    connection.client.batch_execute("rollback to savepoint one").await.expect("a rollback");
                    refused.push(job.id);
                }
                Err(error) => panic!("a claim: {error}"),
            }
        }
        connection.client.batch_execute("commit").await.expect("a commit");
        let rows = queries::ClaimedRows::new(rows, Instant::now());
        let mut jobs = rows.decode(&it.shared.worker_id, &wanted.real).await.expect("jobs");
        jobs.sort_by_key(Job::order);
        self.refusals += refused.len();
        let real = describe(&jobs, refused);
        self.add_claims(worker, of_model, jobs);
        Some(Both { model, real })
    }

    fn add_claims(&mut self, worker: usize, model: Vec<Job>, real: Vec<Job>) {
        for (model, real) in model.into_iter().zip(real) {
            let (Some(at), Some(real_at)) = (model.locked_at, real.locked_at) else { continue };
            let at = Both { model: at, real: real_at };
            self.add_claim(Claim { worker, job: Both { model: Arc::new(model), real: Arc::new(real) }, at });
        }
    }

    /// Changes which claims a trigger refuses.
    pub(super) async fn refuse(&mut self, divisor: i64) -> Answers {
        let change = RefusedChange::Claim;
        self.model.refusing = (divisor > 0).then_some(Refusing { change, divisor, remainder: 0 });
        let sql = format!(
            "delete from public.refusing; insert into public.refusing select {divisor} where {divisor} > 0"
        );
        self.real.control.batch_execute(&sql).await.expect("a change");
        same(format!("claims of multiples of {divisor} are refused"))
    }

    /// The oldest are forgotten.
    pub(super) fn add_claim(&mut self, claim: Claim) {
        self.claims.push(claim);
        if self.claims.len() > 16 {
            self.claims.remove(0);
        }
    }

    pub(super) async fn pick(&mut self, operation: &Operation) -> Answers {
        let Operation::Pick { worker, lane, is_flagged, levels, count, after, before } = operation else {
            return None;
        };
        let place = (*worker, *lane);
        if self.held.contains_key(&place) {
            return None;
        }
        let before = before.and_then(|which| self.order(which));
        let before = before.unwrap_or(Both { model: EVERYTHING, real: EVERYTHING });
        let after = after.and_then(|which| self.order(which));
        let kind = if *is_flagged { Kind::Flagged } else { Kind::Plain };
        let request = |before, after| request(kind, *levels, *count, before, after);
        let model = request(before.model, after.as_ref().map(|after| after.model));
        let real = request(before.real, after.as_ref().map(|after| after.real));
        let forbidden = forbidden(true);
        let holder = (*worker, *lane as u64);
        let picked = self.model.pick(self.now, holder, &model, &forbidden);
        let (jobs, seen) = self.pick_really(place, &real, forbidden).await;
        let describe = |jobs: &[Arc<Job>], seen: &Seen| {
            let ids = |levels: &[(usize, Option<Order>)]| -> Vec<(usize, Option<i64>)> {
                levels.iter().map(|(count, last)| (*count, last.map(|(_, _, id)| id))).collect()
            };
            let mut found = seen.found.clone();
            found.sort();
            let first = seen.first.map(|(_, _, id)| id);
            let seen = format!(" {:?} first {first:?} found {found:?}", ids(&seen.levels));
            let jobs = describe(jobs.iter().map(|job| &**job), None);
            Line::text(jobs.text + &seen)
        };
        let lines = Both { model: describe(&picked.0, &picked.1), real: describe(&jobs, &seen) };
        if jobs.is_empty() {
            self.real.workers[*worker].lanes[*lane].batch_execute("commit").await.expect("a commit");
        }
        if !jobs.is_empty() || !picked.0.is_empty() {
            let jobs = picked.0.into_iter().zip(jobs).map(|(model, real)| Both { model, real });
            self.held.insert(place, jobs.collect());
        }
        Some(lines)
    }

    async fn pick_really(
        &self,
        (worker, lane): (usize, usize),
        request: &Request,
        forbidden: Vec<String>,
    ) -> (Vec<Arc<Job>>, Seen) {
        let worker = &self.real.workers[worker];
        let connection = worker.shared.on(&worker.lanes[lane]);
        connection.client.batch_execute(BEGIN).await.expect("a transaction");
        let find = queries::find_levels(connection, &request.gaps).await.expect("a statement");
        let found = find.await.expect("levels");
        let rows = match (request.kind, request.levels.len()) {
            (Kind::Plain, 1) => queries::pick_level(connection, request).await.expect("a statement").await,
            (Kind::Plain, _) => queries::pick_jobs(connection, request).await.expect("a statement").await,
            (Kind::Flagged, _) => {
                let pick = queries::pick_flagged_jobs(connection, request, forbidden).await;
                pick.expect("a statement").await
            }
        };
        let rows = rows.expect("a pick");
        let (levels, first) = rows.levels(request).expect("levels");
        let mut jobs = rows.decode(request).await.expect("jobs");
        jobs.sort_by_key(|job| job.order());
        (jobs, Seen { levels, first, found: found.levels, now: found.now, took: Duration::ZERO })
    }

    /// Writes the outcomes of a held batch, as `held.rs` does, and commits.
    pub(super) async fn settle(&mut self, worker: usize, lane: usize, outcomes: u64) -> Answers {
        if self.model.refusing.is_some() {
            return None;
        }
        let jobs = self.held.remove(&(worker, lane))?;
        let (mut finished, mut running) = (Both { model: Vec::new(), real: Vec::new() }, Vec::new());
        for (index, job) in jobs.into_iter().enumerate() {
            let end = match (outcomes >> (2 * index)) & 3 {
                0 => End::Complete,
                1 => End::Fail,
                2 => {
                    running.push(job);
                    continue;
                }
                _ => continue,
            };
            let of = |job: Arc<Job>| Finished {
                outcome: outcome(end, job.id),
                job,
                duration: Duration::ZERO,
                claim: run::Claim::Held(lane as u64),
            };
            finished.model.push(of(job.model));
            finished.real.push(of(job.real));
        }
        let ids: Vec<i64> = running.iter().map(|job| job.model.id).collect();
        let holder = (worker, lane as u64);
        let times = self.model.promote_held(self.now, holder, &ids);
        let written = self.model.commit(self.now, holder, &finished.model);
        let real = self.settle_really(worker, lane, &finished.real, &ids).await;
        for job in running {
            let id = job.model.id;
            let (Some(model), Some(real)) = (times.get(&id), real.get(&id)) else { continue };
            self.add_claim(Claim { worker, job, at: Both { model: *model, real: *real } });
        }
        match written {
            Ok(()) => same(format!("promoted {ids:?}")),
            Err(error) => Some(Both { model: Line::text(error), real: Line::text("written") }),
        }
    }

    async fn settle_really(
        &self,
        worker: usize,
        lane: usize,
        finished: &[Finished],
        running: &[i64],
    ) -> super::super::super::claim::Times {
        let worker = &self.real.workers[worker];
        let connection = worker.shared.on(&worker.lanes[lane]);
        let failures = queries::Failures::of(finished);
        if !failures.ids.is_empty() {
            queries::fail_held(connection, &failures).await.expect("failures");
        }
        let times = queries::promote_held(connection, running).await.expect("a promotion");
        let completed = finished.iter().filter(|one| matches!(one.outcome, Outcome::Completed));
        let places: Vec<_> = completed.map(|one| one.job.place).collect();
        let deleted = queries::complete_held(connection, &places).await.expect("a statement").await;
        assert_eq!(deleted.expect("a completion"), places.len() as u64, "all held rows are where they were");
        connection.client.batch_execute("commit").await.expect("a commit");
        times
    }

    /// The connection of a held batch is lost.
    pub(super) async fn lose(&mut self, worker: usize, lane: usize) -> Answers {
        let jobs = self.held.remove(&(worker, lane))?;
        self.real.workers[worker].lanes[lane].batch_execute("rollback").await.expect("a rollback");
        self.model.end_transaction(self.now, (worker, lane as u64), Some(Cause::Connection));
        self.lost.push((worker, jobs));
        same("rolled back".to_owned())
    }

    pub(super) async fn promote_untouched(&mut self, worker: usize, which: usize) -> Answers {
        if self.model.refusing.is_some() {
            return None;
        }
        let own: Vec<_> = self.lost.iter().filter(|(owner, _)| *owner == worker).collect();
        let jobs = own.get(which % own.len().max(1))?.1.clone();
        let of_model: Vec<Arc<Job>> = jobs.iter().map(|job| job.model.clone()).collect();
        let of_real: Vec<Arc<Job>> = jobs.iter().map(|job| job.real.clone()).collect();
        let model = self.model.promote_untouched(self.now, worker, &of_model);
        let it = &self.real.workers[worker];
        let real = queries::promote_untouched(it.shared.on(&it.client), &of_real).await.expect("a promotion");
        let describe = |promoted: &queries::Promoted| {
            let mut ours: Vec<i64> = promoted.ours.keys().copied().collect();
            let mut blocked: Vec<i64> = promoted.blocked.iter().copied().collect();
            ours.sort_unstable();
            blocked.sort_unstable();
            Line::text(format!("ours {ours:?} blocked {blocked:?}"))
        };
        let lines = Both { model: describe(&model), real: describe(&real) };
        for job in jobs {
            let id = job.model.id;
            let (Some(model), Some(real)) = (model.ours.get(&id), real.ours.get(&id)) else { continue };
            self.add_claim(Claim { worker, job, at: Both { model: *model, real: *real } });
        }
        Some(lines)
    }
}

/// A pick of some levels, as a scan would send it.
fn request(kind: Kind, levels: u16, count: usize, before: Order, after: Option<Order>) -> Request {
    let all = (-1..2).flat_map(|priority| TASKS.iter().map(move |task| (priority, *task)));
    let chosen = all.enumerate().filter(|(number, _)| levels & (1 << number) != 0).map(|(_, level)| level);
    let key = |(priority, task): (i16, &str)| LevelKey { kind, priority, task_identifier: task.into() };
    let found: Vec<LevelKey> = chosen.map(key).collect();
    let mut scan = Scan::new(true, std::time::Duration::from_secs(1));
    scan.set_tasks(&TASKS.map(Arc::from));
    let search = scan.send(Instant::now(), count, EVERYTHING);
    let gaps: Vec<Gap> = search.gaps.clone();
    scan.on_seen(Instant::now(), 0, &search, Seen { found, ..Seen::default() });
    let mut request = scan.send(Instant::now(), count, before);
    (request.gaps, request.kind) = (gaps, kind);
    for level in &mut request.levels {
        if let Some((priority, run_at, id)) = after
            && priority == level.key.priority
        {
            (level.after.run_at, level.after.id) = (Some(run_at), id);
        }
    }
    request
}
