//! The model and the real server side by side, and what the test knows about both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use super::super::super::claim::Level;
use super::super::super::queries::Claims;
use super::super::model::{Database, Row};
use super::applications::Waiting;
use super::operation::{Operation, SESSIONS, WORKERS};
use super::real::{RECOVERY_DELAY, Real, THRESHOLD};
use super::state::{self, Line, TOLERANCE, difference};
use crate::Job;

/// One thing of the model, and the same of the real side.
#[derive(Clone, Debug)]
pub(super) struct Both<T> {
    pub(super) model: T,
    pub(super) real: T,
}

/// A durable claim, which may have ended since.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) worker: usize,
    pub(super) job: Both<Arc<Job>>,
    pub(super) at: Both<DateTime<Utc>>,
}

pub(super) enum Verdict {
    Same,
    /// The result depends on too short a time.
    Undecided,
    Different(String),
}

/// The answers to a step. None: it had nothing to do.
pub(super) type Answers = Option<Both<Line>>;

pub(super) struct Pair {
    pub(super) real: Real,
    pub(super) model: Database,
    /// The server's time at the start of the sequence, the time since then, and by how much times were moved.
    pub(super) start: DateTime<Utc>,
    pub(super) now: Duration,
    pub(super) advanced: TimeDelta,
    state: Value,
    pub(super) claims: Vec<Claim>,
    pub(super) held: BTreeMap<(usize, usize), Vec<Both<Arc<Job>>>>,
    /// Jobs of held batches whose connection was lost.
    pub(super) lost: Vec<(usize, Vec<Both<Arc<Job>>>)>,
    /// What the last search of each worker has found.
    pub(super) unknown: Vec<Both<Claims>>,
    /// What the last claim of a level returned.
    pub(super) levels: Vec<Option<Both<Level>>>,
    pub(super) is_open: [bool; SESSIONS],
    pub(super) has_written: [bool; SESSIONS],
    pub(super) waiting: Option<Waiting>,
    notes: Vec<String>,
    pub(super) steps: usize,
    pub(super) waits: usize,
    pub(super) refusals: usize,
}

impl Pair {
    pub(super) async fn new() -> Pair {
        Pair {
            real: Real::new().await,
            model: Database::new(),
            start: Utc::now(),
            now: Duration::ZERO,
            advanced: TimeDelta::zero(),
            state: Value::Null,
            claims: Vec::new(),
            held: BTreeMap::new(),
            lost: Vec::new(),
            unknown: nothing_found(),
            levels: vec![None; WORKERS],
            is_open: [false; SESSIONS],
            has_written: [false; SESSIONS],
            waiting: None,
            notes: Vec::new(),
            steps: 0,
            waits: 0,
            refusals: 0,
        }
    }

    /// Both are empty.
    pub(super) async fn reset(&mut self) {
        self.real.roll_back().await;
        self.real.control.batch_execute(state::RESET).await.expect("the tables are emptied");
        self.model = Database::new();
        (self.model.threshold, self.model.recovery_delay, self.model.crash_limit) =
            (THRESHOLD, RECOVERY_DELAY, 2);
        (self.advanced, self.waiting) = (TimeDelta::zero(), None);
        (self.is_open, self.has_written) = ([false; SESSIONS], [false; SESSIONS]);
        (self.claims, self.held, self.lost) = (Vec::new(), BTreeMap::new(), Vec::new());
        (self.levels, self.unknown) = (vec![None; WORKERS], nothing_found());
        self.read().await;
        self.start = time(&self.state["now"]).expect("the server's time");
        self.model.offset = self.start - self.model.clock(Duration::ZERO);
        self.now = Duration::ZERO;
    }

    async fn read(&mut self) {
        let row = self.real.control.query_one(state::READ, &[]).await.expect("the rows");
        self.state = serde_json::from_str(row.get(0)).expect("JSON");
        let now = time(&self.state["now"]).expect("the server's time");
        self.now = (now - self.start).to_std().unwrap_or_default();
    }

    pub(super) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    pub(super) async fn step(&mut self, operation: &Operation) -> Verdict {
        if self.is_undecided() {
            return Verdict::Undecided;
        }
        let (began, now) = (Instant::now(), self.now);
        let Some(answers) = self.apply(operation).await else { return Verdict::Same };
        let resumed = self.resume().await;
        self.steps += 1;
        self.notes.push(format!("{operation:?}\n    -> {}", answers.real.text));
        self.read().await;
        if began.elapsed().as_secs_f64() > TOLERANCE || (self.now - now).as_secs_f64() > TOLERANCE {
            return Verdict::Undecided;
        }
        for Both { model, real } in std::iter::once(answers).chain(resumed) {
            if let Some(difference) = difference(&[model], &[real]) {
                return Verdict::Different(format!("{operation:?} returned: {difference}"));
            }
        }
        let (model, real) = (self.model_lines(), self.real_lines());
        match difference(&model, &real) {
            Some(difference) => Verdict::Different(format!("rows after {operation:?}: {difference}")),
            None => Verdict::Same,
        }
    }

    /// Whether something becomes due, or a worker stale, within so short a time that the two sides may differ.
    fn is_undecided(&self) -> bool {
        let clock = self.model.clock(self.now);
        let seconds = |time: DateTime<Utc>| (clock - time).as_seconds_f64();
        let is_soon = |row: &Row| (-1.0..0.0).contains(&seconds(row.job.run_at));
        let is_half_old = |time: DateTime<Utc>| (1.0..6.0).contains(&seconds(time));
        self.model.rows().values().any(is_soon)
            || self.model.rows().values().filter_map(|row| row.locked).any(|(_, at)| is_half_old(at))
            || self.model.workers.values().any(|worker| is_half_old(worker.heartbeat_at))
    }

    async fn apply(&mut self, operation: &Operation) -> Answers {
        match operation.clone() {
            Operation::Add { session, add, is_open } => self.add(session, &add, is_open).await,
            Operation::AddInvalid(which) => self.add_invalid(which).await,
            Operation::Remove { session, key, is_open } => self.remove(session, key, is_open).await,
            Operation::LockRow { session, which } => self.lock_row(session, which).await,
            Operation::EndTransaction { session, commits } => self.end_transaction(session, commits).await,
            Operation::Claim { .. } => self.claim(operation).await,
            Operation::ClaimLevel { .. } => self.claim_level(operation).await,
            Operation::Pick { .. } => self.pick(operation).await,
            Operation::Settle { worker, lane, outcomes } => self.settle(worker, lane, outcomes).await,
            Operation::Lose { worker, lane } => self.lose(worker, lane).await,
            Operation::PromoteUntouched { worker, which } => self.promote_untouched(worker, which).await,
            Operation::Release { worker, end, which, is_quick } => {
                self.release(worker, end, which, is_quick).await
            }
            Operation::FindUnknown { worker, known } => self.find_unknown(worker, known).await,
            Operation::ReturnUnknown { worker } => self.return_unknown(worker).await,
            Operation::RefreshLocks { worker } => self.refresh_locks(worker).await,
            Operation::Heartbeat { worker } => self.heartbeat(worker).await,
            Operation::Deregister { worker } => self.deregister(worker).await,
            Operation::Poll { worker, is_continuous, for_jobs, forbids } => {
                self.poll(worker, is_continuous, for_jobs, forbids).await
            }
            Operation::DeclareDead { worker, is_continuous } => {
                self.declare_dead(worker, is_continuous).await
            }
            Operation::Recover { worker, with_orphans } => self.recover(worker, with_orphans).await,
            Operation::ForgetWorkers { worker } => self.forget_workers(worker).await,
            Operation::Refuse { divisor } => self.refuse(divisor).await,
            Operation::Advance { seconds } => self.advance(seconds).await,
        }
    }

    /// Time passes, if no transaction is open.
    async fn advance(&mut self, seconds: u32) -> Answers {
        let is_busy = !self.held.is_empty() || self.is_open.contains(&true) || self.waiting.is_some();
        if is_busy {
            return None;
        }
        let by = TimeDelta::seconds(seconds.into());
        self.real.control.batch_execute(&state::advance(seconds)).await.expect("times are moved");
        self.advanced += by;
        self.model.offset += by;
        self.claims.iter_mut().for_each(|claim| claim.at.real -= by);
        let found = self.unknown.iter_mut().flat_map(|found| found.real.times.iter_mut().flatten());
        found.for_each(|time| *time -= by);
        for level in self.levels.iter_mut().flatten() {
            let ahead = level.real.ahead.iter_mut().map(|(position, _)| position);
            level.real.position.iter_mut().chain(ahead).for_each(|position| position.0 -= by);
        }
        same(format!("{seconds} seconds pass"))
    }

    /// A row of the model, chosen by a number.
    pub(super) fn any_row(&self, which: usize) -> Option<&Row> {
        let rows = self.model.rows();
        rows.values().nth(which % rows.len().max(1))
    }

    /// The stored time of a job on the real side.
    pub(super) fn real_run_at(&self, id: i64) -> Option<DateTime<Utc>> {
        let mut rows = state::rows(&self.state, "jobs");
        rows.find(|row| row[0].as_i64() == Some(id)).and_then(|row| time(&row[11]))
    }

    /// Reads the rows of the real side before the step has ended.
    pub(super) async fn read_again(&mut self) {
        let now = self.now;
        self.read().await;
        self.now = now;
    }

    /// A time of the model in seconds since the start.
    pub(super) fn model_seconds(&self, time: DateTime<Utc>) -> f64 {
        (time - self.start).as_seconds_f64()
    }

    /// The same of a real time.
    pub(super) fn real_seconds(&self, time: DateTime<Utc>) -> f64 {
        (time + self.advanced - self.start).as_seconds_f64()
    }

    pub(super) fn worker_of(&self, id: &str) -> Option<usize> {
        self.real.workers.iter().position(|worker| &*worker.shared.worker_id == id)
    }

    fn model_lines(&self) -> Vec<Line> {
        let seconds = |time| self.model_seconds(time);
        let job = |row: &Row| {
            let (job, owner) = (&row.job, row.locked.map(|(owner, _)| owner));
            let flags: Vec<&String> = job.flags.iter().flat_map(|flags| flags.keys()).collect();
            let text = format!(
                "job {} {} priority {} attempts {}/{} key {:?} revision {} flags {flags:?} queue {:?} of {owner:?} crashes {}",
                job.id,
                job.task_identifier,
                job.priority,
                job.attempts,
                job.max_attempts,
                job.key,
                job.revision,
                job.job_queue_id,
                row.crashes
            );
            Line::new(text, [job.run_at].into_iter().chain(row.locked.map(|(_, at)| at)).map(seconds))
        };
        let mut lines: Vec<Line> = self.model.rows().values().map(job).collect();
        for (queue, lock) in &self.model.queues {
            lines.push(Line::new(format!("queue {queue} of {:?}", Some(lock.worker)), [seconds(lock.at)]));
        }
        for (number, worker) in &self.model.workers {
            let times = [worker.heartbeat_at].into_iter().chain(worker.declared_dead_at).map(seconds);
            lines.push(Line::new(format!("worker {number}"), times));
        }
        for (number, at) in &self.model.deaths {
            lines.push(Line::new(format!("death of {number}"), [seconds(*at)]));
        }
        lines
    }

    fn real_lines(&self) -> Vec<Line> {
        let times = |values: &[Value]| -> Vec<f64> {
            values.iter().filter_map(time).map(|time| self.real_seconds(time)).collect()
        };
        let owner = |value: &Value| value.as_str().and_then(|id| self.worker_of(id));
        let mut lines = Vec::new();
        for row in state::rows(&self.state, "jobs") {
            let text = format!(
                "job {} {} priority {} attempts {}/{} key {:?} revision {} flags {:?} queue {:?} of {:?} crashes {}",
                row[0],
                row[1].as_str().unwrap_or_default(),
                row[2],
                row[3],
                row[4],
                row[5].as_str(),
                row[6],
                state::flags(&row[7]),
                row[8].as_i64(),
                owner(&row[9]),
                row[10]
            );
            lines.push(Line::new(text, times(&row[11..])));
        }
        for row in state::rows(&self.state, "queues") {
            lines.push(Line::new(format!("queue {} of {:?}", row[0], owner(&row[1])), times(&row[2..])));
        }
        for (name, text) in [("workers", "worker"), ("deaths", "death of")] {
            let rows = state::rows(&self.state, name);
            let mut rows: Vec<_> = rows.map(|row| (owner(&row[0]).unwrap_or(99), times(&row[1..]))).collect();
            rows.sort_by_key(|(number, _)| *number);
            lines
                .extend(rows.into_iter().map(|(number, times)| Line::new(format!("{text} {number}"), times)));
        }
        lines
    }
}

fn nothing_found() -> Vec<Both<Claims>> {
    vec![Both { model: Claims::default(), real: Claims::default() }; WORKERS]
}

/// Both sides have done the same thing.
pub(super) fn same(text: String) -> Answers {
    Some(Both { model: Line::text(text.clone()), real: Line::text(text) })
}

/// A time of the answer, in seconds since 1970.
fn time(value: &Value) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros((value.as_f64()? * 1e6).round() as i64)
}
