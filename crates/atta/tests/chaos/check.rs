//! The verdict: finds broken guarantees from the acknowledged adds, the runs, the workers that were declared dead, and
//! the remaining jobs. It does not use the database.
//!
//! Not a violation: a worker that was declared dead may still run a job that another worker has claimed since (its
//! claim is older than the declaration, the other one younger). A job that was only held may run again if a connection
//! was lost meanwhile. Jobs of Node's worker are unlocked by the test when that worker was killed.

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
use crate::ledger::{Change, Declaration, Run};
use crate::work::{Ack, UnknownAdd};

/// Everything that was recorded.
pub(crate) struct Evidence {
    /// Records that are older than this may be incomplete.
    pub(crate) since: DateTime<Utc>,
    pub(crate) acks: Vec<Ack>,
    /// Adds without a reply: it is unknown whether and when they took effect.
    pub(crate) unknown_adds: HashSet<UnknownAdd>,
    /// Jobs of transactions that were rolled back.
    pub(crate) ghosts: HashSet<i64>,
    /// In the order in which they started.
    pub(crate) runs: Vec<Run>,
    /// The jobs that are still in the table.
    pub(crate) left: HashMap<i64, Left>,
    /// The ends of durable claims.
    pub(crate) changes: Vec<Change>,
    /// Worker id to the instance that has it.
    pub(crate) instances: HashMap<String, String>,
    pub(crate) declarations: Vec<Declaration>,
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

/// Why a second run is not a violation.
enum Excuse {
    Death,
    LostConnection,
}

/// Checks that must pass at any time.
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

/// Checks that must pass at the end.
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

    /// Whether all runs of the job of this add are recorded: it was added, or merged into a job that was waiting or
    /// running.
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

    fn is_unknown(&self, kind: &str, queue: Option<&str>, n: i64) -> bool {
        self.unknown_adds.contains(&UnknownAdd { kind: kind.into(), queue: queue.map(str::to_owned), n })
    }

    /// A run whose end was never recorded ended with its process at the latest.
    fn end_of(&self, run: &Run) -> DateTime<Utc> {
        run.ended_at.or_else(|| self.history.ends.get(&run.instance).copied()).unwrap_or(self.until)
    }

    fn excuse(&self, run: &Run, next: &Run) -> Option<Excuse> {
        let between = |at: DateTime<Utc>| at >= claim(run) && at <= next.began_at;
        if self
            .declarations
            .iter()
            .any(|declaration| declaration.worker_id == run.worker_id && between(declaration.at))
        {
            return Some(Excuse::Death);
        }
        if is_node(run) && self.history.unlocks.iter().any(|at| between(*at)) {
            return Some(Excuse::Death);
        }
        // The worker claimed after it was declared dead, and was then killed.
        let is_freed = |change: &Change| {
            change.job_id == run.job_id && change.owner == run.worker_id && between(change.at)
        };
        if self.changes.iter().any(|change| is_freed(change) && !claims::is_own(self, change)) {
            return Some(Excuse::Death);
        }
        // The server ends an abandoned transaction within ten seconds.
        let from = run.began_at.min(next.began_at) - TimeDelta::seconds(12);
        let was_cut =
            |done: &Done| done.fault.loses_connections() && done.from <= next.began_at && done.to >= from;
        // A fault that is still going on is not in the list yet.
        let may_be_cut =
            self.faults.iter().any(was_cut) || self.until - next.began_at < TimeDelta::seconds(20);
        // The held run may be the one that started later, because its worker does not know yet that it lost the claim.
        // In that case it was picked before the other claim was committed.
        let was_held = run.claimed_at.is_none() || (next.claimed_at.is_none() && next.attempt <= run.attempt);
        (was_held && may_be_cut).then_some(Excuse::LostConnection)
    }
}

/// The time of the claim, which is at the latest the start of the run.
fn claim(run: &Run) -> DateTime<Utc> {
    run.claimed_at.unwrap_or(run.began_at)
}

fn is_node(run: &Run) -> bool {
    run.instance.starts_with("node")
}

fn number(payload: &str) -> i64 {
    serde_json::from_str::<Value>(payload).ok().and_then(|payload| payload["n"].as_i64()).unwrap_or(-1)
}
