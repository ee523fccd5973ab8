//! Jobs with keys: the last write wins, except in the mode where the first one should; arrays are merged completely.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{Evidence, Findings, number};
use crate::ledger::Run;
use crate::work::Ack;

/// The modes in which a new payload replaces the old one.
const REPLACING: [&str; 2] = ["replace", "preserve"];

/// After a write to a key, no claim may return an older payload.
pub(super) fn stale(evidence: &Evidence, findings: &mut Findings) {
    let runs = evidence.runs_by_job();
    for ack in evidence.acks.iter().filter(|ack| REPLACING.contains(&ack.kind)) {
        let is_stale = |run: &&&Run| {
            let n = number(&run.payload);
            n < ack.n
                && run.claimed_at.is_some_and(|at| at > ack.at)
                && !evidence.is_unknown(ack.kind, None, n)
        };
        if let Some(run) = runs.get(&ack.job_id).and_then(|runs| runs.iter().find(is_stale)) {
            findings.breach(format!("an older payload ran after {ack:?}: {run:?}"));
        }
    }
}

/// The job that runs must have the values of the last write to its key. In the mode preserve, it must have kept its
/// time.
pub(super) fn last(evidence: &Evidence, findings: &mut Findings) {
    let mut keys: HashMap<&str, Vec<&Ack>> = HashMap::new();
    for ack in evidence.acks.iter().filter(|ack| REPLACING.contains(&ack.kind)) {
        keys.entry(ack.key.as_deref().unwrap_or_default()).or_default().push(ack);
    }
    let runs = evidence.runs_by_job();
    for (key, acks) in keys {
        let Some(last) = acks.last() else { continue };
        let is_it = |n: i64| n == last.n || evidence.is_unknown(last.kind, None, n);
        let ran = runs
            .get(&last.job_id)
            .is_some_and(|runs| runs.iter().any(|run| run.is_done && is_it(number(&run.payload))));
        let failed = evidence.left.get(&last.job_id).is_some_and(|left| is_it(number(&left.payload)));
        if !ran && !failed {
            findings.loss(format!("the last write to key {key} was lost: {last:?}"));
        }
        for pair in acks.windows(2) {
            let is_kept = pair[0].kind == "preserve" && pair[0].job_id == pair[1].job_id;
            if is_kept && pair[0].run_at != pair[1].run_at && !was_attempted(evidence, &runs, pair[1]) {
                findings.breach(format!("key {key}: the time was not kept: {pair:?}"));
            }
        }
    }
}

/// Whether an attempt was counted before a write to the key, which then sets a new time: a run had begun, or a worker
/// died between its claim and the start of the run.
fn was_attempted(evidence: &Evidence, runs: &HashMap<i64, Vec<&Run>>, ack: &Ack) -> bool {
    runs.get(&ack.job_id).is_some_and(|runs| runs[0].began_at < ack.at)
        || evidence.changes.iter().any(|change| change.job_id == ack.job_id && change.at < ack.at)
}

/// A job that was deduplicated must run with the values of its first add.
pub(super) fn first(evidence: &Evidence, findings: &mut Findings) {
    let mut first: HashMap<i64, &Ack> = HashMap::new();
    for ack in evidence.acks.iter().filter(|ack| ack.kind == "dedupe") {
        first.entry(ack.job_id).or_insert(ack);
    }
    for run in &evidence.runs {
        if let Some(ack) = first.get(&run.job_id)
            && number(&run.payload) > ack.n
        {
            findings.breach(format!("a later payload than that of {ack:?} ran: {run:?}"));
        }
    }
}

/// Every item of a merged array must be done, or be part of a job that failed permanently.
pub(super) fn items(evidence: &Evidence, findings: &mut Findings) {
    let mut ends: HashSet<i64> =
        evidence.runs.iter().flat_map(|run| run.items_done.iter().copied()).collect();
    for left in evidence.left.values() {
        if let Ok(Value::Array(items)) = serde_json::from_str(&left.payload) {
            ends.extend(items.iter().filter_map(|item| item["n"].as_i64()));
        }
    }
    for ack in &evidence.acks {
        for item in ack.items.iter().filter(|item| !ends.contains(item)) {
            findings.loss(format!("item {item} was lost: {ack:?}"));
        }
    }
}
