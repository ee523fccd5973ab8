use chrono::DateTime;

use super::super::super::run::{Claim, Failure, Finished, Outcome};
use super::entry::FIRST;
use super::*;
use crate::job::Place;
use crate::{Job, Retry};

const MS: Duration = Duration::from_millis(1);

fn entry(id: i64, outcome: Outcome) -> Entry {
    let time = DateTime::UNIX_EPOCH;
    let job = Arc::new(Job {
        id,
        task_identifier: "t".into(),
        task_id: 1,
        job_queue_id: None,
        queue_name: None,
        payload: "{}".into(),
        priority: 0,
        run_at: time,
        attempts: 1,
        max_attempts: 25,
        last_error: None,
        created_at: time,
        updated_at: time,
        key: None,
        locked_at: None,
        locked_by: None,
        revision: 0,
        flags: None,
        place: Place::default(),
    });
    let finished = Finished { job, outcome, duration: MS, claim: Claim::Durable };
    Entry::new(Instant::now(), finished, None, false)
}

fn failed() -> Outcome {
    Outcome::Failed(Box::new(Failure { error: "no".into(), retry: Retry::Backoff, payload: None }))
}

fn ids(entries: Option<Vec<Entry>>) -> Vec<i64> {
    entries.into_iter().flatten().map(|entry| entry.finished.job.id).collect()
}

#[test]
fn outcomes_of_a_kind_go_together_when_the_first_is_due() {
    let now = Instant::now();
    let mut pending = Pending::new(Delays { complete: 10 * MS, fail: Duration::ZERO }, "w".into());
    pending.add(now, vec![entry(1, Outcome::Completed), entry(2, failed())]);
    pending.add(now + 5 * MS, vec![entry(3, Outcome::Completed)]);
    assert_eq!(ids(pending.next_batch(now + 5 * MS, None)), [2]);
    assert_eq!(ids(pending.next_batch(now + 5 * MS, None)), [0; 0]);
    assert_eq!(pending.next_timer(now + 5 * MS, None), Some(now + 10 * MS));
    assert_eq!(ids(pending.next_batch(now + 10 * MS, None)), [1, 3]);
    pending.add(now, vec![entry(4, Outcome::Completed)]);
    pending.hurry(now);
    assert_eq!(ids(pending.next_batch(now, None)), [4]);
    assert!(pending.entries.is_empty());
}

#[test]
fn while_a_statement_is_under_way_only_completed_jobs_wait_for_others() {
    let sent = Instant::now();
    let now = sent + MS;
    let mut pending = Pending::default();
    pending.add(now, vec![entry(1, Outcome::Completed)]);
    assert!(pending.next_batch(now, Some(sent)).is_none());
    assert_eq!(pending.next_timer(now, Some(sent)), Some(sent + FOR_OTHERS), "it does not wait forever");
    pending.add(now, vec![entry(2, failed()), entry(3, Outcome::Completed)]);
    assert_eq!(ids(pending.next_batch(now, Some(sent))), [2], "a failure does not wait");
    assert_eq!(ids(pending.next_batch(now, None)), [1, 3], "the statement was answered");

    pending.add(now, vec![entry(4, Outcome::Completed)]);
    assert_eq!(
        ids(pending.next_batch(sent + FOR_OTHERS, Some(sent))),
        [4],
        "a slow statement delays no other"
    );

    let mut queued = entry(5, Outcome::Completed);
    Arc::get_mut(&mut queued.finished.job).unwrap().job_queue_id = Some(1);
    pending.add(now, vec![queued]);
    assert_eq!(ids(pending.next_batch(now, Some(sent))), [5], "the next job of its queue waits for it");
}

#[test]
fn a_blocked_outcome_is_tried_again_and_delays_no_other() {
    let mut now = Instant::now();
    let mut pending = Pending::default();
    pending.add(now, vec![entry(1, Outcome::Completed), entry(2, Outcome::Completed)]);
    for pause in [50, 100, 200, 400, 800, 1600, 2000, 2000] {
        let batch = pending.next_batch(now, None).unwrap();
        let fate_of = |id| if id == 1 { Fate::Blocked } else { Fate::Written };
        let done = pending.on_answer(now, batch, fate_of);
        assert_eq!(done.len(), 1, "the others are written");
        assert_eq!(pending.next_timer(now, None), Some(now + pause * MS));
        pending.add(now, vec![entry(2, Outcome::Completed)]);
        assert_eq!(ids(pending.next_batch(now, None)), [2]);
        now += pause * MS;
        pending.add(now, vec![entry(2, Outcome::Completed)]);
    }
}

#[test]
fn after_a_rejection_each_outcome_is_tried_alone_and_failing_ones_are_set_apart() {
    let (now, refusal) = (Instant::now(), Error::config("no"));
    let mut pending = Pending::default();
    pending.add(now, vec![entry(1, Outcome::Completed), entry(2, Outcome::Completed)]);
    let batch = pending.next_batch(now, None).unwrap();
    pending.on_error(now, batch, &refusal);
    let (first, second) = (pending.next_batch(now, None).unwrap(), pending.next_batch(now, None).unwrap());
    assert_eq!((first.len(), second.len()), (1, 1));
    pending.on_error(now, first, &refusal);
    assert_eq!(pending.on_answer(now, second, |_| Fate::Written).len(), 1);
    let mut time = now;
    for pause in [50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000] {
        assert!(pending.next_batch(time, None).is_none() && pending.next_apart(time).is_none());
        time += pause * MS;
        let apart = pending.next_apart(time).unwrap();
        pending.on_error(time, vec![apart], &refusal);
    }
    pending.hurry(time);
    let apart = pending.next_apart(time).unwrap();
    pending.on_error(time, vec![apart], &refusal);
    assert_eq!(pending.next_timer(time, None), Some(time + FIRST), "a worker that stops does not wait");
}

#[test]
fn one_refusal_among_many_is_found_by_halves() {
    let (now, refusal) = (Instant::now(), Error::config("no"));
    let mut pending = Pending::default();
    pending.add(now, (0..1000).map(|id| entry(id, Outcome::Completed)).collect());
    let (mut statements, mut written) = (0, 0);
    while let Some(batch) = pending.next_batch(now, None) {
        statements += 1;
        match batch.iter().any(|entry| entry.finished.job.id == 700) {
            true => pending.on_error(now, batch, &refusal),
            false => written += pending.on_answer(now, batch, |_| Fate::Written).len(),
        }
    }
    assert_eq!((written, pending.entries.len(), pending.stuck()), (999, 1, 1));
    assert!(statements < 25, "{statements}");
}

#[test]
fn while_the_database_is_away_nothing_is_tried_for_a_while() {
    let (now, away) = (Instant::now(), Error::unavailable("away"));
    let mut pending = Pending::default();
    pending.add(now, vec![entry(1, Outcome::Completed)]);
    let batch = pending.next_batch(now, None).unwrap();
    pending.on_error(now, batch, &away);
    assert!(pending.next_batch(now, None).is_none());
    let later = pending.next_timer(now, None).unwrap();
    assert_eq!(ids(pending.next_batch(later, None)), [1]);
}
