//! The invariants. Each error names the one that does not hold.
//!
//! A job may run twice at a time, or a queue not be serial, only if one of the runs has lost its claim for a reason that
//! no worker can prevent:
//!
//! - it was held, and its connection was lost before the batch was committed, and not promoted since;
//! - its worker was declared dead since, after no heartbeat of it had reached the server for a threshold;
//! - an operator has unlocked or deleted it.
//!
//! A worker begins no job whose claim it has lost, unless it can't know that: the connection of a held claim was lost, or
//! an operator has unlocked the job. A worker that was declared dead knows it, since its own heartbeats were not answered,
//! except shortly after a step of the server's clock.

use std::time::Duration;

use super::super::list::Next;
use super::super::run::Claim;
use super::model::{Cause, Row, WorkerNumber};
use super::setup::{Fault, FaultKind, POLL_INTERVAL, THRESHOLD};
use super::worker::{Run, Worker};
use super::world::World;

/// No due job waits longer than this while a slot is free: two polls, a pause after errors, and the delays of statements.
const LONGEST_IDLE: Duration = Duration::from_secs(8);

/// The same for a job whose row an application had locked, or that was recovered. Nothing announces it. If picks have passed
/// it by, a pick from the start finds it, which waits for up to twenty times the duration of the last one: at most 600 ms here.
const LONGEST_PASSED_BY: Duration = Duration::from_secs(16);

/// The same for a job with flags, which waits for fifty times the duration of a pick: at most 600 ms here.
const LONGEST_FLAGGED: Duration = Duration::from_secs(45);

/// A worker that runs until nothing is left does not see jobs that have become claimable this short before its end. The
/// delays of its last statements come on top.
const LONGEST_LEFT: Duration = Duration::from_millis(100);

/// No due job waits longer than this without a run, if nothing goes wrong and slots are free.
const STARVING: Duration = Duration::from_secs(60);

/// No worker that lives keeps a job locked for longer that it does not know: the second search for a lost claim comes after
/// a threshold, and may be put off.
const LONGEST_UNKNOWN: Duration = Duration::from_secs(2 * 30 + 10);

impl World {
    /// At the start of a job.
    pub(super) fn check_start(&self, number: WorkerNumber, next: &Next) -> Result<(), String> {
        let job = &next.job;
        let row = self.database.rows().get(&job.id);
        let has_it = |row: &Row| match next.claim {
            Claim::Durable => {
                row.locked.is_some_and(|(owner, at)| owner == number && Some(at) == job.locked_at)
            }
            // Another lane of the worker may have picked it since. The worker then promotes it for the first lane.
            Claim::Held(_) => {
                let holder = row.held.map(|(owner, _)| owner);
                holder.or(row.locked.map(|(owner, _)| owner)) == Some(number)
            }
        };
        if !row.is_some_and(has_it) {
            let is_excused = match self.lost.get(&(number, job.id)) {
                Some(Cause::Connection) => matches!(next.claim, Claim::Held(_)),
                Some(Cause::Operator) => true,
                Some(Cause::DeclaredDead) => self.is_recent_step(),
                None => false,
            };
            if !is_excused {
                return Err(format!("worker {number} starts job {}, which it does not have", job.id));
            }
        }
        let has_flag = |flag: &String| job.flags.as_ref().is_some_and(|flags| flags.contains_key(flag));
        // It may have been claimed before its flag was forbidden, but flags are only ever allowed here.
        if self.forbidden.iter().any(has_flag) {
            return Err(format!("worker {number} starts job {}, whose flag is forbidden", job.id));
        }
        if !self.setup.skips_scans {
            self.all_runs().try_for_each(|(other, run)| self.check_pair(number, next, other, run))?;
        }
        match self.setup.order_bound {
            Some(bound) => self.check_order(number, next, bound),
            None => Ok(()),
        }
    }

    fn check_pair(
        &self,
        number: WorkerNumber,
        next: &Next,
        other: WorkerNumber,
        run: &Run,
    ) -> Result<(), String> {
        let (job, queue) = (&next.job, next.job.job_queue_id);
        let own = self.lost.get(&(number, job.id));
        if run.job.id == job.id && run.lost.is_none() && own.is_none() {
            return Err(format!("job {} runs twice at a time, at workers {number} and {other}", job.id));
        }
        let was_declared = self.declared.get(&other).is_some_and(|at| *at >= run.began);
        let is_excused = (run.lost.is_some() && was_declared) || own == Some(&Cause::DeclaredDead);
        if queue.is_some() && run.job.job_queue_id == queue && run.job.id != job.id && !is_excused {
            let ids = (run.job.id, job.id);
            return Err(format!(
                "two jobs of queue {queue:?} run at a time: {ids:?}, at {other} and {number}"
            ));
        }
        Ok(())
    }

    fn all_runs(&self) -> impl Iterator<Item = (WorkerNumber, &Run)> {
        self.workers.iter().flat_map(|(number, worker)| worker.runs.values().map(|run| (*number, run)))
    }

    /// No more urgent job has been there for longer than the bound.
    fn check_order(&self, number: WorkerNumber, next: &Next, bound: Duration) -> Result<(), String> {
        let now = self.now();
        let is_quiet = self.workers.get(&number).is_some_and(|it| it.disturbed_at + 4 * bound < now);
        let is_passed_by = |row: &&Row| {
            row.job.order() < next.job.order() && self.database.visible_since(now, row) + bound < now
        };
        match self.database.claimable(now, &self.forbidden).filter(|_| is_quiet).find(is_passed_by) {
            Some(row) => {
                let since = now - self.database.visible_since(now, row);
                let ids = (next.job.id, row.job.id);
                Err(format!("of {ids:?} the less urgent starts; the other can be claimed for {since:?}"))
            }
            None => Ok(()),
        }
    }

    fn is_recent_step(&self) -> bool {
        self.stepped_at.is_some_and(|at| self.now() < at + 3 * THRESHOLD)
    }

    /// A worker is declared dead only if something has happened to it alone since its last heartbeat.
    pub(super) fn check_declaration(&self, dead: WorkerNumber, recorded_at: Duration) -> Result<(), String> {
        let is_innocent = |worker: &Worker| worker.singled_out_at < recorded_at;
        match self.workers.get(&dead).is_some_and(is_innocent) {
            true => Err(format!("worker {dead} is declared dead for a fault that concerned all workers")),
            false => Ok(()),
        }
    }

    /// At the end of a worker that runs until nothing is left: it leaves no job that could be claimed for a while.
    pub(super) fn check_exit(
        &self,
        number: WorkerNumber,
        disturbed_at: Duration,
        result: crate::Result<()>,
    ) -> Result<(), String> {
        let now = self.now();
        if let Err(error) = result
            && self.setup.has_no_faults()
        {
            return Err(format!("worker {number} ends with an error: {error}"));
        }
        let bound = LONGEST_LEFT + 6 * self.setup.longest_delay;
        let is_left = |row: &&Row| {
            let since = self.database.visible_since(now, row).max(disturbed_at);
            since + bound < now && !self.may_be_refused(&row.job)
        };
        match self.database.claimable(now, &self.forbidden).find(is_left) {
            Some(row) => Err(format!("worker {number} ends, and leaves job {}, which is due", row.job.id)),
            None => Ok(()),
        }
    }

    /// Now and then, over all rows.
    pub(super) fn check_rows(&self) -> Result<(), String> {
        self.check_idle()?;
        self.check_locks()
    }

    fn check_idle(&self) -> Result<(), String> {
        let now = self.now();
        let has_time = |worker: &Worker, bound: Duration| {
            let since = worker.disturbed_at.max(worker.idle_since);
            worker.runs.len() < self.setup.slots && !worker.is_stopping && since + bound < now
        };
        let is_idle = self.workers.values().any(|worker| has_time(worker, LONGEST_IDLE));
        let is_long_idle = self.workers.values().any(|worker| has_time(worker, STARVING));
        for row in self.database.claimable(now, &self.forbidden).filter(|_| is_idle) {
            let since = self.database.visible_since(now, row);
            if self.may_be_refused(&row.job) {
                continue;
            }
            // Workers rarely read jobs with flags, since most of them may be forbidden: see `REST_FLAGGED` in the scan.
            if row.job.flags.is_some() && since.max(row.ready_since) + LONGEST_FLAGGED >= now {
                continue;
            }
            let may_be_passed_by = row.unused_since > row.ready_since || row.crashes > 0;
            let bound = if may_be_passed_by { LONGEST_PASSED_BY } else { LONGEST_IDLE };
            if since + bound < now {
                let waits = now - since;
                return Err(format!("job {} waits for {waits:?} although a slot is free", row.job.id));
            }
            let ready = since.max(row.ready_since);
            let is_starving = row.ready_since.max(self.disturbed_at) + STARVING < now
                && row.job.run_at <= self.database.clock(now.saturating_sub(STARVING));
            // While some jobs take long, all slots may be busy for this time, or the queue.
            let may_be_busy = self.setup.long > 0.0 && (row.job.job_queue_id.is_some() || !is_long_idle);
            if is_starving && !may_be_busy {
                return Err(format!("job {} starves since {ready:?}", row.job.id));
            }
        }
        Ok(())
    }

    /// Jobs and queues that a worker keeps locked, and does not know.
    fn check_locks(&self) -> Result<(), String> {
        let now = self.now();
        let is_quiet = |worker: &Worker| {
            worker.has_started && worker.disturbed_at + LONGEST_UNKNOWN < now && !worker.is_stopping
        };
        for id in self.database.locked() {
            let row = &self.database.rows()[&id];
            let Some(worker) = row.locked.and_then(|(owner, _)| self.workers.get(&owner)) else { continue };
            self.check_release(row, worker)?;
            let is_old = row.locked_since + LONGEST_UNKNOWN < now && !row.is_used;
            if is_old && is_quiet(worker) && !worker.planner.knows(id) {
                return Err(format!("job {id} stays locked by a worker that does not know it"));
            }
        }
        for (queue, lock) in &self.database.queues {
            let Some(worker) = self.workers.get(&lock.worker) else { continue };
            let is_of_queue = |row: &Row| {
                row.job.job_queue_id == Some(*queue)
                    && row.locked.is_some_and(|(owner, _)| owner == lock.worker)
            };
            let has_job = self.database.rows().values().any(is_of_queue);
            let has_run = worker.runs.values().any(|run| run.job.job_queue_id == Some(*queue));
            // An operator has taken a job of the queue, and the worker still waits for a slot for it.
            let taken = self.taken.get(&(lock.worker, *queue));
            let has_run = has_run || taken.is_some_and(|id| worker.planner.knows(*id));
            let is_old = lock.since + LONGEST_UNKNOWN < now;
            if is_old && is_quiet(worker) && !has_job && !has_run {
                return Err(format!("queue {queue} stays locked by a worker that has no job of it"));
            }
        }
        Ok(())
    }

    /// The outcome of a job that has ended is written soon, unless somebody keeps the row locked.
    fn check_release(&self, row: &Row, worker: &Worker) -> Result<(), String> {
        let owner = row.locked.map(|(owner, _)| owner).unwrap_or_default();
        let Some(ended_at) = self.ended_at.get(&(owner, row.job.id)) else { return Ok(()) };
        let since = row.unused_since.max(*ended_at).max(worker.disturbed_at);
        let is_late = since + LONGEST_IDLE < self.now() && *ended_at >= row.locked_since && !row.is_used;
        let is_late = is_late && !self.may_be_refused(&row.job);
        match is_late && worker.runs.values().all(|run| run.job.id != row.job.id) {
            true => Err(format!("job {} has ended, and its outcome is not written", row.job.id)),
            false => Ok(()),
        }
    }

    /// At the end: every job was run to its end, or failed, or was deleted.
    pub(super) fn check_end(&self) -> Result<(), String> {
        if self.setup.is_exact && !self.started.is_sorted() {
            return Err(format!("jobs started out of order: {:?}", self.started));
        }
        let added = 1..=i64::try_from(self.added + self.ticks.count()).unwrap_or(i64::MAX);
        let is_left = |id: &i64| self.database.rows().contains_key(id);
        let is_lost = |id: &i64| !self.ended.contains(id) && !self.deleted.contains(id) && !is_left(id);
        if let Some(id) = added.into_iter().find(is_lost) {
            return Err(format!("job {id} is lost"));
        }
        self.check_all_ticks()?;
        self.check_statements()
    }

    /// Each add wakes all workers, each run ends with a release, and workers ask now and then. More is allowed in some cases:
    ///
    /// - while all statements take long, held jobs that may not start yet are picked again after each hold budget;
    /// - after an operator has unlocked a job that runs, its worker claims and returns the job after each hold budget;
    /// - each worker tries to claim a refused job after one second, two, four and so on, and to write its outcome.
    ///
    /// If nothing goes wrong, about half of that is enough: each worker claims up to four times per job that is added alone.
    fn check_statements(&self) -> Result<(), String> {
        let is_unlocked = |fault: &Fault| matches!(fault.kind, FaultKind::UnlockJob);
        let is_slow = !self.setup.usual_delay.is_zero() || self.setup.faults.iter().any(is_unlocked);
        let budgets = if is_slow { 3 * self.now().as_millis() as usize / 50 } else { 0 };
        let tries =
            if self.setup.refusal.is_some() { self.setup.jobs * (32 * self.last_worker + 16) } else { 0 };
        let workers = self.last_worker;
        let polls = (self.now().as_secs_f64() / POLL_INTERVAL.as_secs_f64()) as usize + 1;
        let starts = self.statistics.starts;
        let most = (self.setup.jobs + starts) * (2 + 4 * workers)
            + 8 * workers * polls
            + workers * budgets
            + tries
            + 50;
        let sent = self.statistics.for_jobs();
        if sent > most {
            return Err(format!("{sent} statements for {starts} starts: more than {most}"));
        }
        let is_calm =
            self.setup.has_no_faults() && self.setup.usual_delay.is_zero() && !self.setup.until_empty;
        let most = starts * (3 + 4 * workers) + 8 * workers * polls + 20;
        match is_calm && sent > most {
            true => Err(format!(
                "{sent} statements for {starts} starts, and nothing went wrong: more than {most}"
            )),
            false => Ok(()),
        }
    }

    /// The rows that are left, for an error.
    pub(super) fn describe_rows(&self) -> String {
        let rows = self.database.rows().values().filter(|row| row.job.attempts < row.job.max_attempts);
        let row = |row: &Row| format!("job {} {:?} {:?} {}", row.job.id, row.locked, row.held, row.is_used);
        let rows: Vec<String> = rows.take(5).map(row).collect();
        format!("{rows:?}, queues {:?}", self.database.queues)
    }
}
