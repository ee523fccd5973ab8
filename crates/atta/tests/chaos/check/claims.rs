//! Durable claims: only the owner may end a claim, after its run has ended, or a worker that declared the owner dead.

use std::collections::HashMap;

use chrono::TimeDelta;

use super::{Evidence, Findings};
use crate::ledger::{Change, Run};

/// The release of a resumed worker must change nothing, because the claim belongs to another worker by then.
pub(super) fn foreign(evidence: &Evidence, findings: &mut Findings) {
    for change in evidence.changes.iter().filter(|change| !is_own(evidence, change)) {
        let is_declared_dead = evidence.declarations.iter().any(|declaration| {
            declaration.worker_id == change.owner && declaration.at <= change.at + TimeDelta::seconds(1)
        });
        // The test unlocks jobs of Node's worker, as an operator has to.
        let is_unlocked = !is_ours(change) && change.instance == crate::ledger::NAME;
        let is_right = !change.is_deleted && (is_declared_dead || is_unlocked);
        if !is_right && !is_sent_by_a_dead_node(evidence, change) {
            findings.breach(format!("ended another's claim: {change:?}"));
        }
    }
}

/// Graphile deletes jobs by id alone. A statement that one of its workers sent before it was killed may arrive after
/// its locks were removed, and then ends the claim of the job's next worker.
fn is_sent_by_a_dead_node(evidence: &Evidence, change: &Change) -> bool {
    let end = evidence.history.ends.get(&change.instance);
    change.instance.starts_with("node") && end.is_some_and(|end| *end <= change.at)
}

/// A worker must release a job only after its run has ended.
pub(super) fn early(evidence: &Evidence, findings: &mut Findings) {
    let mut runs: HashMap<(i64, i32, &str), Vec<&Run>> = HashMap::new();
    for run in &evidence.runs {
        runs.entry((run.job_id, run.attempt, &run.worker_id)).or_default().push(run);
    }
    for change in evidence.changes.iter().filter(|change| is_ours(change) && is_own(evidence, change)) {
        let runs = runs.get(&(change.job_id, change.attempts, &change.owner)).into_iter().flatten();
        let is_going_on =
            |run: &&&Run| run.began_at < change.at && run.ended_at.is_none_or(|at| at > change.at);
        for run in runs.filter(is_going_on) {
            findings.breach(format!("released before its end: {change:?} of {run:?}"));
        }
    }
}

fn is_ours(change: &Change) -> bool {
    change.owner.starts_with("atta-")
}

pub(super) fn is_own(evidence: &Evidence, change: &Change) -> bool {
    match is_ours(change) {
        true => evidence.instances.get(&change.owner).is_some_and(|instance| *instance == change.instance),
        false => change.instance.starts_with("node"),
    }
}
