//! Transactions of applications: they lock rows, add jobs with and without keys, and remove jobs by their keys. A statement
//! of a transaction waits for rows and keys that another transaction has locked. Its changes become visible at its end.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::{Database, Holder, Row};
use crate::job::Flags;

/// A session of an application.
pub(in super::super) type Application = usize;

/// What becomes of an existing job with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum AddMode {
    Replace,
    PreserveRunAt,
    UnsafeDedupe,
}

/// A job to add.
#[derive(Clone, Debug)]
pub(in super::super) struct Spec {
    pub(in super::super) task: String,
    pub(in super::super) priority: i16,
    pub(in super::super) run_at: DateTime<Utc>,
    pub(in super::super) queue: Option<i32>,
    pub(in super::super) max_attempts: i16,
    pub(in super::super) key: Option<String>,
    pub(in super::super) mode: AddMode,
    pub(in super::super) flags: Option<Flags>,
}

/// The transaction that a statement waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Blocker {
    Held(Holder),
    Application(Application),
}

#[derive(Debug)]
enum Write {
    Insert(i64, Spec),
    Replace(i64, Spec),
    /// The job gets another revision.
    Touch(i64),
    /// The job loses its key, and has no attempts left.
    Retire(i64),
    Delete(i64),
}

#[derive(Debug, Default)]
pub(super) struct Transaction {
    locked: Vec<i64>,
    writes: Vec<Write>,
}

impl Database {
    /// Locks a row until the transaction ends. Returns whether there is such a row.
    pub(in super::super) fn lock_row(
        &mut self,
        now: Duration,
        application: Application,
        id: i64,
    ) -> Result<bool, Blocker> {
        let Some(row) = self.rows.get(&id) else { return Ok(false) };
        if let Some(blocker) = self.blocker(application, row) {
            return Err(blocker);
        }
        self.update(now, id, |row| row.is_used = true);
        self.transaction(application).locked.push(id);
        Ok(true)
    }

    /// add_job.sql. A new job has this id. Returns the id of the job.
    pub(in super::super) fn add_job(
        &mut self,
        now: Duration,
        application: Application,
        spec: Spec,
        new_id: i64,
    ) -> Result<i64, Blocker> {
        if let Some(blocker) = spec.key.as_deref().and_then(|key| self.blocks_add(application, key)) {
            return Err(blocker);
        }
        let Some(id) = spec.key.as_deref().and_then(|key| self.with_key(key)).map(|row| row.job.id) else {
            self.transaction(application).writes.push(Write::Insert(new_id, spec));
            return Ok(new_id);
        };
        self.lock_row(now, application, id)?;
        let is_free = self.rows[&id].is_available();
        let writes = &mut self.transaction(application).writes;
        match spec.mode {
            AddMode::UnsafeDedupe => writes.push(Write::Touch(id)),
            _ if is_free => writes.push(Write::Replace(id, spec)),
            _ => {
                writes.extend([Write::Retire(id), Write::Insert(new_id, spec)]);
                return Ok(new_id);
            }
        }
        Ok(id)
    }

    /// What an add with this key would wait for.
    pub(in super::super) fn blocks_add(&self, application: Application, key: &str) -> Option<Blocker> {
        let other = self.who_adds(key).filter(|other| *other != application);
        let row = self.with_key(key).and_then(|row| self.blocker(application, row));
        other.map(Blocker::Application).or(row)
    }

    /// What a lock of this row would wait for.
    pub(in super::super) fn blocks_lock(&self, application: Application, id: i64) -> Option<Blocker> {
        self.blocker(application, self.rows.get(&id)?)
    }

    /// The job that remove_job.sql would remove.
    pub(in super::super) fn with_key(&self, key: &str) -> Option<&Row> {
        self.rows.values().find(|row| row.job.key.as_deref() == Some(key))
    }

    /// remove_job.sql, for the job that had the key when the statement began. Returns whether it still has.
    pub(in super::super) fn remove_job(
        &mut self,
        now: Duration,
        application: Application,
        key: &str,
        id: i64,
    ) -> Result<bool, Blocker> {
        self.lock_row(now, application, id)?;
        let Some(row) = self.rows.get(&id).filter(|row| row.job.key.as_deref() == Some(key)) else {
            return Ok(false);
        };
        let long_ago = self.clock(now) - TimeDelta::hours(4);
        let write = match row.locked {
            Some((_, at)) if at >= long_ago => Write::Retire(id),
            _ => Write::Delete(id),
        };
        self.transaction(application).writes.push(write);
        Ok(true)
    }

    pub(in super::super) fn end_application(
        &mut self,
        now: Duration,
        application: Application,
        commits: bool,
    ) {
        let Transaction { locked, writes } = self.applications.remove(&application).unwrap_or_default();
        for write in writes.into_iter().filter(|_| commits) {
            self.write_for_application(now, write);
        }
        for id in locked {
            self.update(now, id, |row| (row.is_used, row.unused_since) = (false, now));
        }
    }

    fn write_for_application(&mut self, now: Duration, write: Write) {
        match write {
            Write::Insert(id, spec) => self.insert(now, id, spec),
            Write::Touch(id) => self.update(now, id, |row| {
                row.job.revision += 1;
                row.is_touched = true;
            }),
            Write::Retire(id) => self.update(now, id, |row| {
                row.job.key = None;
                row.job.attempts = row.job.max_attempts;
            }),
            Write::Delete(id) => drop(self.delete(id)),
            Write::Replace(id, spec) => self.update(now, id, |row| {
                let keeps_time = spec.mode == AddMode::PreserveRunAt && row.job.attempts == 0;
                if !keeps_time {
                    row.job.run_at = spec.run_at;
                }
                row.job.task_identifier = spec.task.as_str().into();
                row.job.job_queue_id = spec.queue;
                row.job.priority = spec.priority;
                row.job.max_attempts = spec.max_attempts;
                row.job.flags = spec.flags;
                row.job.revision += 1;
                row.job.attempts = 0;
            }),
        }
    }

    fn transaction(&mut self, application: Application) -> &mut Transaction {
        self.applications.entry(application).or_default()
    }

    fn blocker(&self, application: Application, row: &Row) -> Option<Blocker> {
        if let Some(holder) = row.held {
            return Some(Blocker::Held(holder));
        }
        let has_it =
            |(_, transaction): &(&Application, &Transaction)| transaction.locked.contains(&row.job.id);
        let (owner, _) = self.applications.iter().find(has_it)?;
        (*owner != application).then_some(Blocker::Application(*owner))
    }

    /// Who has added this key and not committed.
    fn who_adds(&self, key: &str) -> Option<Application> {
        let adds_it = |write: &Write| match write {
            Write::Insert(_, spec) => spec.key.as_deref() == Some(key),
            _ => false,
        };
        let adds = |(_, transaction): &(&Application, &Transaction)| transaction.writes.iter().any(adds_it);
        self.applications.iter().find(adds).map(|(owner, _)| *owner)
    }
}
