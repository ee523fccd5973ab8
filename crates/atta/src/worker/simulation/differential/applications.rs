//! Steps of applications. At most one statement waits at a time: one that would wait too is left out.

use chrono::TimeDelta;
use serde_json::Value;

use super::super::model::{AddMode, Blocker, Spec};
use super::super::setup::TASKS;
use super::operation::{Add, FLAGS};
use super::pair::{Answers, Both, Pair};
use super::real::{Progress, Returned};
use super::state::Line;

/// A statement of an application that may wait.
#[derive(Clone, Debug)]
pub(super) enum Statement {
    Add(Spec),
    /// The job that had the key when the statement began.
    Remove {
        key: String,
        id: Option<i64>,
    },
    LockRow(i64),
}

/// A session whose statement waits.
pub(super) struct Waiting {
    session: usize,
    statement: Statement,
}

fn key(number: usize) -> String {
    format!("k{number}")
}

fn line(returned: &Returned) -> Line {
    Line::text(format!("{returned:?}"))
}

impl Pair {
    pub(super) async fn add(&mut self, session: usize, add: &Add, is_open: bool) -> Answers {
        let due = TimeDelta::seconds(add.due);
        let flag = add.flag.map(|number| FLAGS[number]);
        let spec = Spec {
            task: TASKS[add.task].to_owned(),
            priority: add.priority,
            run_at: self.start + self.advanced + due,
            queue: add.queue.map(|number| self.real.queues[number]),
            max_attempts: add.max_attempts,
            key: add.key.map(key),
            mode: add.mode,
            flags: flag.map(|flag| [(flag.to_owned(), Value::Bool(true))].into_iter().collect()),
        };
        let text =
            |value: Option<String>| value.map_or_else(|| "null".to_owned(), |value| format!("'{value}'"));
        let sql = format!(
            "select id from graphile_worker.add_job('{}', queue_name => {}, run_at => '{}', max_attempts => {}, \
             job_key => {}, priority => {}, flags => {}, job_key_mode => '{}')",
            spec.task,
            text(add.queue.map(|number| format!("q{number}"))),
            (self.start + due).to_rfc3339(),
            spec.max_attempts,
            text(spec.key.clone()),
            spec.priority,
            flag.map_or_else(|| "null".to_owned(), |flag| format!("array['{flag}']")),
            match add.mode {
                AddMode::Replace => "replace",
                AddMode::PreserveRunAt => "preserve_run_at",
                AddMode::UnsafeDedupe => "unsafe_dedupe",
            },
        );
        self.send(session, Statement::Add(spec), sql, is_open).await
    }

    /// Errors change nothing.
    pub(super) async fn add_invalid(&mut self, which: usize) -> Answers {
        let session = 0;
        if self.is_open[session] || self.is_waiting(session) {
            return None;
        }
        let cases = [
            ("null", "GWBID"),
            ("'a', max_attempts => 0", "GWBMA"),
            ("'a', job_key => ''", "GWBJK"),
            ("'a', job_key => 'k0', job_key_mode => 'x'", "GWBKM"),
            ("'a', priority => 40000", "22003"),
        ];
        let (arguments, code) = cases[which % cases.len()];
        self.real.send(session, format!("select id from graphile_worker.add_job({arguments})"));
        let real = self.real.end(session).await;
        Some(Both { model: line(&Err(code.to_owned())), real: line(&real) })
    }

    pub(super) async fn remove(&mut self, session: usize, number: usize, is_open: bool) -> Answers {
        let key = key(number);
        let id = self.model.with_key(&key).map(|row| row.job.id);
        let sql = format!("select (graphile_worker.remove_job('{key}')).id");
        self.send(session, Statement::Remove { key, id }, sql, is_open).await
    }

    pub(super) async fn lock_row(&mut self, session: usize, which: usize) -> Answers {
        let id = self.any_row(which)?.job.id;
        let sql = format!("select id from graphile_worker._private_jobs where id = {id} for update");
        self.send(session, Statement::LockRow(id), sql, true).await
    }

    pub(super) async fn end_transaction(&mut self, session: usize, commits: bool) -> Answers {
        if !self.is_open[session] || self.is_waiting(session) {
            return None;
        }
        let end = if commits { "commit" } else { "rollback" };
        self.real.sessions[session].client.batch_execute(end).await.expect("a transaction ends");
        self.end_in_model(session, commits);
        super::pair::same(end.to_owned())
    }

    fn end_in_model(&mut self, session: usize, commits: bool) {
        self.model.end_application(self.now, session, commits);
        (self.is_open[session], self.has_written[session]) = (false, false);
    }

    fn is_waiting(&self, session: usize) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.session == session)
    }

    fn blocker(&self, session: usize, statement: &Statement) -> Option<Blocker> {
        match statement {
            Statement::Add(spec) => self.model.blocks_add(session, spec.key.as_deref()?),
            Statement::Remove { id, .. } => self.model.blocks_lock(session, (*id)?),
            Statement::LockRow(id) => self.model.blocks_lock(session, *id),
        }
    }

    /// Sends a statement, in a transaction that stays open or is opened, or as one by itself.
    async fn send(&mut self, session: usize, statement: Statement, sql: String, opens: bool) -> Answers {
        let is_write = !matches!(statement, Statement::LockRow(_));
        let would_wait = self.blocker(session, &statement).is_some();
        // The model does not know what a transaction has written itself.
        let is_second = self.has_written[session];
        if self.is_waiting(session) || is_second || (would_wait && self.waiting.is_some()) {
            return None;
        }
        if opens && !self.is_open[session] {
            self.real.sessions[session].client.batch_execute("begin").await.expect("a transaction begins");
            self.is_open[session] = true;
        }
        self.has_written[session] = is_write && self.is_open[session];
        self.real.send(session, sql);
        let answers = self.compare(session, statement).await;
        self.waits += usize::from(self.waiting.is_some() && would_wait);
        Some(answers)
    }

    /// Compares whether a statement waits, and for whom, or what it returns.
    async fn compare(&mut self, session: usize, statement: Statement) -> Both<Line> {
        let expected = self.blocker(session, &statement);
        let returned = match self.real.progress(session).await {
            Progress::Waits(pids) => {
                let model = expected.map(|blocker| vec![self.pid_of(blocker)]);
                self.waiting = Some(Waiting { session, statement });
                let text = |pids: Option<Vec<i32>>| Line::text(format!("waits for {pids:?}"));
                return Both { model: text(model), real: text(Some(pids)) };
            }
            Progress::Ended(returned) => returned,
        };
        let new_id = returned.as_ref().ok().copied().flatten().unwrap_or_default();
        let model = match &statement {
            Statement::Add(spec) => self.model.add_job(self.now, session, spec.clone(), new_id).map(Some),
            Statement::Remove { id: None, .. } => Ok(None),
            Statement::Remove { key, id: Some(id) } => {
                let is_removed = self.model.remove_job(self.now, session, key, *id);
                is_removed.map(|is_removed| is_removed.then_some(*id))
            }
            Statement::LockRow(id) => {
                let is_locked = self.model.lock_row(self.now, session, *id);
                is_locked.map(|is_locked| is_locked.then_some(*id))
            }
        };
        if !self.is_open[session] {
            self.end_in_model(session, true);
        }
        let model = match model {
            Ok(id) => line(&Ok(id)),
            Err(blocker) => Line::text(format!("waits for {:?}", Some(vec![self.pid_of(blocker)]))),
        };
        Both { model, real: line(&returned) }
    }

    /// Lets the statement that waits go on, if the model says that it can.
    pub(super) async fn resume(&mut self) -> Option<Both<Line>> {
        let Waiting { session, statement } = self.waiting.take()?;
        if self.blocker(session, &statement).is_none() {
            self.real.give_time(session).await;
        }
        Some(self.compare(session, statement).await)
    }

    fn pid_of(&self, blocker: Blocker) -> i32 {
        match blocker {
            Blocker::Held((worker, lane)) => {
                self.real.workers[worker].pids[usize::try_from(lane).unwrap_or_default()]
            }
            Blocker::Application(session) => self.real.sessions[session].pid,
        }
    }
}
