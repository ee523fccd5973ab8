//! Virtual time, and what takes place when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

/// Time passes only from one entry of the agenda to the next.
pub(super) struct Agenda<T> {
    base: Instant,
    now: Duration,
    sequence: u64,
    /// In boxes: entries are large, and a tree moves them.
    entries: BTreeMap<u64, Box<T>>,
    times: BinaryHeap<Reverse<(Duration, u64)>>,
}

impl<T> Agenda<T> {
    pub(super) fn new() -> Agenda<T> {
        // Times before the start can be subtracted, too.
        let base = Instant::now() + Duration::from_secs(3600);
        Agenda { base, now: Duration::ZERO, sequence: 0, entries: BTreeMap::new(), times: BinaryHeap::new() }
    }

    /// The time since the start.
    pub(super) fn now(&self) -> Duration {
        self.now
    }

    /// The present as the planner sees it.
    pub(super) fn instant(&self) -> Instant {
        self.base + self.now
    }

    /// The time since the start of a moment that the planner has named.
    pub(super) fn since_start(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.base)
    }

    /// Entries of the same time take place in the order in which they were added.
    pub(super) fn add(&mut self, at: Duration, entry: T) {
        self.sequence += 1;
        self.entries.insert(self.sequence, Box::new(entry));
        self.times.push(Reverse((at.max(self.now), self.sequence)));
    }

    /// Goes on to the next entry.
    pub(super) fn next(&mut self) -> Option<T> {
        let Reverse((at, sequence)) = self.times.pop()?;
        self.now = at;
        self.entries.remove(&sequence).map(|entry| *entry)
    }
}
