//! What durable claims ask for, and what is known after them.

use chrono::DateTime;

use super::super::super::claim::Claimed;
use super::super::super::plan::{LocalQueueConfig, RefetchDelay};
use super::super::scan::NOTHING;
use super::*;
use crate::Job;

const MS: Duration = Duration::from_millis(1);

fn order(id: i64) -> Order {
    (0, DateTime::UNIX_EPOCH, id)
}

fn claimed(now: Instant, jobs: i64) -> Claimed {
    Claimed {
        refused: Vec::new(),
        is_cut_short: false,
        jobs: (1..=jobs).map(|id| Job::for_tests(order(id), "t")).collect(),
        without_room: Vec::new(),
        unreadable: Vec::new(),
        asked_at: now,
        took: MS,
        level: None,
        has_forbidden: false,
    }
}

/// Sends a claim of ten jobs.
fn send(durable: &mut DurableClaims, now: Instant) -> Claimable {
    let wanted = Claimable { epoch: durable.epoch(), ..Claimable::for_tests(now) };
    durable.on_sent(&wanted);
    wanted
}

/// Answers a claim with this number of jobs. Returns whether all due jobs are claimed.
fn answer(durable: &mut DurableClaims, now: Instant, wanted: &Claimable, jobs: i64) -> bool {
    durable.on_back(wanted);
    durable.on_claimed(now, wanted, &claimed(now, jobs), &Rules::for_tests(10), 1)
}

#[test]
fn a_claim_that_brought_less_than_it_asked_for_has_seen_everything() {
    let now = Instant::now();
    let mut durable = DurableClaims::new();
    assert!(durable.asks() && durable.known_to() == NOTHING);
    let wanted = send(&mut durable, now);
    assert!(!durable.asks() && durable.away() == 1 && durable.reserved() == 10);
    assert!(answer(&mut durable, now, &wanted, 3));
    assert!(!durable.asks() && durable.known_to() == EVERYTHING);
    assert_eq!((durable.away(), durable.reserved()), (0, 0));
}

#[test]
fn a_full_claim_is_followed_by_another() {
    let now = Instant::now();
    let mut durable = DurableClaims::new();
    let wanted = send(&mut durable, now);
    assert!(!answer(&mut durable, now, &wanted, 10));
    assert!(durable.asks() && durable.known_to() == order(10));
    send(&mut durable, now);
    assert!(durable.asks(), "and by one more beside that");
}

#[test]
fn a_hint_while_a_claim_is_under_way_is_not_lost() {
    let now = Instant::now();
    let mut durable = DurableClaims::new();
    let wanted = send(&mut durable, now);
    durable.hint();
    answer(&mut durable, now, &wanted, 0);
    assert!(durable.asks());
}

#[test]
fn a_claim_from_before_something_was_forgotten_does_not_open_the_list() {
    let now = Instant::now();
    let mut durable = DurableClaims::new();
    let wanted = send(&mut durable, now);
    durable.forget(NOTHING);
    answer(&mut durable, now, &wanted, 3);
    assert!(durable.known_to() == NOTHING && durable.asks(), "the next claim finds out");
}

#[test]
fn what_was_known_before_an_announcement_holds_if_a_pick_finds_all_of_it() {
    let now = Instant::now();
    for found_all in [true, false] {
        let mut durable = DurableClaims::new();
        let wanted = send(&mut durable, now);
        answer(&mut durable, now, &wanted, 0);
        durable.forget_for_announced();
        assert_eq!(durable.known_to(), NOTHING);
        durable.settle_announced(found_all);
        assert_eq!(durable.known_to() == EVERYTHING, found_all);
        assert_eq!(durable.has_more(), !found_all);
    }
}

#[test]
fn only_one_claim_of_any_jobs_is_unanswered_at_a_time_unless_it_takes_long() {
    let now = Instant::now();
    let mut durable = DurableClaims::new();
    let wanted = send(&mut durable, now);
    assert!(durable.waits_for_answer(now, 10 * MS));
    assert!(!durable.waits_for_answer(now + 10 * MS, 10 * MS));
    durable.on_answered(wanted.sent_at, 0, None);
    assert!(!durable.waits_for_answer(now, 10 * MS), "its jobs may still be decoded");
    assert_eq!((durable.away(), durable.sent_at()), (1, Some(now)));
}

#[test]
fn freed_jobs_are_asked_for_at_once_or_now_and_then() {
    let now = Instant::now();
    // Whether the last claim was full, whether jobs are claimed ahead, whether all are asked for.
    let cases = [(true, true, true), (false, false, true), (false, true, false)];
    for (is_full, runs_ahead, expected) in cases {
        let mut durable = DurableClaims::new();
        let wanted = send(&mut durable, now);
        answer(&mut durable, now, &wanted, if is_full { 10 } else { 1 });
        durable.asking = Asking::Nothing;
        durable.on_freed();
        durable.ask_for_freed(now, runs_ahead);
        assert_eq!(durable.asking.has_less_urgent(), expected, "{is_full} {runs_ahead}");
        assert_eq!(durable.is_hinted(), !expected, "more urgent ones are asked for");
        assert_eq!(durable.next_timer(now), None, "nothing more is asked for one release");
        durable.on_freed();
        assert_eq!(durable.next_timer(now), (!expected).then_some(now + freed::HINTS));
    }
}

#[test]
fn a_refetch_delay_ends_by_itself_or_by_hints_and_a_pause_after_errors_does_not() {
    let now = Instant::now();
    let delay = RefetchDelay::new(100 * MS).with_max_abort_threshold(1);
    let queue = LocalQueueConfig::new(10).with_refetch_delay(delay);
    let rules = Rules { local_queue: Some(queue), ..Rules::for_tests(10) };
    let mut durable = DurableClaims::new();
    let wanted = send(&mut durable, now);
    durable.on_back(&wanted);
    durable.on_claimed(now, &wanted, &claimed(now, 0), &rules, 3);
    assert!(!durable.pauses.are_over(now) && durable.pauses.are_over(now + 151 * MS));
    durable.cut_pause(&rules);
    assert!(durable.pauses.are_over(now));
    durable.on_error(now);
    durable.cut_pause(&rules);
    assert!(!durable.pauses.are_over(now) && durable.is_failing());
}

#[test]
fn claims_are_as_large_as_their_payloads_allow() {
    let now = Instant::now();
    let mut durable = DurableClaims::new();
    assert_eq!(durable.fitting(10, 1), 1, "one job is always claimed");
    let wanted = send(&mut durable, now);
    let mut large = claimed(now, 2);
    large.jobs.iter_mut().for_each(|job| job.payload = "x".repeat(1000).into());
    large.without_room = vec![Job::for_tests(order(3), "t")];
    durable.on_back(&wanted);
    durable.on_claimed(now, &wanted, &large, &Rules::for_tests(10), 1);
    assert_eq!(durable.fitting(100, 5000), 5);
}

#[test]
fn jobs_with_forbidden_flags_are_not_all_read_each_time() {
    let now = Instant::now();
    let rules = Rules::for_tests(10);
    let mut durable = DurableClaims::new();
    let wanted = send(&mut durable, now);
    durable.on_back(&wanted);
    durable.on_claimed(now, &wanted, &Claimed { has_forbidden: true, ..claimed(now, 0) }, &rules, 1);
    assert!(!durable.reads_all_flagged(now, &rules));
    let wanted = Claimable { reads_all_flagged: false, epoch: durable.epoch(), ..Claimable::for_tests(now) };
    durable.on_sent(&wanted);
    durable.on_back(&wanted);
    durable.on_claimed(now, &wanted, &Claimed { has_forbidden: true, ..claimed(now, 0) }, &rules, 1);
    let until = durable.next_timer(now).unwrap();
    assert_eq!(until, now + flagged::REST * MS);
    durable.on_timer(until);
    assert!(durable.asks() && durable.reads_all_flagged(until, &rules));
}
