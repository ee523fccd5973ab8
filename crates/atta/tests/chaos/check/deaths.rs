//! Workers may be declared dead only if they had ended, or if a fault kept them from sending heartbeats while others
//! could.
//!
//! When all workers are cut off together (PostgreSQL is stopped, or the proxy refuses all connections), none may be
//! declared dead. Neither may a worker whose rows are locked by another transaction, or whose handlers block their
//! threads.

use chrono::{DateTime, TimeDelta, Utc};

use super::{Evidence, Findings};
use crate::faults::Done;
use crate::schedule::{THRESHOLD, WORKERS};

/// A worker sends no heartbeat for a threshold before it is declared dead, and the declaration may come late.
fn window() -> TimeDelta {
    TimeDelta::from_std(3 * THRESHOLD).unwrap_or(TimeDelta::MAX)
}

pub(super) fn wrong(evidence: &Evidence, findings: &mut Findings) {
    for declaration in evidence.declarations.iter().filter(|declaration| declaration.at > evidence.since) {
        let Some(instance) = evidence.instances.get(&declaration.worker_id) else { continue };
        let has_ended = evidence.history.ends.get(instance).is_some_and(|end| *end <= declaration.at);
        if !has_ended && !may_be_silent(evidence, instance, declaration.at) {
            findings.breach(format!("{instance} lived and was declared dead: {declaration:?}"));
        }
    }
}

/// A fault that is still going on is not in the list yet, so the last seconds are judged later.
fn may_be_silent(evidence: &Evidence, instance: &str, at: DateTime<Utc>) -> bool {
    let name = instance.split('.').next().unwrap_or_default();
    let Some(worker) = WORKERS.iter().position(|one| *one == name) else { return true };
    let start = evidence.history.starts.get(instance).copied().unwrap_or(DateTime::UNIX_EPOCH);
    let can_be_it = |done: &Done| {
        let is_near = done.from <= at && done.to >= at - window();
        // A process that was frozen and then killed is not the one that was started after it.
        let hits_instance = if done.fault.freezes(worker) { done.from >= start } else { done.to >= start };
        is_near && hits_instance && done.fault.may_silence(worker)
    };
    evidence.until - at < TimeDelta::seconds(25) || evidence.faults.iter().any(can_be_it)
}
