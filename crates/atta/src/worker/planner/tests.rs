//! The planner as a whole: what it commands, without a database.

mod world;

use std::collections::HashMap;

use super::super::claim::Left;
use super::super::release::Report;
use super::super::run::{Failure, Finished, Outcome};
use super::*;
use crate::Retry;
use world::{MS, World, ids};

#[test]
fn a_worker_asks_for_both_kinds_of_jobs_when_it_starts() {
    let mut world = World::new(4, |_| {});
    assert_eq!((world.claims.len(), world.picks.len()), (1, 1));
    world.answer(&[]);
    // The first pick finds the level, the second its jobs.
    world.pick(&[]);
    assert_eq!(world.picks.len(), 1);
    world.pick(&[]);
    assert_eq!((world.claims.len(), world.picks.len(), world.polls), (0, 0, 1), "then it asks when to go on");
}

#[test]
fn held_jobs_start_when_both_kinds_of_claims_are_answered_and_are_committed_together() {
    let mut world = World::new(4, |_| {});
    world.pick(&[]);
    let lane = world.pick(&[1, 2]);
    assert!(world.start().is_empty(), "the durable claim may bring a more urgent job");
    world.answer(&[]);
    let runs = world.start();
    assert_eq!(ids(&runs), [1, 2]);
    world.finish(runs);
    let (committed, settlement) = world.commits.remove(0);
    assert_eq!((committed, settlement.finished.len(), settlement.running.len()), (lane, 2, 0));
}

#[test]
fn a_batch_is_committed_when_its_budget_is_over_and_what_runs_becomes_durable() {
    let mut world = World::new(1, |_| {});
    world.answer(&[]);
    world.pick(&[]);
    world.pick(&[1]);
    let runs = world.start();
    assert_eq!(ids(&runs), [1]);
    world.advance(50 * MS);
    let (lane, settlement) = world.commits.remove(0);
    assert_eq!((settlement.finished.len(), settlement.running.len()), (0, 1));
    world.end_batch(lane, Ok(1));
    world.finish(runs);
    assert_eq!(world.released.len(), 1, "it is released as a durable claim");
}

#[test]
fn an_outcome_that_the_database_may_refuse_is_released_after_the_commit() {
    let mut world = World::new(2, |_| {});
    world.pick(&[]);
    let lane = world.pick(&[1, 2]);
    world.answer(&[]);
    let runs = world.start();
    let failed = |error: &str| {
        Outcome::Failed(Box::new(Failure { error: error.into(), retry: Retry::Backoff, payload: None }))
    };
    let ended: Vec<Finished> = runs
        .into_iter()
        .zip([failed("né"), failed("no")])
        .map(|((job, claim), outcome)| Finished { job, outcome, duration: Duration::ZERO, claim })
        .collect();
    world.handle(Event::Finished(ended));
    let (committed, settlement) = world.commits.pop().expect("all jobs of the batch have ended");
    let ids = |of: &[Finished]| of.iter().map(|one| one.job.id).collect::<Vec<_>>();
    assert_eq!((committed, ids(&settlement.finished), ids(&settlement.apart)), (lane, vec![2], vec![1]));
    assert_eq!(settlement.promoted_ids(), [1]);
    let locked_at = HashMap::from([(1, chrono::DateTime::UNIX_EPOCH)]);
    let left = Left { locked_at, finished: settlement.apart, ..Left::default() };
    world.handle(Event::BatchEnded { lane, picked: Ok(2), left });
    let released: Vec<i64> = world.released.iter().map(|(id, _)| *id).collect();
    assert_eq!(released, [1]);
}

#[test]
fn no_more_jobs_are_claimed_than_there_are_slots() {
    let mut world = World::durable(2);
    assert_eq!(world.claims[0].count, 2);
    world.answer(&[1, 2]);
    let runs = world.start();
    assert_eq!((ids(&runs), world.claims.len()), (vec![1, 2], 0));
    world.finish(runs);
    assert_eq!(world.claims.len(), 1, "slots are free again");
}

#[test]
fn jobs_that_may_have_been_claimed_by_a_lost_reply_are_searched_for_before_the_next_claim() {
    let mut world = World::durable(2);
    world.answer(&[7]);
    let runs = world.start();
    world.handle(Event::Hint);
    assert_eq!(world.claims.len(), 1);
    world.fail_claim(Error::lost_reply_for_tests());
    world.advance(100 * MS);
    assert_eq!((world.claims.len(), &*world.searches), (0, &[vec![7]][..]), "known jobs are left alone");
    world.handle(Event::Searched(Ok((1, 0))));
    world.advance(200 * MS);
    assert_eq!(world.claims.len(), 1);
    world.finish(runs);
    world.answer(&[]);
    world.write();
    world.searches.clear();
    world.advance(31 * Duration::from_secs(1));
    while !world.claims.is_empty() {
        world.answer(&[]);
    }
    assert_eq!(world.searches.len(), 1, "and once more a threshold later");
}

#[test]
fn a_claim_that_takes_long_delays_only_its_own_jobs() {
    let mut world = World::new(4, |_| {});
    world.pick(&[]);
    world.pick(&[1]);
    assert!(world.start().is_empty());
    world.advance(Duration::from_secs(1) + MS);
    // The batch was committed unstarted when its budget was over, and is picked again.
    let (lane, _) = world.commits.remove(0);
    world.end_batch(lane, Ok(1));
    world.pick(&[1]);
    assert_eq!(ids(&world.start()), [1], "although the durable claim is not answered");
}

#[test]
fn a_shutdown_claims_nothing_returns_what_has_not_begun_and_ends_when_all_is_written() {
    let mut world = World::new(1, |rules| {
        rules.claims = Claims::Durable;
        rules.local_queue = Some(super::super::plan::LocalQueueConfig::new(10));
    });
    world.answer(&[1, 2, 3]);
    let first = world.start_one();
    assert_eq!(ids(&first), [1]);
    world.handle(Event::Shutdown);
    let returned: Vec<i64> = world.released.iter().map(|(id, _)| *id).collect();
    assert_eq!(returned, [2, 3]);
    world.handle(Event::Hint);
    while !world.claims.is_empty() {
        world.answer(&[]);
    }
    assert!(world.claims.is_empty() && !world.planner.is_done(world.now));
    world.finish(first);
    world.write();
    assert!(world.planner.is_done(world.now));
    let (ended, is_clear) = world.planner.end(world.now);
    assert!(ended.is_ok() && is_clear);
}

#[test]
fn a_worker_whose_last_outcomes_are_stuck_leaves_after_the_grace_period_and_stays_registered() {
    let mut world = World::durable(1);
    world.answer(&[1]);
    let runs = world.start();
    world.handle(Event::Shutdown);
    world.finish(runs);
    world.handle(Event::Released(Report { stuck: 1, ..Report::default() }));
    world.advance(4 * Duration::from_secs(1));
    assert!(!world.has_left, "the grace period is not over");
    world.advance(3 * Duration::from_secs(1));
    assert!(world.has_left && world.planner.is_done(world.now));
    let (_, is_clear) = world.planner.end(world.now);
    assert!(!is_clear);
}

#[test]
fn nothing_is_claimed_while_hooks_are_behind() {
    let mut world = World::durable(1);
    world.answer(&[]);
    world.planner.observe(Surroundings {
        may_hold: true,
        hooks_are_full: true,
        has_few_queues: true,
        ..Surroundings::UNKNOWN
    });
    world.handle(Event::Hint);
    assert!(world.claims.is_empty());
    world.planner.observe(Surroundings {
        may_hold: true,
        hooks_are_full: false,
        has_few_queues: true,
        ..Surroundings::UNKNOWN
    });
    world.handle(Event::Timer);
    assert_eq!(world.claims.len(), 1);
}

#[test]
fn a_run_until_nothing_is_left_asks_once_more_after_it_has_found_jobs() {
    let mut world = World::new(1, |rules| {
        (rules.claims, rules.mode) = (Claims::Durable, Mode::UntilEmpty);
    });
    world.answer(&[1]);
    let runs = world.start();
    world.finish(runs);
    while !world.claims.is_empty() {
        world.answer(&[]);
    }
    world.write();
    while !world.claims.is_empty() {
        world.answer(&[]);
    }
    assert!(!world.planner.is_done(world.now));
    world.plan();
    assert_eq!(world.claims.len(), 1);
    world.answer(&[]);
    assert!(world.planner.is_done(world.now));
}

/// Behind a pooler without LISTEN, jobs are not announced. A durable claim that was sent for another reason finds them.
#[test]
fn a_durable_claim_that_brings_jobs_asks_for_those_that_can_be_held() {
    let mut world = World::new(1, |_| {});
    world.answer(&[]);
    world.pick(&[]);
    world.pick(&[]);
    world.advance(200 * MS);
    world.handle(Event::Released(Report { frees_queue: true, ..Report::default() }));
    world.advance(10 * MS);
    world.answer(&[10]);
    assert!(world.start().is_empty(), "a more urgent job may have come in that can be held");
    world.pick(&[1]);
    assert_eq!(ids(&world.start()), [1]);
}

/// A pick that found nothing may have been sent before the jobs were added.
#[test]
fn a_hint_during_a_pick_is_followed_although_claimed_jobs_fill_the_slots() {
    let mut world = World::new(1, |rules| {
        rules.local_queue = Some(super::super::plan::LocalQueueConfig::new(10));
    });
    world.pick(&[]);
    world.pick(&[]);
    world.answer(&[10, 11, 12]);
    world.handle(Event::Hint);
    assert_eq!(world.picks.len(), 1);
    world.handle(Event::Hint);
    let first = world.start_one();
    assert_eq!(ids(&first), [10], "the list is open as before");
    world.pick(&[]);
    world.finish(first);
    assert!(world.start_one().is_empty(), "first the second hint is followed");
    world.pick(&[1]);
    assert_eq!(ids(&world.start_one()), [1]);
}

#[test]
fn jobs_that_wait_in_the_list_do_not_keep_a_pick_from_being_tried_again_after_an_error() {
    let mut world = World::new(1, |rules| {
        rules.local_queue = Some(super::super::plan::LocalQueueConfig::new(10));
    });
    world.answer(&[10, 11, 12, 13]);
    let lane = world.picks.remove(0).lane;
    world.end_batch(lane, Err(Error::lost_reply_for_tests()));
    let first = world.start_one();
    assert_eq!(ids(&first), [10], "while picks fail, other jobs go on");
    world.advance(200 * MS);
    world.finish(first);
    assert_eq!(
        (ids(&world.start_one()), world.picks.len()),
        (vec![], 1),
        "after the pause a pick goes first"
    );
    let lane = world.picks.remove(0).lane;
    world.end_batch(lane, Err(Error::lost_reply_for_tests()));
    assert_eq!(ids(&world.start_one()), [11], "it has failed too");
}

/// A durable claim leaves out only that job.
#[test]
fn a_job_that_can_neither_be_sent_nor_failed_ends_held_claims_for_a_while() {
    let mut world = World::new(1, |_| {});
    world.answer(&[]);
    for _ in 0..2 {
        assert_eq!((world.claims.len(), world.picks.len()), (0, 1), "another worker may have failed the job");
        let lane = world.picks.remove(0).lane;
        let left = Left { is_unreadable: true, ..Left::default() };
        world.handle(Event::BatchEnded { lane, picked: Err(Error::lost_reply_for_tests()), left });
        world.advance(200 * MS);
    }
    assert_eq!(world.claims[0].unqueued, ["t"]);
    world.answer(&[1]);
    let runs = world.start();
    assert_eq!(ids(&runs), [1]);
    world.finish(runs);
    world.write();
    for picks in [0, 1] {
        while !world.claims.is_empty() {
            world.answer(&[]);
        }
        assert_eq!(world.picks.len(), picks);
        world.advance(Duration::from_secs(61));
    }
}

/// Nothing is due, and nothing is under way.
fn idle() -> World {
    let mut world = World::new(2, |_| {});
    world.answer(&[]);
    world.pick(&[]);
    world.pick(&[]);
    world.handle(Event::Due(Vec::new()));
    world.advance(10 * MS);
    assert_eq!((world.claims.len(), world.picks.len()), (0, 0));
    world.polls = 0;
    world
}

#[test]
fn a_job_that_is_announced_and_found_costs_one_pick_and_no_other_statement() {
    let mut world = idle();
    for id in 1..=3 {
        world.handle(Event::Announced(1));
        let lane = world.pick(&[id]);
        let runs = world.start();
        assert_eq!(ids(&runs), [id], "it starts at once");
        world.finish(runs);
        world.commits.pop().expect("the batch is committed");
        world.end_batch(lane, Ok(1));
        world.advance(100 * MS);
        assert_eq!((world.claims.len(), world.picks.len(), world.polls), (0, 0, 0), "job {id}");
    }
}

#[test]
fn a_worker_whose_tasks_are_all_slow_claims_durably_at_once_and_sends_no_pick() {
    for event in [|| Event::Announced(1), || Event::Hint] {
        let mut world = idle();
        world.planner.tasks.learn("t", Duration::from_secs(1));
        world.plan();
        while !world.claims.is_empty() {
            world.answer(&[]);
        }
        world.advance(100 * MS);
        world.handle(event());
        assert_eq!((world.claims.len(), world.picks.len()), (1, 0));
        world.answer(&[1]);
        assert_eq!(ids(&world.start()), [1]);
        assert!(world.picks.is_empty());
    }
}

#[test]
fn a_hint_while_an_announced_job_is_searched_for_is_still_followed() {
    let mut world = idle();
    world.handle(Event::Announced(1));
    world.handle(Event::Hint);
    world.pick(&[1]);
    world.advance(10 * MS);
    assert_eq!(world.claims.len(), 1);
}
