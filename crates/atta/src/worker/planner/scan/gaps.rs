//! The gaps between known levels, in which a search finds the others, and whether a search is needed.
//!
//! | state | event | next state |
//! |---|---|---|
//! | any | a hint | `Needed` (`Done` if no task is held) |
//! | `Done`, `IfMissing` | jobs were announced | `IfMissing` (`Needed` if no level is known) |
//! | `Needed` | jobs were announced | `Needed` |
//! | `IfMissing` | picks found all announced jobs | `Done` |
//! | `IfMissing` | picks did not find them all | `Needed` |
//! | `Needed` | a pick was sent, with a search | `Done` |
//!
//! Other events leave the state as it is.

use std::sync::Arc;

use super::request::{Gap, Kind, LevelKey};

/// A search returns at most this many levels of one gap: see `find_levels.sql`.
const FOUND_AT_ONCE: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    /// All gaps were searched since the last hint.
    Done,
    /// The next pick searches all gaps.
    Needed,
    /// Jobs were announced. They are likely to be in known levels, so gaps are searched only if picks do not find them
    /// all.
    IfMissing,
}

#[derive(Debug)]
pub(super) struct Gaps {
    search: Search,
    /// What the last search did not reach. The next one continues there, so that searches end, however many levels
    /// there are.
    rest: Vec<Gap>,
}

impl Gaps {
    pub(super) fn new() -> Gaps {
        Gaps { search: Search::Needed, rest: Vec::new() }
    }

    /// There may be new levels.
    pub(super) fn hint(&mut self, has_tasks: bool) {
        self.search = if has_tasks { Search::Needed } else { Search::Done };
    }

    /// Jobs were announced.
    pub(super) fn on_announced(&mut self, has_levels: bool) {
        if self.search != Search::Needed {
            self.search = if has_levels { Search::IfMissing } else { Search::Needed };
        }
    }

    /// Picks have found all announced jobs, or not. Returns whether this was awaited.
    pub(super) fn settle_announced(&mut self, found_all: bool) -> bool {
        let is_awaited = self.search == Search::IfMissing;
        if is_awaited {
            self.search = if found_all { Search::Done } else { Search::Needed };
        }
        is_awaited
    }

    /// Whether the next pick searches gaps.
    pub(super) fn is_search_due(&self) -> bool {
        self.search == Search::Needed || !self.rest.is_empty()
    }

    /// Whether the next pick searches gaps, or announced jobs are not found yet.
    pub(super) fn is_asked(&self) -> bool {
        self.search != Search::Done || !self.rest.is_empty()
    }

    /// The gaps that a pick searches. It is sent now.
    pub(super) fn take<'a>(
        &mut self,
        tasks: &[Arc<str>],
        levels: impl Iterator<Item = &'a LevelKey> + Clone,
    ) -> Vec<Gap> {
        let rest = std::mem::take(&mut self.rest);
        if self.search != Search::Needed {
            return rest;
        }
        self.search = Search::Done;
        between(tasks, levels)
    }

    /// A pick has searched these gaps, and found these levels.
    pub(super) fn on_searched(&mut self, gaps: &[Gap], found: &[LevelKey]) {
        self.rest.extend(rest_of(gaps, found));
    }

    /// Other tasks are held now.
    pub(super) fn forget_rest(&mut self) {
        self.rest.clear();
    }
}

/// All gaps before, between and after the levels that are known.
fn between<'a>(tasks: &[Arc<str>], levels: impl Iterator<Item = &'a LevelKey> + Clone) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for kind in [Kind::Plain, Kind::Flagged] {
        for task in tasks {
            let is_of_task = |key: &&LevelKey| key.kind == kind && key.task_identifier == *task;
            let known = levels.clone().filter(is_of_task).map(|key| i32::from(key.priority));
            let mut after = i32::from(i16::MIN) - 1;
            for before in known.chain([i32::from(i16::MAX) + 1]) {
                if before - after > 1 {
                    gaps.push(Gap { kind, task_identifier: task.clone(), after, before });
                }
                after = before;
            }
        }
    }
    gaps
}

/// The parts of gaps in which a search did not get to the end.
fn rest_of(gaps: &[Gap], found: &[LevelKey]) -> Vec<Gap> {
    let rest = gaps.iter().filter_map(|gap| {
        let is_inside = |key: &&LevelKey| {
            let priority = i32::from(key.priority);
            key.kind == gap.kind
                && key.task_identifier == gap.task_identifier
                && gap.after < priority
                && priority < gap.before
        };
        let inside = found.iter().filter(is_inside).map(|key| i32::from(key.priority));
        let (count, last) = (inside.clone().count(), inside.max()?);
        (count >= FOUND_AT_ONCE).then(|| Gap { after: last, ..gap.clone() })
    });
    rest.collect()
}

#[cfg(test)]
mod tests {
    use super::Search::{Done, IfMissing, Needed};
    use super::*;

    #[test]
    fn each_event_leads_to_one_state() {
        type Event = (&'static str, fn(&mut Gaps), [Search; 3]);
        // The event, and the states that follow Done, Needed and IfMissing.
        let table: [Event; 7] = [
            ("hint", |gaps| gaps.hint(true), [Needed, Needed, Needed]),
            ("hint, no task is held", |gaps| gaps.hint(false), [Done, Done, Done]),
            ("announced", |gaps| gaps.on_announced(true), [IfMissing, Needed, IfMissing]),
            ("announced, no level is known", |gaps| gaps.on_announced(false), [Needed, Needed, Needed]),
            ("all found", |gaps| _ = gaps.settle_announced(true), [Done, Needed, Done]),
            ("not all found", |gaps| _ = gaps.settle_announced(false), [Done, Needed, Needed]),
            ("sent", |gaps| _ = gaps.take(&[], [].iter()), [Done, Done, IfMissing]),
        ];
        for (event, apply, expected) in table {
            for (before, after) in [Done, Needed, IfMissing].into_iter().zip(expected) {
                let mut gaps = Gaps { search: before, rest: Vec::new() };
                apply(&mut gaps);
                assert_eq!(gaps.search, after, "{event}, {before:?}");
            }
        }
    }

    #[test]
    fn a_search_continues_where_the_last_one_ended() {
        let tasks: [Arc<str>; 1] = ["t".into()];
        let level = |priority| LevelKey { kind: Kind::Plain, priority, task_identifier: "t".into() };
        let found: Vec<LevelKey> = (1..=FOUND_AT_ONCE as i16).map(level).collect();
        let mut gaps = Gaps::new();
        let all = gaps.take(&tasks, [].iter());
        assert!(all.len() == 2 && !gaps.is_asked(), "one gap of each kind");
        gaps.on_searched(&all, &found);
        assert!(gaps.is_search_due());
        let rest = gaps.take(&tasks, found.iter());
        assert_eq!(rest, [Gap { after: FOUND_AT_ONCE as i32, ..all[0].clone() }]);
        gaps.on_searched(&rest, &[]);
        assert!(!gaps.is_search_due());
    }
}
