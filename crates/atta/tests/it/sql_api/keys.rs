//! Adds with keys: every state of the existing job, combined with every mode.

use testkit::Database;
use tokio_postgres::Client;

use super::support::{Job, Listener, add, all_jobs, job, jobs_of, lock, names, run};

const MODES: [&str; 3] = ["replace", "preserve_run_at", "unsafe_dedupe"];

/// The states of an existing job with the key, as assignments.
const PENDING: &str = "attempts = 0";
const FAILED_ONCE: &str = "attempts = 1, last_error = 'boom'";
const LOCKED: &str = "attempts = 1, locked_at = now(), locked_by = 'pool-1'";
const LOCKED_LONG_AGO: &str = "attempts = 1, locked_at = now() - interval '5 days', locked_by = 'pool-1'";
const LOCKED_LAST_ATTEMPT: &str = "attempts = max_attempts, locked_at = now(), locked_by = 'pool-1'";
const FAILED_PERMANENTLY: &str = "attempts = max_attempts, last_error = 'boom'";

/// Creates a job with the key in this state, adds another in this mode, and returns both jobs and the notifications.
async fn add_over(db: &Database, state: &str, mode: &str) -> (Client, Job, Job, Vec<Option<i64>>) {
    let client = db.client().await;
    run(&client, "delete from graphile_worker._private_jobs").await;
    let old = add(&client, "'old', '{\"old\": 1}', 'old q', '2030-01-01Z', 7, 'k', 3, array['old']").await;
    run(&client, &format!("update graphile_worker._private_jobs set {state} where id = {}", old.id)).await;
    let before = job(&client, old.id).await.expect("the job is there");
    let mut listener = Listener::on(db, "jobs:insert").await;
    let new = "'new', '{\"new\": 2}', 'new q', '2040-01-01Z', 9, 'k', -5, array['new']";
    let after = add(&client, &format!("{new}, '{mode}'")).await;
    (client, before, after, listener.counts().await)
}

/// Checks that the job has all values of the second add.
async fn assert_as_asked(client: &Client, job: &Job) {
    assert_eq!(names(client, job).await, ("new".into(), Some("new q".into())));
    assert_eq!(job.payload, "{\"new\": 2}");
    assert_eq!((job.max_attempts, job.priority), (9, -5));
    assert_eq!(job.flags, Some(serde_json::json!({"new": true})));
    assert_eq!(job.key.as_deref(), Some("k"));
    assert_eq!((job.attempts, job.last_error.as_deref(), job.is_available), (0, None, true));
    assert_eq!((job.locked_at, job.locked_by.as_deref()), (None, None));
}

#[tokio::test]
async fn a_key_that_no_job_has_adds_one_in_every_mode() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut listener = Listener::on(&db, "jobs:insert").await;
    for mode in MODES {
        let new = "'new', '{\"new\": 2}', 'new q', '2040-01-01Z', 9, 'k', -5, array['new']";
        let job = add(&client, &format!("{new}, '{mode}'")).await;
        assert_as_asked(&client, &job).await;
        assert_eq!((job.revision, job.run_at.to_rfc3339().as_str()), (0, "2040-01-01T00:00:00+00:00"));
        assert_eq!(listener.counts().await, [Some(1)], "{mode}");
        run(&client, "delete from graphile_worker._private_jobs").await;
    }
}

#[tokio::test]
async fn a_waiting_job_is_overwritten_and_preserve_run_at_keeps_only_the_time_of_an_untried_one() {
    let db = Database::migrated().await;
    let cases = [
        (PENDING, "replace", "2040-01-01T00:00:00+00:00"),
        (PENDING, "preserve_run_at", "2030-01-01T00:00:00+00:00"),
        (FAILED_ONCE, "replace", "2040-01-01T00:00:00+00:00"),
        (FAILED_ONCE, "preserve_run_at", "2040-01-01T00:00:00+00:00"),
    ];
    for (state, mode, run_at) in cases {
        let (client, before, after, notices) = add_over(&db, state, mode).await;
        assert_as_asked(&client, &after).await;
        assert_eq!((after.id, after.created_at), (before.id, before.created_at), "{state} {mode}");
        assert_eq!(after.revision, before.revision + 1, "{state} {mode}");
        assert_eq!(after.run_at.to_rfc3339(), run_at, "{state} {mode}");
        assert!(after.updated_at > before.updated_at, "{state} {mode}");
        assert_eq!(notices, [Some(1)], "{state} {mode}");
        assert_eq!(all_jobs(&client).await.len(), 1);
    }
}

#[tokio::test]
async fn a_running_or_failed_job_gives_its_key_to_a_new_one() {
    let db = Database::migrated().await;
    for state in [LOCKED, LOCKED_LONG_AGO, LOCKED_LAST_ATTEMPT, FAILED_PERMANENTLY] {
        for mode in ["replace", "preserve_run_at"] {
            let (client, before, after, notices) = add_over(&db, state, mode).await;
            assert_as_asked(&client, &after).await;
            assert!(after.id > before.id && after.created_at > before.created_at, "{state} {mode}");
            assert_eq!(
                (after.revision, after.run_at.to_rfc3339().as_str()),
                (0, "2040-01-01T00:00:00+00:00")
            );
            let aside = job(&client, before.id).await.unwrap();
            assert!(aside.updated_at > before.updated_at, "{state} {mode}");
            let expected = Job {
                key: None,
                attempts: before.max_attempts,
                updated_at: aside.updated_at,
                is_available: false,
                ..before
            };
            assert_eq!(aside, expected, "{state} {mode}");
            assert_eq!(notices, [Some(1)], "{state} {mode}");
        }
    }
}

#[tokio::test]
async fn unsafe_dedupe_only_increments_the_revision_in_any_state() {
    let db = Database::migrated().await;
    for state in [PENDING, FAILED_ONCE, LOCKED, LOCKED_LONG_AGO, LOCKED_LAST_ATTEMPT, FAILED_PERMANENTLY] {
        let (client, before, after, notices) = add_over(&db, state, "unsafe_dedupe").await;
        assert!(after.updated_at > before.updated_at, "{state}");
        let expected = Job { revision: before.revision + 1, updated_at: after.updated_at, ..before };
        assert_eq!(after, expected, "{state}");
        assert_eq!(notices, [], "{state}");
        assert_eq!(all_jobs(&client).await.len(), 1);
    }
}

#[tokio::test]
async fn values_that_the_second_add_omits_become_the_defaults() {
    let db = Database::migrated().await;
    let client = db.client().await;
    add(&client, "'t', '{\"a\": 1}', 'q', '2030-01-01Z', 7, 'k', 3, array['f']").await;
    let job = add(&client, "'t', job_key := 'k'").await;
    assert_eq!((job.payload.as_str(), job.job_queue_id, job.flags), ("{}", None, None));
    assert_eq!((job.priority, job.max_attempts), (0, 25));
    assert_eq!(job.run_at, job.updated_at);
}

#[tokio::test]
async fn a_null_mode_replaces() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let first = add(&client, "'t', '1', job_key := 'k'").await;
    let second = add(&client, "'t', '2', job_key := 'k', job_key_mode := null").await;
    assert_eq!((second.id, second.payload.as_str(), second.revision), (first.id, "2", 1));
}

#[tokio::test]
async fn a_batch_can_preserve_run_at_for_all_its_keys() {
    let db = Database::migrated().await;
    let client = db.client().await;
    add(&client, "'t', job_key := 'a', run_at := '2030-01-01Z'").await;
    let tried = add(&client, "'t', job_key := 'b', run_at := '2030-01-01Z'").await;
    run(&client, &format!("update graphile_worker._private_jobs set attempts = 1 where id = {}", tried.id))
        .await;
    let specs = "array[row('t',null,null,'2040-01-01Z',null,'a',null,null), \
                 row('t',null,null,'2040-01-01Z',null,'b',null,null), \
                 row('t',null,null,'2040-01-01Z',null,'c',null,null)]::graphile_worker.job_spec[]";
    let from = format!("graphile_worker.add_jobs({specs}, job_key_preserve_run_at := true)");
    let added = jobs_of(&client, &from).await;
    let years: Vec<String> = added.iter().map(|job| job.run_at.format("%Y").to_string()).collect();
    assert_eq!(years, ["2030", "2040", "2040"]);
}

#[tokio::test]
async fn removing_a_key_deletes_the_job_unless_it_is_running() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut listener = Listener::on(&db, "jobs:insert").await;
    for state in [PENDING, FAILED_ONCE, FAILED_PERMANENTLY, LOCKED_LONG_AGO] {
        let added = add(&client, "'t', job_key := 'k'").await;
        run(&client, &format!("update graphile_worker._private_jobs set {state}")).await;
        let before = job(&client, added.id).await.unwrap();
        listener.received().await;
        assert_eq!(jobs_of(&client, "graphile_worker.remove_job('k')").await, [before], "{state}");
        assert_eq!(all_jobs(&client).await, [], "{state}");
        assert_eq!(listener.counts().await, [Some(-1)], "{state}");
    }

    let added = add(&client, "'t', job_key := 'k'").await;
    lock(&client, added.id, "3 hours 59 minutes").await;
    let before = job(&client, added.id).await.unwrap();
    listener.received().await;
    let removed = jobs_of(&client, "graphile_worker.remove_job('k')").await;
    assert_eq!(removed, all_jobs(&client).await);
    assert!(removed[0].updated_at > before.updated_at);
    let updated_at = removed[0].updated_at;
    assert_eq!(removed, [Job { key: None, attempts: 25, updated_at, ..before }]);
    assert_eq!(listener.counts().await, []);
}

#[tokio::test]
async fn removing_an_unknown_or_null_key_returns_nulls_and_sends_no_notification() {
    let db = Database::migrated().await;
    let client = db.client().await;
    add(&client, "'t', job_key := 'k'").await;
    let mut listener = Listener::on(&db, "jobs:insert").await;
    for key in ["'other'", "null"] {
        let sql = format!("select id, key from graphile_worker.remove_job({key})");
        let rows = client.query(&sql, &[]).await.unwrap();
        assert_eq!(rows.len(), 1, "{key}");
        assert_eq!((rows[0].get(0), rows[0].get(1)), (None::<i64>, None::<String>), "{key}");
    }
    assert_eq!(listener.counts().await, []);
    assert_eq!(all_jobs(&client).await.len(), 1);
}
