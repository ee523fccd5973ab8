//! Runs: no overlaps, in order, with the right attempt, and not before their time.

use std::collections::{BTreeMap, HashMap, HashSet};

use chrono::TimeDelta;

use super::{Evidence, Excuse, Findings, claim, number};
use crate::ledger::{Change, Run};

/// Runs of one job, or of one queue, must not overlap.
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

/// The jobs of a queue must start in the order in which they were added.
pub(super) fn order(evidence: &Evidence, findings: &mut Findings) {
    let acks = evidence.acks.iter().filter(|ack| evidence.has_all_runs(ack));
    let queues: HashMap<i64, &str> =
        acks.filter_map(|ack| Some((ack.job_id, ack.queue.as_deref()?))).collect();
    let mut last: HashMap<&str, &Run> = HashMap::new();
    let mut begun = HashSet::new();
    for run in &evidence.runs {
        let Some(queue) = queues.get(&run.job_id) else { continue };
        let n = number(&run.payload);
        if !begun.insert(run.job_id) || evidence.is_unknown(&run.kind, Some(queue), n) {
            continue;
        }
        if let Some(before) = last.insert(queue, run)
            && number(&before.payload) > n
            // The start of a resumed worker's run may be recorded long after its claim.
            && claim(before) <= claim(run)
        {
            findings.breach(format!("queue {queue}: {before:?} began before {run:?}"));
        }
    }
}

/// No job may start before its time.
pub(super) fn times(evidence: &Evidence, findings: &mut Findings) {
    for run in evidence.runs.iter().filter(|run| run.began_at < run.run_at - TimeDelta::milliseconds(2)) {
        findings.breach(format!("too early: {run:?}"));
    }
}

/// Each run of a job must have the next attempt, except after the death of a worker or a lost connection. No run may
/// follow one that completed.
pub(super) fn attempts(evidence: &Evidence, findings: &mut Findings) {
    // An add with the same key starts the attempts from zero.
    let mut jobs: BTreeMap<(i64, i32), Vec<&Run>> = BTreeMap::new();
    for run in &evidence.runs {
        jobs.entry((run.job_id, run.revision)).or_default().push(run);
    }
    for ((_, revision), mut runs) in jobs {
        // Sorted by claim: the start of a run is recorded late if the connection is slow or the worker was frozen.
        runs.sort_by_key(|run| (run.attempt, claim(run), run.began_at));
        let first = runs[0];
        if revision == 0
            && first.attempt != 1
            && !is_accounted_for(evidence, 0, first)
            && !was_returned(evidence, first)
        {
            findings.breach(format!("the first run has a later attempt: {first:?}"));
        }
        for pair in runs.windows(2) {
            let (run, next) = (pair[0], pair[1]);
            let failed = run.ended_at.is_some() && !run.is_done;
            let is_next = next.attempt > run.attempt
                && (is_accounted_for(evidence, run.attempt, next) || was_returned(evidence, next));
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

/// Whether each attempt between `after` and that of the run was a claim that another worker ended before its task
/// started.
fn is_accounted_for(evidence: &Evidence, after: i32, run: &Run) -> bool {
    (after + 1..run.attempt).all(|attempt| {
        let is_it = |change: &&Change| change.job_id == run.job_id && change.attempts == attempt;
        evidence.changes.iter().filter(is_it).any(|change| !change.is_deleted && change.at < run.began_at)
    })
}

/// Whether a claim with the same attempt was returned before. A job whose key was used by another add while it was
/// claimed has no other attempt left.
fn was_returned(evidence: &Evidence, run: &Run) -> bool {
    let is_same = |change: &Change| change.job_id == run.job_id && change.attempts == run.attempt;
    evidence.changes.iter().any(|change| is_same(change) && !change.is_deleted && change.at < run.began_at)
}
