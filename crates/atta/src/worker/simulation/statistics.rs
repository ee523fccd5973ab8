//! What a run has cost: statements by kind, claims that found nothing, and how long jobs waited.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Statistics {
    pub(super) statements: BTreeMap<&'static str, usize>,
    /// Claims that found nothing, by kind.
    pub(super) in_vain: BTreeMap<&'static str, usize>,
    pub(super) duration: Duration,
    pub(super) starts: usize,
    due: HashMap<i64, Duration>,
    waits: Vec<Duration>,
}

impl Statistics {
    pub(super) fn on_sent(&mut self, name: &'static str) {
        *self.statements.entry(name).or_default() += 1;
    }

    pub(super) fn on_found_nothing(&mut self, name: &'static str) {
        *self.in_vain.entry(name).or_default() += 1;
    }

    pub(super) fn on_added(&mut self, id: i64, due: Duration) {
        self.due.insert(id, due);
    }

    /// Only the first start of a job counts as the end of its wait.
    pub(super) fn on_started(&mut self, id: i64, now: Duration) {
        self.starts += 1;
        if let Some(due) = self.due.remove(&id) {
            self.waits.push(now.saturating_sub(due));
        }
    }

    /// All statements but heartbeats, polls and those of cron, which come by the clock.
    pub(super) fn for_jobs(&self) -> usize {
        let by_clock = ["heartbeat", "poll", "cron"];
        self.statements.iter().filter(|(name, _)| !by_clock.contains(name)).map(|(_, count)| count).sum()
    }

    /// A row of the table for people: statements per job, claims that found nothing, and times from due to start.
    pub(super) fn row(&self, workers: usize, jobs: usize) -> String {
        let per_job = |names: &[&str]| {
            let count: usize = names.iter().filter_map(|name| self.statements.get(name)).sum();
            count as f64 / jobs as f64
        };
        let in_vain: usize = self.in_vain.values().sum();
        let claims: usize =
            ["pick", "durable claim"].iter().filter_map(|name| self.statements.get(name)).sum();
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        let wait = |part: f64| {
            let index = ((waits.len() as f64 * part) as usize).min(waits.len().saturating_sub(1));
            waits.get(index).copied().unwrap_or_default().as_secs_f64() * 1000.0
        };
        format!(
            "| {workers} | {jobs} | {:.1} s | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} % | {:.1} ms | {:.1} ms |",
            self.duration.as_secs_f64(),
            self.for_jobs() as f64 / jobs as f64,
            per_job(&["pick"]),
            per_job(&["durable claim"]),
            per_job(&["commit", "release", "promote"]),
            in_vain as f64 / claims.max(1) as f64 * 100.0,
            wait(0.5),
            wait(0.99),
        )
    }
}
