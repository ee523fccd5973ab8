//! What a scan asks for, and what it knows afterwards.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::*;

const MS: Duration = Duration::from_millis(1);

fn time(ms: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(1_000_000 + ms).unwrap()
}

fn at(priority: i16, ms: i64, id: i64) -> Order {
    (priority, time(ms), id)
}

fn level(kind: Kind, priority: i16, task: &str) -> LevelKey {
    LevelKey { kind, priority, task_identifier: task.into() }
}

/// A scan of one task that knows these plain priorities, all of them exhausted.
fn scan_of(priorities: &[i16]) -> Scan {
    let mut scan = Scan::new(true, Duration::from_secs(1));
    scan.set_tasks(&["t".into()]);
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    let found = priorities.iter().map(|priority| level(Kind::Plain, *priority, "t")).collect();
    scan.on_seen(Instant::now(), 0, &request, Seen { found, ..Seen::default() });
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    answer(&mut scan, 1, &request, &vec![None; request.levels.len()]);
    assert_eq!(scan.known_to(Instant::now()), EVERYTHING);
    scan
}

/// Each level brought one job, or nothing.
fn answer(scan: &mut Scan, batch: u64, request: &Request, last: &[Option<Order>]) {
    let levels = last.iter().map(|last| (usize::from(last.is_some()), *last)).collect();
    let first = last.iter().flatten().min().copied();
    scan.on_seen(Instant::now(), batch, request, Seen { levels, first, took: MS, ..Seen::default() });
    scan.on_delivered(batch);
}

fn priorities(request: &Request) -> Vec<i16> {
    request.levels.iter().map(|level| level.key.priority).collect()
}

fn job(order: Order) -> Arc<Job> {
    Arc::new(Job::for_tests(order, "t"))
}

#[test]
fn nothing_is_known_before_the_first_answer() {
    let mut scan = Scan::new(true, Duration::from_secs(1));
    scan.set_tasks(&["t".into()]);
    assert_eq!(scan.known_to(Instant::now()), NOTHING);
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    assert!(request.levels.is_empty());
    // Both kinds, from the first priority to the last.
    assert_eq!(request.gaps.len(), 2);
    assert_eq!((request.gaps[0].after, request.gaps[0].before), (-32769, 32768));
    assert!(!scan.may_send(Instant::now(), EVERYTHING), "one pick at a time");
    scan.on_seen(Instant::now(), 1, &request, Seen::default());
    assert_eq!(scan.known_to(Instant::now()), EVERYTHING);
    assert!(!scan.has_more());
}

#[test]
fn a_level_that_was_found_is_unknown_until_it_is_read() {
    let mut scan = Scan::new(true, Duration::from_secs(1));
    scan.set_tasks(&["t".into()]);
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    scan.on_seen(
        Instant::now(),
        1,
        &request,
        Seen { found: vec![level(Kind::Plain, 3, "t")], ..Seen::default() },
    );
    assert_eq!(scan.known_to(Instant::now()), Position::START.order(3));
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    assert_eq!(priorities(&request), [3]);
    assert!(request.gaps.is_empty(), "the gaps were searched to their end");
    answer(&mut scan, 2, &request, &[None]);
    assert_eq!(scan.known_to(Instant::now()), EVERYTHING);
}

#[test]
fn a_full_pick_knows_as_far_as_it_came_and_the_next_goes_on_there() {
    let mut scan = scan_of(&[0, 5]);
    scan.hint();
    let request = scan.send(Instant::now(), 1, EVERYTHING);
    assert_eq!((priorities(&request), request.count), (vec![0, 5], 1));
    answer(&mut scan, 2, &request, &[Some(at(0, 10, 7)), None]);
    assert_eq!(scan.known_to(Instant::now()), at(0, 10, 7));
    let request = scan.send(Instant::now(), 1, EVERYTHING);
    assert_eq!(request.levels[0].after, Position { run_at: Some(time(10)), id: 7 });
    answer(&mut scan, 3, &request, &[None, None]);
    assert_eq!(scan.known_to(Instant::now()), EVERYTHING);
}

#[test]
fn what_is_picked_and_not_delivered_is_not_known() {
    let mut scan = scan_of(&[0]);
    scan.hint();
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    let seen = Seen { levels: vec![(1, Some(at(0, 10, 7)))], first: Some(at(0, 10, 7)), ..Seen::default() };
    scan.on_seen(Instant::now(), 2, &request, seen);
    assert_eq!(scan.known_to(Instant::now()), at(0, 10, 6));
    scan.on_delivered(2);
    assert_eq!(scan.known_to(Instant::now()), EVERYTHING);
}

#[test]
fn jobs_that_a_batch_frees_are_asked_for_again() {
    let mut scan = scan_of(&[0]);
    scan.begin_freeing(Instant::now(), 4, vec![job(at(0, 10, 7))]);
    assert_eq!(scan.known_to(Instant::now()), at(0, 10, 6), "no pick can find it yet");
    assert_eq!(scan.end_freeing(Instant::now(), 4), None);
    assert_eq!(scan.known_to(Instant::now()), at(0, 10, 6));
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    assert_eq!(priorities(&request), [0]);
    answer(&mut scan, 5, &request, &[Some(at(0, 10, 7))]);
    assert_eq!(scan.known_to(Instant::now()), EVERYTHING);
}

#[test]
fn a_pick_that_was_under_way_may_have_passed_by_what_became_free() {
    let mut scan = scan_of(&[0]);
    scan.begin_freeing(Instant::now(), 4, vec![job(at(0, 10, 7))]);
    scan.hint();
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    scan.end_freeing(Instant::now(), 4);
    answer(&mut scan, 5, &request, &[None]);
    assert_eq!(scan.known_to(Instant::now()), at(0, 10, 6));
}

#[test]
fn free_jobs_of_a_task_that_is_no_longer_held_are_reported() {
    let mut scan = scan_of(&[0]);
    scan.begin_freeing(Instant::now(), 4, vec![job(at(0, 10, 7)), job(at(0, 9, 8))]);
    scan.set_tasks(&["other".into()]);
    assert_eq!(scan.end_freeing(Instant::now(), 4), Some(at(0, 9, 8)));
}

#[test]
fn levels_of_one_priority_share_the_number() {
    let mut scan = Scan::new(true, Duration::from_secs(1));
    scan.set_tasks(&["a".into(), "b".into()]);
    let request = scan.send(Instant::now(), 9, EVERYTHING);
    let found = vec![level(Kind::Plain, 0, "a"), level(Kind::Plain, 0, "b"), level(Kind::Plain, 1, "a")];
    scan.on_seen(Instant::now(), 0, &request, Seen { found, ..Seen::default() });
    let request = scan.send(Instant::now(), 9, EVERYTHING);
    let limits: Vec<usize> = request.levels.iter().map(|level| level.limit).collect();
    assert_eq!((limits, request.count), (vec![5, 5, 9], 10));
}

#[test]
fn a_limit_is_what_is_known_until_it_is_lifted() {
    let mut scan = scan_of(&[0, 5]);
    scan.hint();
    let limit = at(0, 50, 0);
    let request = scan.send(Instant::now(), 10, limit);
    assert_eq!(priorities(&request), [0], "what is less urgent is not asked for");
    answer(&mut scan, 2, &request, &[None]);
    assert_eq!(scan.known_to(Instant::now()), limit);
    assert!(!scan.may_send(Instant::now(), limit), "nothing more before the limit");
    scan.ask_beyond_limit();
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    assert_eq!(priorities(&request), [0, 5]);
    answer(&mut scan, 3, &request, &[None, None]);
    assert_eq!(scan.known_to(Instant::now()), EVERYTHING);
}

/// A search for levels returns the database's time, but a limited pick has not read up to that time.
#[test]
fn the_position_of_a_limited_pick_is_not_behind_its_limit() {
    let mut scan = scan_of(&[0]);
    scan.hint();
    let request = scan.send(Instant::now(), 10, at(0, 10, 7));
    let seen = Seen { levels: vec![(0, None)], now: Some(time(5000)), took: 100 * MS, ..Seen::default() };
    scan.on_seen(Instant::now(), 2, &request, seen);
    assert_eq!(scan.known_to(Instant::now()), at(0, 10, 7));
    scan.ask_beyond_limit();
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    assert_eq!(priorities(&request), [0]);
    assert!(request.levels[0].after <= Position::before(at(0, 10, 7)), "{request:?}");
}

/// The job of one level that lies behind the limit is not forgotten when the pick of another level has no limit.
#[test]
fn a_pick_that_goes_further_than_the_last_asks_for_all_that_was_behind_the_limit() {
    let mut scan = Scan::new(true, Duration::from_secs(1));
    scan.set_tasks(&["a".into(), "b".into()]);
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    let found = vec![level(Kind::Plain, 0, "a"), level(Kind::Plain, 0, "b")];
    scan.on_seen(Instant::now(), 1, &request, Seen { found, ..Seen::default() });
    let request = scan.send(Instant::now(), 2, at(0, 10, 7));
    // Level a has no more before the limit; of level b there may be more.
    let levels = vec![(0, None), (1, Some(at(0, 5, 1)))];
    scan.on_seen(Instant::now(), 2, &request, Seen { levels, took: 100 * MS, ..Seen::default() });
    assert_eq!(scan.known_to(Instant::now()), at(0, 5, 1));
    let request = scan.send(Instant::now(), 2, EVERYTHING);
    assert!(!request.from_start, "the last one took too long for that");
    assert_eq!(request.levels.len(), 2, "{request:?}");
}

#[test]
fn the_more_urgent_kind_goes_first() {
    let mut scan = scan_of(&[0]);
    scan.hint();
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    let seen =
        Seen { levels: vec![(0, None)], found: vec![level(Kind::Flagged, -1, "t")], ..Seen::default() };
    scan.on_seen(Instant::now(), 2, &request, seen);
    scan.hint();
    assert_eq!(scan.known_to(Instant::now()), Position::START.order(-1));
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    assert_eq!((request.kind, priorities(&request)), (Kind::Flagged, vec![-1]));
}

#[test]
fn a_slow_pick_from_the_start_is_followed_by_a_pause() {
    let mut scan = scan_of(&[0]);
    scan.hint();
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    assert_eq!(request.levels[0].after, Position::START);
    let last = Some(at(0, 500, 7));
    let seen = Seen { levels: vec![(1, last)], first: last, took: 100 * MS, ..Seen::default() };
    scan.on_seen(Instant::now(), 2, &request, seen);
    scan.on_delivered(2);
    scan.hint();
    let (now, later) = (Instant::now(), Instant::now() + 600 * MS);
    let request = scan.send(now, 10, EVERYTHING);
    assert_eq!(
        request.levels[0].after,
        Position { run_at: Some(time(400)), id: i64::MIN },
        "a little before it"
    );
    answer(&mut scan, 3, &request, &[None]);
    assert!(scan.has_more() && !scan.may_send(Instant::now(), EVERYTHING), "the start is owed");
    assert!(scan.next_timer(now).is_some_and(|time| time <= later));
    assert!(scan.may_send(later, EVERYTHING));
    let request = scan.send(later, 10, EVERYTHING);
    assert_eq!(request.levels[0].after, Position::START);
    answer(&mut scan, 4, &request, &[None]);
    assert!(!scan.has_more());
}

#[test]
fn a_hint_that_nobody_can_follow_makes_everything_unknown_until_a_later_pick_answers() {
    let mut scan = scan_of(&[0]);
    scan.hint();
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    scan.forget();
    answer(&mut scan, 2, &request, &[None]);
    assert_eq!(scan.known_to(Instant::now()), NOTHING, "it was sent before");
    let request = scan.send(Instant::now(), 10, EVERYTHING);
    answer(&mut scan, 3, &request, &[None]);
    assert_eq!(scan.known_to(Instant::now()), EVERYTHING);
}

#[test]
fn after_an_error_everything_is_asked_for_from_the_start() {
    let mut scan = scan_of(&[0]);
    scan.hint();
    let request = scan.send(Instant::now(), 1, EVERYTHING);
    answer(&mut scan, 2, &request, &[Some(at(0, 10, 7))]);
    scan.send(Instant::now(), 1, EVERYTHING);
    scan.on_error();
    assert_eq!(scan.known_to(Instant::now()), Position::START.order(0));
    let request = scan.send(Instant::now(), 1, EVERYTHING);
    assert_eq!(request.levels[0].after, Position::START);
}

#[test]
fn without_held_tasks_everything_is_known() {
    let mut scan = scan_of(&[0]);
    scan.set_tasks(&[]);
    assert_eq!(scan.known_to(Instant::now()), EVERYTHING);
    assert!(!scan.has_more() && !scan.may_send(Instant::now(), EVERYTHING));
}
