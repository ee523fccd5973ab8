//! What a pick asks for, and what it has seen.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::job::Order;

/// Jobs become visible in the order of their commits, not of their times. A position stays this far behind.
const OVERLAP: TimeDelta = TimeDelta::milliseconds(100);

/// Before every job.
pub(crate) const NOTHING: Order = (i16::MIN, DateTime::<Utc>::MIN_UTC, i64::MIN);

/// After every job.
pub(crate) const EVERYTHING: Order = (i16::MAX, DateTime::<Utc>::MAX_UTC, i64::MAX);

/// Which of the two indexes a pick reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Plain,
    Flagged,
}

/// A place in a level: after the job with this time and id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// None is before every time.
    pub(crate) run_at: Option<DateTime<Utc>>,
    pub(crate) id: i64,
}

impl Position {
    pub(crate) const START: Position = Position { run_at: None, id: i64::MIN };

    pub(super) fn after(order: Order) -> Position {
        Position { run_at: Some(order.1), id: order.2 }
    }

    pub(super) fn before(order: Order) -> Position {
        Position { run_at: Some(order.1), id: order.2.saturating_sub(1) }
    }

    pub(super) fn a_little_before(time: DateTime<Utc>) -> Position {
        Position { run_at: time.checked_sub_signed(OVERLAP), id: i64::MIN }
    }

    pub(super) fn order(self, priority: i16) -> Order {
        (priority, self.run_at.unwrap_or(DateTime::<Utc>::MIN_UTC), self.id)
    }
}

/// The jobs of one task and priority, with or without flags. Ordered by urgency within its kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LevelKey {
    pub(crate) kind: Kind,
    pub(crate) priority: i16,
    pub(crate) task_identifier: Arc<str>,
}

/// One level of a pick.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LevelRequest {
    pub(crate) key: LevelKey,
    pub(crate) after: Position,
    pub(crate) limit: usize,
}

/// Where to search for levels: between these priorities, both of them excluded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gap {
    pub(crate) kind: Kind,
    pub(crate) task_identifier: Arc<str>,
    pub(crate) after: i32,
    pub(crate) before: i32,
}

/// What a pick asks for: levels of one kind, and gaps of both.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) levels: Vec<LevelRequest>,
    pub(crate) gaps: Vec<Gap>,
    /// How many jobs at the most.
    pub(crate) count: usize,
    /// Only jobs that are more urgent than this.
    pub(crate) before: Order,
    pub(super) from_start: bool,
}

/// What a pick has seen, before its jobs are decoded.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// For each level of the request: how many jobs it brought, and the last of them.
    pub(crate) levels: Vec<(usize, Option<Order>)>,
    /// The most urgent of them.
    pub(crate) first: Option<Order>,
    pub(crate) found: Vec<LevelKey>,
    /// The database's time of the search for levels.
    pub(crate) now: Option<DateTime<Utc>>,
    pub(crate) took: Duration,
}

/// Right before this job.
pub(crate) fn before((priority, run_at, id): Order) -> Order {
    (priority, run_at, id.saturating_sub(1))
}

/// Levels of one priority share the number of jobs, or the first of them would take it all. Returns how many jobs the
/// pick asks for at the most.
pub(super) fn share(levels: &mut [LevelRequest], count: usize) -> usize {
    let mut first_group = None;
    for group in levels.chunk_by_mut(|one, other| one.key.priority == other.key.priority) {
        let limit = count.div_ceil(group.len()).max(1);
        group.iter_mut().for_each(|level| level.limit = limit);
        first_group.get_or_insert(limit * group.len());
    }
    first_group.unwrap_or(0).max(count)
}
