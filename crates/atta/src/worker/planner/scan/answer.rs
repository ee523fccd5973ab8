//! What a scan learns from the answers of picks.

use std::cmp::Ordering;
use std::time::Instant;

use super::level::{Level, Reach};
use super::{EVERYTHING, LevelKey, Request, Scan, Seen};

/// More levels than this are not remembered: those that brought nothing for the longest time are forgotten. If they
/// have jobs, the next search finds them again.
const MOST_LEVELS: usize = 256;

impl Scan {
    /// A pick was answered; its jobs are still to be decoded.
    pub(crate) fn on_seen(&mut self, now: Instant, batch: u64, request: &Request, seen: Seen) {
        self.undelivered.extend(seen.first.map(|first| (batch, first, now)));
        let total: usize = seen.levels.iter().map(|(count, _)| count).sum();
        self.is_full = total >= request.count;
        self.limited_to[request.kind as usize] = request.before;
        let last_reached = seen.levels.iter().rposition(|(count, _)| *count > 0);
        for (index, asked) in request.levels.iter().enumerate().take(seen.levels.len()) {
            let Some(level) = self.levels.get_mut(&asked.key) else { continue };
            let reach = match Some(index).cmp(&last_reached) {
                Ordering::Greater if self.is_full => Reach::NotRead,
                Ordering::Equal if self.is_full => Reach::Cut,
                _ => Reach::ToTheEnd,
            };
            level.on_seen(now, request, &seen, index, reach);
        }
        if request.from_start {
            self.starts[request.kind as usize].on_back(now, seen.took);
        }
        let is_up_to_date = self.pick.on_answered();
        self.is_known |= is_up_to_date && !request.gaps.is_empty();
        self.gaps.on_searched(&request.gaps, &seen.found);
        self.add_levels(seen.found, now);
        let freed = std::mem::take(&mut self.freed_meanwhile);
        self.rewind(now, &freed);
    }

    /// The jobs of a pick are read, and wait to start.
    pub(crate) fn on_delivered(&mut self, batch: u64) {
        self.undelivered.retain(|(of, _, _)| *of != batch);
    }

    /// A pick failed, and nothing is known of what it has seen.
    pub(crate) fn on_error(&mut self) {
        self.pick.on_answered();
        self.limited_to = [EVERYTHING; 2];
        self.freed_meanwhile.clear();
        self.levels.values_mut().for_each(Level::forget);
        self.starts = Default::default();
        self.hint();
    }

    fn add_levels(&mut self, found: Vec<LevelKey>, now: Instant) {
        for key in found.into_iter().filter(|key| self.tasks.contains(&key.task_identifier)) {
            self.levels.entry(key).or_insert_with(|| Level::new(now));
        }
        // Those that are asked for may have jobs.
        while self.levels.len() > MOST_LEVELS {
            let idle = self.levels.iter().filter(|(_, level)| !level.is_asked());
            let oldest = idle.min_by_key(|(_, level)| level.brought_at);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { return };
            self.levels.remove(&key);
        }
    }
}
