//! Runs: none beside another, in order, with the right attempt, and in time.

use std::collections::{BTreeMap, HashMap, HashSet};

use chrono::TimeDelta;

use super::{Evidence, Excuse, Findings, claim, number};
use crate::ledger::{Change, Run};

/// Runs of one job, or of one queue, at the same time.
pub(super) fn overlaps(evidence: &Evidence, findings: &mut Findings) {
    let queues = evidence.queues();
    let mut groups: HashMap<(bool, String), Vec<&Run>> = HashMap::new();
    for run in &evidence.runs {
        groups.entry((false, run.job_id.to_string())).or_default().push(run);
        if let Some(queue) = queues.get(&run.job_id) {
            groups.entry((true, (*queue).to_owned())).or_default().push(run);
        }
    }
    for ((is_queue, name), runs) in groups {
        for (index, first) in runs.iter().enumerate() {
            let end = evidence.end_of(first);
            for second in runs[index + 1..].iter().take_while(|second| second.began_at < end) {
                let (earlier, later) =
                    if claim(first) <= claim(second) { (first, second) } else { (second, first) };
                if evidence.excuse(earlier, later).is_none() {
                    let what = if is_queue { "queue" } else { "job" };
                    findings.breach(format!("{what} {name}: two runs at a time: {first:?} and {second:?}"));
                }
            }
        }
    }
}

/// The jobs of a queue begin in the order in which they were added.
pub(super) fn order(evidence: &Evidence, findings: &mut Findings) {
    let acks = evidence.acks.iter().filter(|ack| evidence.has_all_runs(ack));
    let queues: HashMap<i64, &str> =
        acks.filter_map(|ack| Some((ack.job_id, ack.queue.as_deref()?))).collect();
    let mut last: HashMap<&str, &Run> = HashMap::new();
    let mut begun = HashSet::new();
    for run in &evidence.runs {
        let Some(queue) = queues.get(&run.job_id) else { continue };
        let n = number(&run.payload);
        if !begun.insert(run.job_id) || evidence.is_in_doubt(&run.kind, Some(queue), n) {
            continue;
        }
        if let Some(before) = last.insert(queue, run)
            && number(&before.payload) > n
            // The begin of a zombie's run may be written long after its claim.
            && claim(before) <= claim(run)
        {
            findings.breach(format!("queue {queue}: {before:?} began before {run:?}"));
        }
    }
}

/// No job begins before its time.
pub(super) fn times(evidence: &Evidence, findings: &mut Findings) {
    for run in evidence.runs.iter().filter(|run| run.began_at < run.run_at - TimeDelta::milliseconds(2)) {
        findings.breach(format!("too early: {run:?}"));
    }
}

/// Each run of a job has the next attempt, but after a death or a lost connection; and none follows one that was done.
pub(super) fn attempts(evidence: &Evidence, findings: &mut Findings) {
    // An add by key begins to count anew.
    let mut jobs: BTreeMap<(i64, i32), Vec<&Run>> = BTreeMap::new();
    for run in &evidence.runs {
        jobs.entry((run.job_id, run.revision)).or_default().push(run);
    }
    for ((_, revision), mut runs) in jobs {
        // By their claims: the begin of a run is written late if the connection is slow, or the worker stood still.
        runs.sort_by_key(|run| (run.attempt, claim(run), run.began_at));
        let first = runs[0];
        if revision == 0
            && first.attempt != 1
            && !is_accounted_for(evidence, 0, first)
            && !was_given_back(evidence, first)
        {
            findings.breach(format!("the first run has a later attempt: {first:?}"));
        }
        for pair in runs.windows(2) {
            let (run, next) = (pair[0], pair[1]);
            let failed = run.ended_at.is_some() && !run.is_done;
            let is_next = next.attempt > run.attempt
                && (is_accounted_for(evidence, run.attempt, next) || was_given_back(evidence, next));
            if failed && is_next {
                continue;
            }
            match evidence.excuse(run, next) {
                Some(Excuse::Death) => findings.repeats_after_death += 1,
                Some(Excuse::LostConnection) => findings.repeats_while_held += 1,
                None => findings.breach(format!("a second run: {run:?} and then {next:?}")),
            }
        }
    }
}

/// Whether each attempt between this one and that of the run was a claim that somebody else ended, before its task had begun.
fn is_accounted_for(evidence: &Evidence, after: i32, run: &Run) -> bool {
    (after + 1..run.attempt).all(|attempt| {
        let is_it = |change: &&Change| change.job_id == run.job_id && change.attempts == attempt;
        evidence.changes.iter().filter(is_it).any(|change| !change.is_deleted && change.at < run.began_at)
    })
}

/// Whether a claim of this very attempt was given back before. One whose key was used anew while it was claimed has no
/// attempt left but that.
fn was_given_back(evidence: &Evidence, run: &Run) -> bool {
    let is_same = |change: &Change| change.job_id == run.job_id && change.attempts == run.attempt;
    evidence.changes.iter().any(|change| is_same(change) && !change.is_deleted && change.at < run.began_at)
}
