//! Tests of planning, without any passing of time.

use std::sync::Arc;
use std::time::Duration;

use super::{at, item};
use crate::cron::Cron;
use crate::cron::moment::Minute;
use crate::cron::plan::{Known, Missed, Step, back_off, due, step, unbroken};

/// The busy time of a schedule that has just read the clock.
const REST: Duration = Duration::ZERO;

fn minute(time: &str) -> Minute {
    Minute::of(at(time))
}

fn items(lines: &[&str]) -> Vec<Arc<Cron>> {
    lines.iter().map(|line| Arc::new(item(line))).collect()
}

fn known(identifier: &str, known_since: &str, last_execution: Option<&str>) -> (String, Known) {
    (identifier.into(), Known { known_since: at(known_since), last_execution: last_execution.map(at) })
}

/// The minutes that are backfilled at `start`, with their items: `08:01 a b`.
fn missed(
    items: &[Arc<Cron>],
    known: impl IntoIterator<Item = (String, Known)>,
    start: &str,
    left_off: Option<&str>,
) -> Vec<String> {
    let since = items.iter().map(|item| (item.identifier().to_owned(), minute("2026-03-01T00:00"))).collect();
    let mut missed =
        Missed::new(items, &known.into_iter().collect(), at(start), left_off.map(minute), &since);
    let mut list = Vec::new();
    while let Some((minute, due)) = missed.next(7) {
        let identifiers: Vec<&str> = due.iter().map(|item| item.identifier()).collect();
        if !due.is_empty() {
            list.push(format!("{} {}", minute.begin().format("%H:%M"), identifiers.join(" ")));
        }
    }
    list
}

#[test]
fn a_tick_waits_for_its_minute_but_reads_the_clock_every_second() {
    let next = minute("2026-03-01T08:01");
    assert_eq!(step(at("2026-03-01T08:00:10"), next, REST), Step::Wait(Duration::from_secs(1)));
    assert_eq!(step(at("2026-03-01T08:00:59.500"), next, REST), Step::Wait(Duration::from_millis(501)));
    assert_eq!(step(at("2026-03-01T08:01:00"), next, REST), Step::Schedule(next));
}

#[test]
fn a_late_schedule_takes_minute_after_minute() {
    let mut next = minute("2026-03-01T08:01");
    for _ in 0..4 {
        assert_eq!(step(at("2026-03-01T08:04:30"), next, REST), Step::Schedule(next));
        next = next.next();
    }
    assert_eq!(step(at("2026-03-01T08:04:30"), next, REST), Step::Wait(Duration::from_secs(1)));
}

#[test]
fn after_a_sleep_of_the_machine_the_schedule_starts_again() {
    assert_eq!(step(at("2026-03-01T16:00:00"), minute("2026-03-01T08:01"), REST), Step::Resume);
    assert_eq!(unbroken(at("2026-03-01T16:00:00"), Some(minute("2026-03-01T08:01"))), None);
}

/// A long backfill delays the first ticks of items that need no backfill.
#[test]
fn no_tick_is_lost_while_others_are_backfilled() {
    let (now, next) = (at("2026-03-01T08:31:30"), minute("2026-03-01T08:01"));
    assert_eq!(step(now, next, REST), Step::Resume);
    assert_eq!(step(now, next, Duration::from_secs(29 * 60)), Step::Schedule(next));
    assert_eq!(step(now, next, Duration::MAX), Step::Schedule(next));
}

#[test]
fn a_clock_that_is_set_back_restarts_the_schedule() {
    let next = minute("2026-03-01T08:01");
    assert_eq!(step(at("2026-03-01T07:59:59"), next, REST), Step::Wait(Duration::from_secs(1)));
    assert_eq!(step(at("2026-03-01T07:00:00"), next, REST), Step::Resume);
}

#[test]
fn fill_reaches_back_to_the_last_execution_at_most() {
    let items = items(&["*/10 * * * * a ?fill=30m", "*/10 * * * * b ?fill=1h", "*/10 * * * * c"]);
    let all =
        || [known("a", "2026-01-01T00:00", None), known("b", "2026-01-01T00:00", Some("2026-03-01T07:20"))];
    let list = missed(&items, all(), "2026-03-01T08:00:30", None);
    assert_eq!(list, ["07:30 b", "07:40 a b", "07:50 a b", "08:00 a b"]);
    // A start exactly on a minute does not backfill that minute, which is scheduled normally.
    let list = missed(&items, all(), "2026-03-01T08:00:00", None);
    assert_eq!(list, ["07:30 a b", "07:40 a b", "07:50 a b"]);
}

#[test]
fn new_items_are_not_backfilled() {
    let items = items(&["* * * * * a ?fill=1h"]);
    assert_eq!(missed(&items, [], "2026-03-01T08:00:30", None), Vec::<String>::new());
    let fresh = known("a", "2026-03-01T07:58:30", None);
    assert_eq!(missed(&items, [fresh], "2026-03-01T08:00:30", None), ["07:59 a", "08:00 a"]);
}

#[test]
fn a_watermark_in_the_future_leaves_nothing_to_fill() {
    let items = items(&["* * * * * a ?fill=1h"]);
    let ahead = known("a", "2026-01-01T00:00", Some("2026-03-02T08:00"));
    assert_eq!(missed(&items, [ahead], "2026-03-01T08:00:30", None), Vec::<String>::new());
}

#[test]
fn a_short_outage_loses_no_tick_and_a_long_one_only_ticks_beyond_fill() {
    let items = items(&["* * * * * a", "* * * * * b ?fill=1h"]);
    let rows =
        || [known("a", "2026-01-01T00:00", None), known("b", "2026-01-01T00:00", Some("2026-03-01T07:57"))];
    let start = "2026-03-01T08:00:30";
    let left_off = unbroken(at(start), Some(minute("2026-03-01T07:58"))).map(|minute| minute.begin());
    assert_eq!(left_off, Some(at("2026-03-01T07:58")));
    let list = missed(&items, rows(), start, Some("2026-03-01T07:58"));
    assert_eq!(list, ["07:58 a b", "07:59 a b", "08:00 a b"]);
    assert_eq!(missed(&items, rows(), start, None), ["07:58 b", "07:59 b", "08:00 b"]);
}

#[test]
fn a_fill_longer_than_all_time_starts_when_the_item_was_first_known() {
    let items = [Arc::new(item("0 0 * * * a").fill(crate::cron::CrontabFill::weeks(u64::MAX)))];
    let old = known("a", "2026-02-01T00:00", None);
    assert_eq!(missed(&items, [old], "2026-03-01T08:00:30", None).len(), 29);
}

#[test]
fn several_items_of_one_task_are_all_due() {
    let items =
        items(&["* * * * * t ?id=a", "* * * * * t ?id=b&tz=Asia/Tokyo", "0 17 * * * t ?id=c&tz=Asia/Tokyo"]);
    assert_eq!(due(&items, minute("2026-03-01T08:00")).len(), 3);
    assert_eq!(due(&items, minute("2026-03-01T17:00")).len(), 2);
}

#[test]
fn the_back_off_grows_to_ten_seconds() {
    assert_eq!(back_off(0, 0.5), Duration::from_millis(200));
    assert_eq!(back_off(1, 0.5), Duration::from_millis(300));
    assert_eq!(back_off(u32::MAX, 0.5), Duration::from_secs(10));
    assert_eq!(back_off(100, 1.0), Duration::from_secs(15));
}

#[test]
fn ten_thousand_items_are_matched_in_no_time() {
    let items: Vec<_> = (0..10_000)
        .map(|n| Arc::new(item(&format!("{} {} * * {} t ?id=i{n}", n % 60, n % 24, n % 7))))
        .collect();
    let start = std::time::Instant::now();
    let count = due(&items, minute("2026-03-01T08:20")).len();
    assert!(count > 0);
    // A thousand times as long as it should take, so that only a wrong order of growth fails here.
    assert!(start.elapsed() < Duration::from_secs(1));
}
