//! The table of known crontab items, and the statements of cron.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{AddMode, Database, Spec};

/// A row of the table of known crontab items.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Crontab {
    pub(in super::super) known_since: DateTime<Utc>,
    pub(in super::super) last_execution: Option<DateTime<Utc>>,
}

impl Database {
    /// register_cron_items.sql. Returns the items that were known before.
    pub(in super::super) fn register_cron_items(
        &mut self,
        identifiers: &[String],
        now: DateTime<Utc>,
    ) -> Vec<(String, Crontab)> {
        let mut known = Vec::new();
        for identifier in identifiers {
            match self.crontabs.get(identifier) {
                Some(row) => known.push((identifier.clone(), *row)),
                None => {
                    let row = Crontab { known_since: now, last_execution: None };
                    self.crontabs.insert(identifier.clone(), row);
                }
            }
        }
        known
    }

    /// schedule_cron_jobs.sql. The row of an item is locked until the end of the statement, so each minute of an item is
    /// added by one statement only. Returns the items whose jobs were added.
    pub(in super::super) fn schedule_cron_jobs(
        &mut self,
        now: Duration,
        identifiers: &[String],
        minute: DateTime<Utc>,
        task: &str,
    ) -> Vec<(String, i64)> {
        let mut added = Vec::new();
        for identifier in identifiers {
            let new = Crontab { known_since: minute, last_execution: None };
            let row = self.crontabs.entry(identifier.clone()).or_insert(new);
            if row.last_execution.is_some_and(|last| last >= minute) {
                continue;
            }
            row.last_execution = Some(minute);
            let spec = Spec {
                task: task.to_owned(),
                priority: 0,
                run_at: minute,
                queue: None,
                max_attempts: 25,
                key: None,
                mode: AddMode::Replace,
                flags: None,
            };
            added.push((identifier.clone(), self.add(now, spec)));
        }
        added
    }
}
