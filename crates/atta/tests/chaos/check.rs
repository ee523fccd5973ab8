//! Judging: from what was acknowledged, what ran, who was taken for dead and what is left, the promises that were
//! broken. No database in it.
//!
//! What is no breach: a worker that was taken for dead may still run what others run by now (its claim is then older
//! than its burial, and theirs younger). A job that was only held may run again if a connection was lost meanwhile.
//! What Node's worker had when it was killed is freed by hand.

use std::collections::{BTreeMap, HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use crate::faults::Done;
use crate::fleet::History;
use crate::ledger::{Burial, Run};
use crate::work::Ack;

/// All that is known.
pub(crate) struct Evidence {
    pub(crate) acks: Vec<Ack>,
    /// In the order in which they began.
    pub(crate) runs: Vec<Run>,
    /// The jobs that are still in the table.
    pub(crate) left: HashMap<i64, Left>,
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

/// Everything, when all is over.
pub(crate) fn all(evidence: &Evidence) -> Findings {
    let mut findings = Findings { violations: overlaps(evidence), ..Findings::default() };
    ends(evidence, &mut findings);
    attempts(evidence, &mut findings);
    keys(evidence, &mut findings);
    items(evidence, &mut findings);
    order(evidence, &mut findings);
    times(evidence, &mut findings);
    ticks(evidence, &mut findings);
    findings
}

/// Runs of one job, or of one queue, at the same time.
pub(crate) fn overlaps(evidence: &Evidence) -> Vec<String> {
    let queues = evidence.queues();
    let mut groups: HashMap<(bool, String), Vec<&Run>> = HashMap::new();
    for run in &evidence.runs {
        groups.entry((false, run.job_id.to_string())).or_default().push(run);
        if let Some(queue) = queues.get(&run.job_id) {
            groups.entry((true, (*queue).to_owned())).or_default().push(run);
        }
    }
    let mut violations = Vec::new();
    for ((is_queue, name), runs) in groups {
        for (index, first) in runs.iter().enumerate() {
            let end = evidence.end_of(first);
            for second in runs[index + 1..].iter().take_while(|second| second.began_at < end) {
                let (earlier, later) =
                    if claim(first) <= claim(second) { (first, second) } else { (second, first) };
                if evidence.excuse(earlier, later).is_none() {
                    let what = if is_queue { "queue" } else { "job" };
                    violations.push(format!("{what} {name}: two runs at a time: {first:?} and {second:?}"));
                }
            }
        }
    }
    violations
}

/// Every acknowledged job is done, or permanently failed with its error.
fn ends(evidence: &Evidence, findings: &mut Findings) {
    let done: HashSet<i64> = evidence.runs.iter().filter(|run| run.is_done).map(|run| run.job_id).collect();
    let node: HashSet<i64> =
        evidence.runs.iter().filter(|run| run.instance.starts_with("node")).map(|run| run.job_id).collect();
    let mut seen = HashSet::new();
    for ack in evidence.acks.iter().filter(|ack| seen.insert(ack.job_id)) {
        let verdict = match evidence.left.get(&ack.job_id) {
            None if ack.kind == "failing" => Some("is gone, and should have failed for good"),
            None if done.contains(&ack.job_id) => None,
            None => {
                findings.lost += 1;
                Some("is LOST: it is gone and no run of it was done")
            }
            Some(left) if left.is_locked => Some("is still locked"),
            Some(left) if left.attempts < left.max_attempts => Some("never came to an end"),
            // A worker of Node's that was killed leaves no error behind.
            Some(left) if left.last_error.is_none() && !node.contains(&ack.job_id) => {
                Some("failed without an error")
            }
            // One that was running when its key was given away is not tried again.
            Some(_) if ack.kind == "failing" || ack.key.is_some() => None,
            Some(_) => Some("failed for good, and should have been done"),
        };
        if let Some(verdict) = verdict {
            findings.violations.push(format!("job {} {verdict}: {ack:?}", ack.job_id));
        }
    }
}

/// Each run of a job has the next attempt, but after a death or a lost connection; and none follows one that was done.
fn attempts(evidence: &Evidence, findings: &mut Findings) {
    // An add by key begins to count anew.
    let mut jobs: BTreeMap<(i64, i32), Vec<&Run>> = BTreeMap::new();
    for run in &evidence.runs {
        jobs.entry((run.job_id, run.revision)).or_default().push(run);
    }
    for ((_, revision), mut runs) in jobs {
        runs.sort_by_key(|run| (run.attempt, run.began_at));
        let first = runs[0];
        if revision == 0 && first.attempt != 1 && !evidence.was_freed(DateTime::UNIX_EPOCH, first.began_at) {
            findings.violations.push(format!("the first run has a later attempt: {first:?}"));
        }
        for pair in runs.windows(2) {
            let (run, next) = (pair[0], pair[1]);
            let failed = run.ended_at.is_some() && !run.is_done;
            let is_next = next.attempt == run.attempt + 1
                || (next.attempt > run.attempt && evidence.was_freed(claim(run), next.began_at));
            if failed && is_next {
                continue;
            }
            match evidence.excuse(run, next) {
                Some(Excuse::Death) => findings.repeats_after_death += 1,
                Some(Excuse::LostConnection) => findings.repeats_while_held += 1,
                None => findings.violations.push(format!("a second run: {run:?} and then {next:?}")),
            }
        }
    }
    for ack in evidence.acks.iter().filter(|ack| ack.kind == "failing") {
        if let Some(left) = evidence.left.get(&ack.job_id)
            && left.attempts != left.max_attempts
        {
            findings.violations.push(format!("{} attempts of {}: {ack:?}", left.attempts, left.max_attempts));
        }
    }
}

/// The last write to a key is what runs, and nothing older is claimed after it.
fn keys(evidence: &Evidence, findings: &mut Findings) {
    let mut keys: HashMap<&str, Vec<&Ack>> = HashMap::new();
    for ack in evidence.acks.iter().filter(|ack| ["replace", "preserve"].contains(&ack.kind)) {
        keys.entry(ack.key.as_deref().unwrap_or_default()).or_default().push(ack);
    }
    let mut runs: HashMap<i64, Vec<&Run>> = HashMap::new();
    for run in &evidence.runs {
        runs.entry(run.job_id).or_default().push(run);
    }
    for (key, acks) in keys {
        let Some(last) = acks.last() else { continue };
        let runs_of_last = runs.get(&last.job_id);
        let ran = runs_of_last
            .is_some_and(|runs| runs.iter().any(|run| run.is_done && number(&run.payload) == last.n));
        let failed = evidence.left.get(&last.job_id).is_some_and(|left| number(&left.payload) == last.n);
        if !ran && !failed {
            findings.lost += 1;
            findings.violations.push(format!("the last write to key {key} was lost: {last:?}"));
        }
        for pair in
            acks.windows(2).filter(|pair| pair[0].kind == "preserve" && pair[0].job_id == pair[1].job_id)
        {
            // One that has failed before gets the new time.
            let was_begun = runs.get(&pair[1].job_id).is_some_and(|runs| runs[0].began_at < pair[1].at);
            if pair[0].run_at != pair[1].run_at && !was_begun {
                findings.violations.push(format!("key {key}: the time was not kept: {pair:?}"));
            }
        }
        for ack in &acks {
            let stale =
                |run: &&&Run| number(&run.payload) < ack.n && run.claimed_at.is_some_and(|at| at > ack.at);
            if let Some(run) = runs.get(&ack.job_id).and_then(|runs| runs.iter().find(stale)) {
                findings.violations.push(format!("key {key}: an older payload ran after {ack:?}: {run:?}"));
            }
        }
    }
}

/// Every item of a merged array was done, or stands in a job that failed for good.
fn items(evidence: &Evidence, findings: &mut Findings) {
    let mut ends: HashSet<i64> =
        evidence.runs.iter().flat_map(|run| run.items_done.iter().copied()).collect();
    for left in evidence.left.values() {
        if let Ok(Value::Array(items)) = serde_json::from_str(&left.payload) {
            ends.extend(items.iter().filter_map(|item| item["n"].as_i64()));
        }
    }
    for ack in &evidence.acks {
        for item in ack.items.iter().filter(|item| !ends.contains(item)) {
            findings.lost += 1;
            findings.violations.push(format!("item {item} was lost: {ack:?}"));
        }
    }
}

/// The jobs of a queue begin in the order in which they were added.
fn order(evidence: &Evidence, findings: &mut Findings) {
    let queues = evidence.queues();
    let mut last: HashMap<&str, &Run> = HashMap::new();
    let mut begun = HashSet::new();
    for run in &evidence.runs {
        let Some(queue) = queues.get(&run.job_id) else { continue };
        if !begun.insert(run.job_id) {
            continue;
        }
        if let Some(before) = last.insert(queue, run)
            && number(&before.payload) > number(&run.payload)
            // The begin of a zombie's run may be written long after its claim.
            && claim(before) <= claim(run)
        {
            findings.violations.push(format!("queue {queue}: {before:?} began before {run:?}"));
        }
    }
}

/// No job begins before its time.
fn times(evidence: &Evidence, findings: &mut Findings) {
    for run in evidence.runs.iter().filter(|run| run.began_at < run.run_at - TimeDelta::milliseconds(2)) {
        findings.violations.push(format!("too early: {run:?}"));
    }
}

/// Each minute has exactly one job.
fn ticks(evidence: &Evidence, findings: &mut Findings) {
    let mut ticks: BTreeMap<DateTime<Utc>, HashSet<i64>> = BTreeMap::new();
    for run in evidence.runs.iter().filter(|run| run.kind == "tick") {
        let payload: Value = serde_json::from_str(&run.payload).unwrap_or_default();
        match payload["_cron"]["ts"].as_str().and_then(|ts| ts.parse().ok()) {
            Some(minute) => drop(ticks.entry(minute).or_default().insert(run.job_id)),
            None => findings.violations.push(format!("a tick without its minute: {run:?}")),
        }
    }
    findings.ticks = ticks.len();
    for (minute, jobs) in ticks.iter().filter(|(_, jobs)| jobs.len() > 1) {
        findings.violations.push(format!("the minute {minute} has jobs {jobs:?}"));
    }
    for (before, after) in ticks.keys().zip(ticks.keys().skip(1)) {
        if *after - *before != TimeDelta::minutes(1) {
            findings.violations.push(format!("no tick between {before} and {after}"));
        }
    }
    if ticks.is_empty() {
        findings.violations.push("there was no tick at all".into());
    }
}

impl Evidence {
    fn queues(&self) -> HashMap<i64, &str> {
        self.acks.iter().filter_map(|ack| Some((ack.job_id, ack.queue.as_deref()?))).collect()
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
        if run.instance.starts_with("node") && self.history.unlocks.iter().any(|at| between(*at)) {
            return Some(Excuse::Death);
        }
        // The server notices within its own ten seconds that a transaction was left.
        let from = run.began_at - TimeDelta::seconds(12);
        let was_cut =
            |done: &Done| done.fault.loses_connections() && done.from <= next.began_at && done.to >= from;
        // A fault that is still going on is not in the list yet.
        let may_be_cut =
            self.faults.iter().any(was_cut) || self.until - next.began_at < TimeDelta::seconds(20);
        (run.claimed_at.is_none() && may_be_cut).then_some(Excuse::LostConnection)
    }

    /// Whether jobs were freed by others, in this time.
    fn was_freed(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> bool {
        let between = |at: DateTime<Utc>| at >= from && at <= to;
        self.burials.iter().any(|burial| between(burial.at))
            || self.history.unlocks.iter().any(|at| between(*at))
    }
}

/// Not after the run was begun.
fn claim(run: &Run) -> DateTime<Utc> {
    run.claimed_at.unwrap_or(run.began_at)
}

fn number(payload: &str) -> i64 {
    serde_json::from_str::<Value>(payload).ok().and_then(|payload| payload["n"].as_i64()).unwrap_or(-1)
}
