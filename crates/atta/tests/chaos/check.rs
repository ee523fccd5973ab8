//! Judging: from what was acknowledged, what ran, who was taken for dead and what is left, the promises that were
//! broken. No database in it.
//!
//! What is no breach: a worker that was taken for dead may still run what others run by now (its claim is then older
//! than its burial, and theirs younger). A job that was only held may run again if a connection was lost meanwhile.
//! What Node's worker had when it was killed is freed by hand.

mod adds;
mod claims;
mod cron;
mod deaths;
mod keys;
mod runs;

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use crate::faults::Done;
use crate::fleet::History;
use crate::ledger::{Burial, Change, Run};
use crate::work::{Ack, Doubt};

/// All that is known.
pub(crate) struct Evidence {
    /// What is older than this is not all there.
    pub(crate) since: DateTime<Utc>,
    pub(crate) acks: Vec<Ack>,
    /// Adds without an answer: nobody knows when they took place, if at all.
    pub(crate) doubts: HashSet<Doubt>,
    /// Jobs of transactions that were rolled back.
    pub(crate) ghosts: HashSet<i64>,
    /// In the order in which they began.
    pub(crate) runs: Vec<Run>,
    /// The jobs that are still in the table.
    pub(crate) left: HashMap<i64, Left>,
    /// Durable claims that came to an end.
    pub(crate) changes: Vec<Change>,
    /// The instance of each worker.
    pub(crate) instances: HashMap<String, String>,
    pub(crate) burials: Vec<Burial>,
    pub(crate) history: History,
    pub(crate) faults: Vec<Done>,
    pub(crate) until: DateTime<Utc>,
}

pub(crate) struct Left {
    pub(crate) attempts: i32,
    pub(crate) max_attempts: i32,
    pub(crate) last_error: Option<String>,
    pub(crate) payload: String,
    pub(crate) is_locked: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<String>,
    pub(crate) lost: usize,
    pub(crate) repeats_after_death: usize,
    pub(crate) repeats_while_held: usize,
    pub(crate) ticks: usize,
}

/// Why a second run is no breach.
enum Excuse {
    Death,
    LostConnection,
}

/// What must hold at every time.
pub(crate) fn so_far(evidence: &Evidence) -> Findings {
    let mut findings = Findings::default();
    runs::overlaps(evidence, &mut findings);
    runs::order(evidence, &mut findings);
    runs::times(evidence, &mut findings);
    adds::lost(evidence, &mut findings);
    adds::ghosts(evidence, &mut findings);
    keys::stale(evidence, &mut findings);
    claims::foreign(evidence, &mut findings);
    claims::early(evidence, &mut findings);
    cron::twice(evidence, &mut findings);
    deaths::wrong(evidence, &mut findings);
    findings
}

/// Everything, when all is over.
pub(crate) fn all(evidence: &Evidence) -> Findings {
    let mut findings = so_far(evidence);
    adds::ends(evidence, &mut findings);
    runs::attempts(evidence, &mut findings);
    keys::last(evidence, &mut findings);
    keys::first(evidence, &mut findings);
    keys::items(evidence, &mut findings);
    cron::gaps(evidence, &mut findings);
    findings
}

impl Findings {
    fn breach(&mut self, what: String) {
        self.violations.push(what);
    }

    fn loss(&mut self, what: String) {
        self.lost += 1;
        self.violations.push(what);
    }
}

impl Evidence {
    fn queues(&self) -> HashMap<i64, &str> {
        self.acks.iter().filter_map(|ack| Some((ack.job_id, ack.queue.as_deref()?))).collect()
    }

    /// Whether every run of the job of an add is there: it was added, or joined, while it waited or ran.
    fn has_all_runs(&self, ack: &Ack) -> bool {
        ack.at > self.since + TimeDelta::seconds(30)
    }

    fn runs_by_job(&self) -> HashMap<i64, Vec<&Run>> {
        let mut runs: HashMap<i64, Vec<&Run>> = HashMap::new();
        for run in &self.runs {
            runs.entry(run.job_id).or_default().push(run);
        }
        runs
    }

    fn is_in_doubt(&self, kind: &str, queue: Option<&str>, n: i64) -> bool {
        self.doubts.contains(&Doubt { kind: kind.into(), queue: queue.map(str::to_owned), n })
    }

    /// One that was never written down ended with its process at the latest.
    fn end_of(&self, run: &Run) -> DateTime<Utc> {
        run.ended_at.or_else(|| self.history.ends.get(&run.instance).copied()).unwrap_or(self.until)
    }

    fn excuse(&self, run: &Run, next: &Run) -> Option<Excuse> {
        let between = |at: DateTime<Utc>| at >= claim(run) && at <= next.began_at;
        if self.burials.iter().any(|burial| burial.worker_id == run.worker_id && between(burial.at)) {
            return Some(Excuse::Death);
        }
        if is_node(run) && self.history.unlocks.iter().any(|at| between(*at)) {
            return Some(Excuse::Death);
        }
        // It claimed after its burial, and was killed.
        let is_freed = |change: &Change| {
            change.job_id == run.job_id && change.owner == run.worker_id && between(change.at)
        };
        if self.changes.iter().any(|change| is_freed(change) && !claims::is_own(self, change)) {
            return Some(Excuse::Death);
        }
        // The server notices within its own ten seconds that a transaction was left.
        let from = run.began_at.min(next.began_at) - TimeDelta::seconds(12);
        let was_cut =
            |done: &Done| done.fault.loses_connections() && done.from <= next.began_at && done.to >= from;
        // A fault that is still going on is not in the list yet.
        let may_be_cut =
            self.faults.iter().any(was_cut) || self.until - next.began_at < TimeDelta::seconds(20);
        // The one that was held may be the one that begins later: its worker does not know yet that it has lost it. Then
        // it was picked before the other claim counted.
        let was_held = run.claimed_at.is_none() || (next.claimed_at.is_none() && next.attempt <= run.attempt);
        (was_held && may_be_cut).then_some(Excuse::LostConnection)
    }
}

/// Not after the run was begun.
fn claim(run: &Run) -> DateTime<Utc> {
    run.claimed_at.unwrap_or(run.began_at)
}

fn is_node(run: &Run) -> bool {
    run.instance.starts_with("node")
}

fn number(payload: &str) -> i64 {
    serde_json::from_str::<Value>(payload).ok().and_then(|payload| payload["n"].as_i64()).unwrap_or(-1)
}
