//! Checks what happened to acknowledged adds.

use std::collections::HashSet;

use super::{Evidence, Findings, is_node};

/// A job that is no longer in the table must have completed.
pub(super) fn lost(evidence: &Evidence, findings: &mut Findings) {
    let done: HashSet<i64> = evidence.runs.iter().filter(|run| run.is_done).map(|run| run.job_id).collect();
    let mut seen = HashSet::new();
    for ack in evidence.acks.iter().filter(|ack| evidence.has_all_runs(ack) && seen.insert(ack.job_id)) {
        if evidence.left.contains_key(&ack.job_id) {
            continue;
        }
        if ack.kind == "failing" {
            findings
                .breach(format!("job {} is gone, and should have failed permanently: {ack:?}", ack.job_id));
        } else if !done.contains(&ack.job_id) {
            findings
                .loss(format!("job {} is LOST: it is gone and no run of it was done: {ack:?}", ack.job_id));
        }
    }
}

/// Jobs of transactions that were rolled back must never run.
pub(super) fn ghosts(evidence: &Evidence, findings: &mut Findings) {
    for run in evidence.runs.iter().filter(|run| evidence.ghosts.contains(&run.job_id)) {
        findings.breach(format!("ran, and was rolled back: {run:?}"));
    }
}

/// Every acknowledged job that is still in the table must have failed permanently, with its error.
pub(super) fn ends(evidence: &Evidence, findings: &mut Findings) {
    let mut node: HashSet<i64> =
        evidence.runs.iter().filter(|run| is_node(run)).map(|run| run.job_id).collect();
    let by_hand = evidence.changes.iter().filter(|change| change.instance == crate::ledger::NAME);
    node.extend(by_hand.map(|change| change.job_id));
    let mut seen = HashSet::new();
    for ack in evidence.acks.iter().filter(|ack| seen.insert(ack.job_id)) {
        let Some(left) = evidence.left.get(&ack.job_id) else { continue };
        let verdict = match ack.kind {
            _ if left.is_locked => "is still locked",
            _ if left.attempts < left.max_attempts => "never came to an end",
            // If a worker of Node is killed, and its jobs are unlocked by the test, no error is written.
            _ if left.last_error.is_none() && !node.contains(&ack.job_id) => "failed without an error",
            "failing" if left.attempts > left.max_attempts => "had too many attempts",
            "failing" => continue,
            // A job that was running when its key was taken by another add is not retried.
            _ if ack.key.is_some() => continue,
            _ => "failed permanently, and should have been done",
        };
        findings.breach(format!("job {} {verdict}: {ack:?}", ack.job_id));
    }
}
