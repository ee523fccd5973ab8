//! Virtual time, and what takes place when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Time passes only from one entry of the agenda to the next.
pub(super) struct Agenda<T> {
    base: Instant,
    now: Duration,
    sequence: u64,
    /// The next time is at the top, with the place of its entry.
    times: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    /// Entries stay in their places: they are large, and a heap moves what it has.
    entries: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Agenda<T> {
    pub(super) fn new() -> Agenda<T> {
        // Times before the start can be subtracted, too.
        let base = Instant::now() + Duration::from_secs(3600);
        Agenda {
            base,
            now: Duration::ZERO,
            sequence: 0,
            times: BinaryHeap::new(),
            entries: Vec::new(),
            free: Vec::new(),
        }
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
        let place = self.free.pop().unwrap_or(self.entries.len());
        match self.entries.get_mut(place) {
            Some(free) => *free = Some(entry),
            None => self.entries.push(Some(entry)),
        }
        self.times.push(Reverse((at.max(self.now), self.sequence, place)));
    }

    /// Goes on to the next entry.
    pub(super) fn next(&mut self) -> Option<T> {
        let Reverse((at, _, place)) = self.times.pop()?;
        self.now = at;
        self.free.push(place);
        self.entries[place].take()
    }
}
