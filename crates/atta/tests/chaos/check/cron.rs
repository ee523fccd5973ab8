//! The crontab: each minute must have exactly one job.

use std::collections::{BTreeMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use super::{Evidence, Findings};

/// How many missed minutes the workers have to backfill when they start.
pub(crate) const MISSED_MINUTES: i64 = 10;

pub(super) fn twice(evidence: &Evidence, findings: &mut Findings) {
    let ticks = ticks(evidence);
    findings.ticks = ticks.len();
    for (minute, jobs) in ticks.iter().filter(|(_, jobs)| jobs.len() > 1) {
        findings.breach(format!("the minute {minute:?} has jobs {jobs:?}"));
    }
    if let Some(jobs) = ticks.get(&None) {
        findings.breach(format!("ticks without their minute: {jobs:?}"));
    }
}

/// No minute may be missing, from the first one that had to be backfilled to the last one before the end.
pub(super) fn gaps(evidence: &Evidence, findings: &mut Findings) {
    let minutes: Vec<DateTime<Utc>> = ticks(evidence).into_keys().flatten().collect();
    for pair in minutes.windows(2).filter(|pair| pair[1] - pair[0] != TimeDelta::minutes(1)) {
        findings.breach(format!("no tick between {} and {}", pair[0], pair[1]));
    }
    let (Some(first), Some(last)) = (minutes.first(), minutes.last()) else {
        return findings.breach("there was no tick at all".into());
    };
    let start = evidence.acks.first().map_or(evidence.until, |ack| ack.at);
    // The schedule ends with the first of the orderly shutdowns.
    if *first > start - TimeDelta::minutes(MISSED_MINUTES - 1)
        || *last < evidence.until - TimeDelta::minutes(2)
    {
        findings.breach(format!("ticks from {first} to {last} only"));
    }
}

fn ticks(evidence: &Evidence) -> BTreeMap<Option<DateTime<Utc>>, HashSet<i64>> {
    let mut ticks: BTreeMap<Option<DateTime<Utc>>, HashSet<i64>> = BTreeMap::new();
    for run in evidence.runs.iter().filter(|run| run.kind == "tick") {
        let payload: Value = serde_json::from_str(&run.payload).unwrap_or_default();
        let minute = payload["_cron"]["ts"].as_str().and_then(|ts| ts.parse().ok());
        ticks.entry(minute).or_default().insert(run.job_id);
    }
    ticks
}
