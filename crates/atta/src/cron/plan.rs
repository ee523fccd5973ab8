//! Decides what to do next, and which ticks were missed: from times, items and rows, without a clock or a database.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::Cron;
use super::moment::{Minute, Moment};

/// How many minutes a worker catches up after it was late or had no database, whatever the items' `fill` is. After a
/// longer gap (a sleeping machine) it acts as if it had not been running: ticks that `fill` covers are backfilled, the
/// others are dropped. Otherwise a laptop would have 480 jobs of an every-minute item in the morning.
const CATCH_UP: i64 = 5;

/// The longest time to sleep before reading the clock again. A timer does not notice that the clock was set, and on
/// Linux it stands still while the machine sleeps.
const NAP: Duration = Duration::from_secs(1);

/// The next step of the schedule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Sleep, then decide again.
    Wait(Duration),
    /// Schedule this minute.
    Schedule(Minute),
    /// The time has jumped: start over from the state in the database.
    Resume,
}

/// Decides the next step. `next` is the next minute to schedule. A minute may be scheduled again: the database ignores
/// it. `busy` is how long the schedule has been working without a rest. It may be late by that much in addition;
/// otherwise ticks that became due during a backfill would be lost.
pub(crate) fn step(now: DateTime<Utc>, next: Minute, busy: Duration) -> Step {
    if is_jump(now, next, busy) {
        return Step::Resume;
    }
    if now >= next.begin() {
        return Step::Schedule(next);
    }
    let left = (next.begin() - now).to_std().unwrap_or_default() + Duration::from_millis(1);
    Step::Wait(left.min(NAP))
}

/// Whether the clock shows a time far after `next`, or before it.
fn is_jump(now: DateTime<Utc>, next: Minute, busy: Duration) -> bool {
    let late = Minute::of(now).0.saturating_sub(next.0);
    let busy = i64::try_from(busy.as_secs().div_ceil(60)).unwrap_or(i64::MAX);
    !(-2..=CATCH_UP.saturating_add(busy)).contains(&late)
}

/// The minute from which an interrupted schedule goes on, if that is not too long ago.
pub(crate) fn unbroken(now: DateTime<Utc>, next: Option<Minute>) -> Option<Minute> {
    next.filter(|next| !is_jump(now, *next, Duration::ZERO))
}

/// How long to wait after a number of failures in a row: 0.2 s, then one and a half times as long each time, up to 10
/// s. The result is multiplied by 0.5 to 1.5, depending on `chance` (0 to 1), so that not all workers reconnect in the
/// same second. The limit is low because the time until the worker notices that the database is back counts against the
/// minutes that it catches up.
pub(crate) fn back_off(failures: u32, chance: f64) -> Duration {
    let pause = (0.2 * 1.5f64.powi(failures.min(30) as i32)).min(10.0);
    Duration::from_secs_f64(pause * (0.5 + chance))
}

/// What the database knows about an item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) known_since: DateTime<Utc>,
    pub(crate) last_execution: Option<DateTime<Utc>>,
}

/// The items that were scheduled for the future, each with the last minute: by a worker whose clock was wrong, by more
/// than clocks usually differ.
pub(crate) fn scheduled_ahead(
    known: &HashMap<String, Known>,
    now: DateTime<Utc>,
) -> Vec<(String, DateTime<Utc>)> {
    let is_ahead = |last: &DateTime<Utc>| *last - now > TimeDelta::minutes(1);
    let ahead = known.iter().filter_map(|(identifier, known)| {
        known.last_execution.filter(is_ahead).map(|last| (identifier.clone(), last))
    });
    ahead.collect()
}

/// The items of which ticks before `until` may have been missed, each with the first minute to check.
#[derive(Debug)]
pub(crate) struct Missed {
    items: Vec<(Arc<Cron>, Minute)>,
    next: Minute,
    until: Minute,
}

impl Missed {
    /// Determines the missed ticks at `start`. `known` is what the database knew before, `unbroken` the minute at which
    /// this process left off, and `since` the minute from which on it has had each item.
    pub(crate) fn new(
        items: &[Arc<Cron>],
        known: &HashMap<String, Known>,
        start: DateTime<Utc>,
        unbroken: Option<Minute>,
        since: &HashMap<String, Minute>,
    ) -> Missed {
        let until = Minute::not_before(start);
        let first = |item: &Cron| {
            let by_fill = known.get(item.identifier()).and_then(|known| fill_from(item, *known, start));
            let by_gap =
                unbroken.zip(since.get(item.identifier())).map(|(left_off, since)| left_off.max(*since));
            by_fill.into_iter().chain(by_gap).min().filter(|first| *first < until)
        };
        let items: Vec<_> = items.iter().filter_map(|item| Some((item.clone(), first(item)?))).collect();
        let next = items.iter().map(|(_, first)| *first).min().unwrap_or(until);
        Missed { items, next, until }
    }

    /// The next minute that was missed, starting with the oldest. Checks no more than `limit` minutes per call, so that
    /// a long search yields the thread now and then.
    pub(crate) fn next(&mut self, limit: usize) -> Option<(Minute, Vec<Arc<Cron>>)> {
        for _ in 0..limit {
            let minute = self.next;
            if minute >= self.until {
                return None;
            }
            self.next = minute.next();
            let items = self.items.iter().filter(|(_, first)| *first <= minute).map(|(item, _)| item);
            let due = due(items, minute);
            if !due.is_empty() {
                return Some((minute, due));
            }
        }
        Some((self.next, Vec::new()))
    }
}

/// The first minute that `fill` covers, after the last one that the database knows of.
fn fill_from(item: &Cron, known: Known, start: DateTime<Utc>) -> Option<Minute> {
    let period = item.options.fill.duration();
    if period.is_zero() {
        return None;
    }
    let reach = TimeDelta::from_std(period).ok().and_then(|period| start.checked_sub_signed(period));
    let not_done = match known.last_execution {
        Some(last) => Minute::of(last).next(),
        None => Minute::not_before(known.known_since),
    };
    Some(Minute::not_before(reach.unwrap_or(DateTime::<Utc>::MIN_UTC)).max(not_done))
}

/// The items that are due in a minute. The local time is computed once per time zone.
pub(crate) fn due<'a>(items: impl IntoIterator<Item = &'a Arc<Cron>>, minute: Minute) -> Vec<Arc<Cron>> {
    let mut moments = vec![(None, Moment::utc(minute))];
    let mut due = Vec::new();
    for item in items {
        let zone = item.options.time_zone;
        let index = moments.iter().position(|(other, _)| *other == zone).unwrap_or_else(|| {
            moments.push((zone, Moment::at(minute, zone)));
            moments.len() - 1
        });
        if item.matches_moment(&moments[index].1) {
            due.push(item.clone());
        }
    }
    due
}
