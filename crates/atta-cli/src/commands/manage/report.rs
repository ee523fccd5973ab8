//! Reports what was done and what was not.

use serde::Serialize;

use super::choose::Reason;
use super::past;
use crate::output::{Failure, count_of, note, print_json, print_styled};

/// If more jobs than this were skipped, only their number is reported.
const NAMED: usize = 20;

pub(super) struct Report {
    verb: &'static str,
    pub(super) ids: Vec<i64>,
    /// How many queues were unlocked, if that was requested.
    pub(super) queues: Option<u64>,
    pub(super) skipped: Vec<(i64, Reason)>,
    /// How many jobs were to be changed.
    pub(super) chosen: usize,
    /// How many of them were changed or skipped, and the id of the last one.
    pub(super) handled: usize,
    pub(super) last_id: Option<i64>,
    /// Whether they were chosen by a filter, in the order of their ids, and whether `--limit` was given.
    pub(super) is_by_filter: bool,
    pub(super) is_limited: bool,
    /// The signal that ended the command before all were changed.
    pub(super) interrupted: Option<&'static str>,
    /// How many jobs may have been changed: the command did not wait for the answer.
    pub(super) unknown: usize,
}

#[derive(Serialize)]
struct ReportJson<'a> {
    action: &'a str,
    count: usize,
    ids: &'a [i64],
    #[serde(skip_serializing_if = "Option::is_none")]
    queues: Option<u64>,
    skipped: Vec<SkippedJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted_by: Option<&'a str>,
}

#[derive(Serialize)]
struct SkippedJson {
    id: i64,
    reason: Reason,
}

impl Report {
    pub(super) fn new(verb: &'static str) -> Report {
        Report {
            verb,
            ids: Vec::new(),
            queues: None,
            skipped: Vec::new(),
            chosen: 0,
            handled: 0,
            last_id: None,
            is_by_filter: false,
            is_limited: false,
            interrupted: None,
            unknown: 0,
        }
    }

    /// Returns an error if nothing was done, or if some of the named jobs were skipped.
    pub(super) fn print(&self, as_json: bool) -> Result<(), Failure> {
        if as_json {
            print_json(&self.to_json())?;
        } else if self.interrupted.is_none() && (!self.ids.is_empty() || self.queues.is_some()) {
            let queues =
                self.queues.map_or(String::new(), |n| format!(" and {}", count_of(n as usize, "queue")));
            print_styled(&format!("{} {}{queues}\n", past(self.verb), count_of(self.ids.len(), "job")));
        }
        if let Some(signal) = self.interrupted {
            return Err(self.interruption(signal));
        }
        for (id, reason) in self.skipped.iter().take(NAMED) {
            note(&format!("job {id} was skipped: {}", explain(*reason)));
        }
        match (self.ids.is_empty() && self.queues.is_none(), self.skipped.len()) {
            (true, 0) => Err(Failure::not_so("no such job").with_hint("to list all jobs, run: atta jobs")),
            (true, _) if self.skipped.iter().all(|(_, reason)| *reason == Reason::Unknown) => {
                Err(Failure::not_so("no job was changed")
                    .with_hint("completed jobs are deleted; to list all jobs, run: atta jobs"))
            }
            (true, _) => Err(Failure::not_so("no job was changed")),
            (false, 0) => Ok(()),
            (false, left) => Err(Failure::not_so(format!("{} skipped", were(left)))),
        }
    }

    fn interruption(&self, signal: &str) -> Failure {
        let done = format!("{} {} of {}", past(self.verb), self.ids.len(), count_of(self.chosen, "job"));
        let mut failure = Failure::interrupted(signal, &done);
        if self.unknown > 0 {
            let unknown = count_of(self.unknown, "more job");
            failure = failure
                .and(&format!("{unknown} may have been changed: the command did not wait for the result"));
        }
        failure.with_hint(self.how_to_continue())
    }

    /// The same command would start over if the jobs that were changed still match its filter: after `retry --state ready`
    /// they do.
    fn how_to_continue(&self) -> String {
        let Some(last_id) = self.last_id else { return "to continue, run the same command again".into() };
        if !self.is_by_filter {
            return format!("to continue, run the same command with the ids that follow {last_id}");
        }
        let limit = self.is_limited.then(|| format!(" --limit {}", self.chosen - self.handled));
        format!("to continue, run the same command with --after {last_id}{}", limit.unwrap_or_default())
    }

    fn to_json(&self) -> ReportJson<'_> {
        let skipped = self.skipped.iter().map(|(id, reason)| SkippedJson { id: *id, reason: *reason });
        ReportJson {
            action: self.verb,
            count: self.ids.len(),
            ids: &self.ids,
            queues: self.queues,
            skipped: skipped.collect(),
            interrupted_by: self.interrupted,
        }
    }
}

fn were(count: usize) -> String {
    if count == 1 { "1 job was".into() } else { format!("{count} jobs were") }
}

fn explain(reason: Reason) -> &'static str {
    match reason {
        Reason::Unknown => "there is no job with this id",
        Reason::Running => "it is running (if its worker no longer exists, run: atta unlock)",
        Reason::NotLocked => "it is not locked",
        Reason::WorkerIsAlive => "its worker is alive (--force unlocks it anyway, and it may run twice)",
        Reason::Changed => "it changed in the meantime",
    }
}
