//! Faults of processes, connections and the server, and what operators and applications do.

use std::time::Duration;

use chrono::TimeDelta;

use super::super::planner::Event;
use super::model::{Cause, WorkerNumber};
use super::setup::{Fault, FaultKind};
use super::statement::Trouble;
use super::world::{Happening, MS, Step, World};

impl World {
    pub(super) fn begin_fault(&mut self, index: usize) {
        let now = self.now();
        let Fault { kind, which, .. } = self.setup.faults[index].clone();
        let workers: Vec<WorkerNumber> = self.workers.keys().copied().collect();
        let Some(worker) = workers.get(which % workers.len().max(1)).copied() else { return };
        self.note(|_| format!("FAULT {kind:?}, worker {worker}"));
        match kind {
            FaultKind::Kill => self.kill(worker),
            FaultKind::Pause(duration) => {
                self.disturb(worker, now + duration, true);
                if let Some(worker) = self.workers.get_mut(&worker) {
                    worker.stopped_until = worker.stopped_until.max(now + duration);
                }
            }
            FaultKind::Cut(duration) => self.cut(worker, duration, true),
            FaultKind::CutAll(duration) => {
                self.all_cut_until = self.all_cut_until.max(now + duration);
                workers.into_iter().for_each(|worker| self.cut(worker, duration, false));
            }
            FaultKind::Outage(duration) => self.begin_outage(duration),
            FaultKind::CloseConnections => {
                self.disturb(worker, now, true);
                for holder in self.database.transactions(Some(worker)) {
                    self.database.end_transaction(now, holder, Some(Cause::Connection));
                }
                self.lose_replies(worker, Duration::from_millis(2), true);
                self.reconnect(worker);
            }
            FaultKind::StepClock(seconds) => {
                self.database.offset += TimeDelta::seconds(seconds);
                self.stepped_at = Some(now);
                workers.into_iter().for_each(|worker| self.disturb(worker, now, false));
            }
            FaultKind::LockRow(duration) => self.lock_row(which, duration),
            FaultKind::Shutdown => {
                self.disturb(worker, now, false);
                if let Some(worker) = self.workers.get_mut(&worker) {
                    worker.is_stopping = true;
                }
                self.plan(now, worker, Step::Deliver(Event::Shutdown));
            }
            FaultKind::DeleteJob | FaultKind::ResetAttempts | FaultKind::UnlockJob => {
                let locked: Vec<i64> =
                    self.database.locked().filter(|id| !self.database.rows()[id].is_used).collect();
                let Some(id) = locked.get(which % locked.len().max(1)).copied() else { return };
                self.operate(kind, id);
            }
            FaultKind::ReplaceJob => self.replace_job(which),
        }
    }

    fn kill(&mut self, worker: WorkerNumber) {
        let now = self.now();
        self.workers.remove(&worker);
        self.disturbed_at = self.disturbed_at.max(now);
        self.abandon_statements(worker);
        for (owner, lane) in self.database.transactions(Some(worker)) {
            let noticed = now + MS * self.random.losses.u32(0..2000);
            self.agenda.add(noticed, Happening::EndTransaction(owner, lane));
        }
        let restarted = now + MS * self.random.losses.u32(0..2000);
        self.agenda.add(restarted, Happening::StartWorker);
    }

    /// Nobody waits for these statements any more. Those that are on their way reach the server, or not.
    pub(super) fn abandon_statements(&mut self, worker: WorkerNumber) {
        let numbers: Vec<u64> =
            self.statements.range((worker, 0)..=(worker, u64::MAX)).map(|(key, _)| key.1).collect();
        for number in numbers {
            match self.random.losses.bool() {
                true => drop(self.statements.remove(&(worker, number))),
                false => {
                    if let Some(sent) = self.statements.get_mut(&(worker, number)) {
                        sent.is_dropped = true;
                    }
                }
            }
        }
    }

    /// The replies to all statements of a worker are lost. It notices that within this time.
    fn lose_replies(&mut self, worker: WorkerNumber, within: Duration, reach_server: bool) {
        let now = self.now();
        let numbers: Vec<u64> =
            self.statements.range((worker, 0)..=(worker, u64::MAX)).map(|(key, _)| key.1).collect();
        for number in numbers {
            let (is_dropped, noticed) = (self.random.losses.bool(), within.mul_f64(self.random.losses.f64()));
            if let Some(sent) = self.statements.get_mut(&(worker, number)) {
                sent.trouble.get_or_insert(Trouble::Closed);
                sent.is_dropped |= is_dropped || !reach_server;
            }
            self.plan(now + noticed, worker, Step::Reply(number));
        }
    }

    fn cut(&mut self, worker: WorkerNumber, duration: Duration, is_alone: bool) {
        let end = self.now() + duration;
        self.disturb(worker, end, is_alone);
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.cut_until = worker.cut_until.max(end);
        }
        self.lose_replies(worker, Duration::from_secs(10), true);
        let at = end + MS * self.random.losses.u32(0..3000);
        self.plan(at, worker, Step::Deliver(Event::Hint));
    }

    /// The listener connects again, and all may have changed meanwhile.
    fn reconnect(&mut self, worker: WorkerNumber) {
        let at = self.now() + MS * self.random.losses.u32(0..3000);
        self.plan(at, worker, Step::Deliver(Event::Hint));
    }

    fn begin_outage(&mut self, duration: Duration) {
        let now = self.now();
        self.server += 1;
        self.down_until = self.down_until.max(now + duration);
        for holder in self.database.transactions(None) {
            self.database.end_transaction(now, holder, Some(Cause::Connection));
        }
        let workers: Vec<WorkerNumber> = self.workers.keys().copied().collect();
        let end = self.down_until;
        for worker in workers {
            self.disturb(worker, end, false);
            self.lose_replies(worker, Duration::from_millis(2), false);
        }
        self.agenda.add(end, Happening::ServerIsBack);
    }

    pub(super) fn end_outage(&mut self) {
        if !self.is_up() {
            return;
        }
        self.database.started_at = self.database.clock(self.now());
        let workers: Vec<WorkerNumber> = self.workers.keys().copied().collect();
        workers.into_iter().for_each(|worker| self.reconnect(worker));
        self.note(|_| "the server is back".to_owned());
    }

    /// A transaction of the application locks a row that no transaction has locked.
    fn lock_row(&mut self, which: usize, duration: Duration) {
        let free = self.database.rows().values().filter(|row| row.held.is_none() && !row.is_used);
        // Mostly of a job that runs, so that its release has to wait.
        let (running, others): (Vec<_>, Vec<_>) = free.partition(|row| row.locked.is_some());
        let rows = if running.is_empty() || which.is_multiple_of(4) { others } else { running };
        let Some(id) = rows.get(which % rows.len().max(1)).map(|row| row.job.id) else { return };
        self.note(|_| format!("an application locks the row of job {id}"));
        self.database.update(self.now(), id, |row| row.is_used = true);
        self.agenda.add(self.now() + duration, Happening::RowIsUnused(id));
        self.disturbed_at = self.disturbed_at.max(self.now() + duration);
    }

    fn operate(&mut self, kind: FaultKind, id: i64) {
        self.note(|_| format!("an operator takes job {id}"));
        let row = &self.database.rows()[&id];
        if let (Some((owner, _)), Some(queue)) = (row.locked, row.job.job_queue_id) {
            self.taken.insert((owner, queue), id);
        }
        match kind {
            FaultKind::DeleteJob => {
                self.deleted.insert(id);
                self.database.delete_by_operator(id);
            }
            FaultKind::ResetAttempts => self.database.update(self.now(), id, |row| row.job.attempts = 0),
            _ => self.database.unlock_by_operator(self.now(), id),
        }
    }

    /// Somebody adds a job again by its key: a job that nobody has gets new work.
    fn replace_job(&mut self, which: usize) {
        let is_free = |row: &&super::model::Row| row.locked.is_none() && row.held.is_none() && !row.is_used;
        let free: Vec<i64> = self.database.rows().values().filter(is_free).map(|row| row.job.id).collect();
        let Some(id) = free.get(which % free.len().max(1)).copied() else { return };
        self.note(|_| format!("job {id} is replaced by its key"));
        self.database.update(self.now(), id, |row| {
            row.job.revision += 1;
            row.job.attempts = 0;
        });
        self.notify(1);
    }
}
