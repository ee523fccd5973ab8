//! Workers that were declared dead: rightly only if they had ended, or could be silent while others were not.
//!
//! When everybody is cut off together (PostgreSQL is stopped, the proxy refuses everyone) nobody may be declared dead, and
//! neither may a worker whose rows somebody locks or whose handlers block their threads.

use chrono::{DateTime, TimeDelta, Utc};

use super::{Evidence, Findings};
use crate::faults::Done;
use crate::schedule::{THRESHOLD, WORKERS};

/// Whoever is declared dead was silent for a threshold before that. Whoever declares it dead may be late in doing so.
fn window() -> TimeDelta {
    TimeDelta::from_std(3 * THRESHOLD).unwrap_or(TimeDelta::MAX)
}

pub(super) fn wrong(evidence: &Evidence, findings: &mut Findings) {
    for burial in evidence.burials.iter().filter(|burial| burial.at > evidence.since) {
        let Some(instance) = evidence.instances.get(&burial.worker_id) else { continue };
        let has_ended = evidence.history.ends.get(instance).is_some_and(|end| *end <= burial.at);
        if !has_ended && !may_be_silent(evidence, instance, burial.at) {
            findings.breach(format!("{instance} lived and was declared dead: {burial:?}"));
        }
    }
}

/// A fault that still goes on is not in the list yet, so the last seconds are judged later.
fn may_be_silent(evidence: &Evidence, instance: &str, at: DateTime<Utc>) -> bool {
    let name = instance.split('.').next().unwrap_or_default();
    let Some(worker) = WORKERS.iter().position(|one| *one == name) else { return true };
    let start = evidence.history.starts.get(instance).copied().unwrap_or(DateTime::UNIX_EPOCH);
    let can_be_it = |done: &Done| {
        let is_near = done.from <= at && done.to >= at - window();
        // The process that stood still, and was killed then, is not the one that was started after it.
        let hits_instance = if done.fault.freezes(worker) { done.from >= start } else { done.to >= start };
        is_near && hits_instance && done.fault.may_silence(worker)
    };
    evidence.until - at < TimeDelta::seconds(25) || evidence.faults.iter().any(can_be_it)
}
