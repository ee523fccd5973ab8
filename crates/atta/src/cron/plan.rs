//! What to do next, and what was missed: decided from times, items and rows, with no clock and no database.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::Cron;
use super::moment::{Minute, Moment};

/// How many minutes a worker that was late, or without its database, makes up for whatever the items say. A longer
/// gap (a machine asleep) is as if it had not run: what `fill` covers is made up for, the rest is over. So nobody
/// finds 480 jobs of an every-minute item on a laptop in the morning.
const CATCH_UP: i64 = 5;

/// How long to sleep at most before the clock is looked at again. A timer does not see that the clock was set, and on
/// Linux it stands still while the machine sleeps.
const NAP: Duration = Duration::from_secs(1);

/// What to do now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Sleep, then look again.
    Wait(Duration),
    /// This minute's turn.
    Schedule(Minute),
    /// Time has jumped: begin anew from what the database knows.
    Resume,
}

/// `next` is the minute whose turn it is. Minutes that have been scheduled can be offered again: the database knows.
/// `busy` is how long the schedule has been at work without a rest: so much later than usual it may be, or else the
/// ticks that came due while it made up for others were lost.
pub(super) fn step(now: DateTime<Utc>, next: Minute, busy: Duration) -> Step {
    if is_jump(now, next, busy) {
        return Step::Resume;
    }
    if now >= next.begin() {
        return Step::Schedule(next);
    }
    let left = (next.begin() - now).to_std().unwrap_or_default() + Duration::from_millis(1);
    Step::Wait(left.min(NAP))
}

/// Whether the clock shows far more than what `next` had led to expect, or less.
fn is_jump(now: DateTime<Utc>, next: Minute, busy: Duration) -> bool {
    let late = Minute::of(now).0.saturating_sub(next.0);
    let busy = i64::try_from(busy.as_secs().div_ceil(60)).unwrap_or(i64::MAX);
    !(-2..=CATCH_UP.saturating_add(busy)).contains(&late)
}

/// Where an interrupted schedule goes on, if that is not too long ago.
pub(super) fn unbroken(now: DateTime<Utc>, next: Option<Minute>) -> Option<Minute> {
    next.filter(|next| !is_jump(now, *next, Duration::ZERO))
}

/// How long to wait after so many failures in a row: 0.2 s, then half as much again each time, up to 10 s; times
/// 0.5 to 1.5, as `chance` (0 to 1) will have it, so that not all come back in the same second. No longer, because the
/// time until it is noticed that the database is back counts against what is made up for.
pub(super) fn back_off(failures: u32, chance: f64) -> Duration {
    let pause = (0.2 * 1.5f64.powi(failures.min(30) as i32)).min(10.0);
    Duration::from_secs_f64(pause * (0.5 + chance))
}

/// What the database knows of an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) known_since: DateTime<Utc>,
    pub(super) last_execution: Option<DateTime<Utc>>,
}

/// The items that were scheduled ahead of time, each with the last minute: by somebody whose clock was wrong, by more than
/// clocks usually differ.
pub(super) fn scheduled_ahead(
    known: &HashMap<String, Known>,
    now: DateTime<Utc>,
) -> Vec<(String, DateTime<Utc>)> {
    let is_ahead = |last: &DateTime<Utc>| *last - now > TimeDelta::minutes(1);
    let ahead = known.iter().filter_map(|(identifier, known)| {
        known.last_execution.filter(is_ahead).map(|last| (identifier.clone(), last))
    });
    ahead.collect()
}

/// The items of which ticks before `until` may have been missed, each with the minute from which on.
#[derive(Debug)]
pub(super) struct Missed {
    items: Vec<(Arc<Cron>, Minute)>,
    next: Minute,
    until: Minute,
}

impl Missed {
    /// At `start`, with what the database knew before; `unbroken` is where this process had left off, and `since` the
    /// minutes from which on it has had its items.
    pub(super) fn new(
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

    /// The next minute that was missed, from the oldest on. Looks at no more than `limit` minutes, so that a long
    /// way leaves the thread free now and then.
    pub(super) fn next(&mut self, limit: usize) -> Option<(Minute, Vec<Arc<Cron>>)> {
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

/// The first minute that `fill` covers, after the last that the database knows of.
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

/// The items that are due in a minute. Each clock is read once.
pub(super) fn due<'a>(items: impl IntoIterator<Item = &'a Arc<Cron>>, minute: Minute) -> Vec<Arc<Cron>> {
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
