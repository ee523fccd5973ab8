//! The gaps between known levels, in which a search finds the others.

use std::sync::Arc;

use super::request::{Gap, Kind, LevelKey};

/// A search returns at most this many levels of one gap: see `find_levels.sql`.
const FOUND_AT_ONCE: usize = 16;

/// All gaps before, between and after the levels that are known.
pub(super) fn between<'a>(
    tasks: &[Arc<str>],
    levels: impl Iterator<Item = &'a LevelKey> + Clone,
) -> Vec<Gap> {
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
pub(super) fn rest_of(gaps: &[Gap], found: &[LevelKey]) -> Vec<Gap> {
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
