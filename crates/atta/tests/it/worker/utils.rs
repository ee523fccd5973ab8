//! Adding and managing jobs from Rust.

use atta::{
    CleanupTask, JobFilter, JobKeyMode, JobSpec, JobSpecBuilder, JobState, RawJobSpec, RescheduleJobOptions,
    WorkerUtils,
};
use chrono::{TimeDelta, Utc};
use serde_json::json;
use testkit::Database;

use super::support::options;

async fn utils(db: &Database) -> WorkerUtils {
    WorkerUtils::connect(&db.url()).unwrap()
}

#[tokio::test]
async fn many_jobs_are_returned_in_their_order_with_their_names() {
    let db = Database::migrated().await;
    let utils = utils(&db).await;
    let specs: Vec<RawJobSpec> = (0..50)
        .map(|n| {
            let spec = JobSpec {
                job_key: (n % 3 == 0).then(|| format!("key {}", 100 - n)),
                queue_name: (n % 2 == 0).then(|| format!("queue {}", n % 4)),
                ..JobSpec::default()
            };
            RawJobSpec::new(format!("task {}", n % 5), json!({ "n": n }), spec).unwrap()
        })
        .collect();
    let jobs = utils.add_raw_jobs(&specs).await.unwrap();
    for (n, job) in jobs.iter().enumerate() {
        assert_eq!(job.payload::<serde_json::Value>().unwrap(), json!({ "n": n }));
        assert_eq!(job.task_identifier(), format!("task {}", n % 5));
        assert_eq!(job.queue_name().is_some(), n % 2 == 0);
        let stored = utils.get_job(job.id()).await.unwrap().unwrap();
        assert_eq!(
            (stored.task_identifier(), stored.queue_name()),
            (job.task_identifier(), job.queue_name())
        );
    }
    assert!(utils.add_raw_jobs(&[]).await.unwrap().is_empty());
}

/// The time of a transaction is that of its start; the clock of this machine continues.
#[tokio::test]
async fn a_job_without_a_time_is_due_by_the_clock_that_was_chosen() {
    let db = Database::migrated().await;
    let (by_database, by_machine) = (utils(&db).await, utils(&db).await.with_use_local_time(true));
    let mut client = db.client().await;
    let mut transaction = client.transaction().await.unwrap();
    let begun: chrono::DateTime<Utc> = transaction.query_one("select now()", &[]).await.unwrap().get(0);
    transaction.batch_execute("select pg_sleep(0.1)").await.unwrap();
    let first = by_database.add_raw_job_in(&mut transaction, "t", 1, JobSpec::default()).await.unwrap();
    let second = by_machine.add_raw_job_in(&mut transaction, "t", 2, JobSpec::default()).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(first.run_at(), begun);
    // Both clocks are those of one machine here.
    assert!(second.run_at() > begun && second.run_at() <= Utc::now());
    let options = options(&db).use_local_time(true).define_raw_job("t", |_| async {});
    options.init().await.unwrap().run_once().await.unwrap();
    assert_eq!(by_database.count_jobs().await.unwrap().total(), 0);
}

#[tokio::test]
async fn draining_a_queue_skips_running_jobs() {
    let db = Database::migrated().await;
    let utils = utils(&db).await;
    let specs: Vec<RawJobSpec> = (0..250)
        .map(|n| {
            let queue = JobSpecBuilder::new().queue_name(if n % 50 == 0 { "other" } else { "line" });
            RawJobSpec::new("t", n, queue.build()).unwrap()
        })
        .collect();
    let ids: Vec<i64> = utils.add_raw_jobs(&specs).await.unwrap().iter().map(atta::Job::id).collect();
    let lock = "update graphile_worker._private_jobs set locked_at = now(), locked_by = 'w' where id = $1";
    db.client().await.execute(lock, &[&ids[7]]).await.unwrap();
    let drained = atta::testing::drain_queue(&utils, "line").await.unwrap();
    assert_eq!(drained.len(), 244);
    assert!(atta::testing::drain_queue(&utils, "nobody's").await.unwrap().is_empty());
    assert!(atta::testing::drain_queue(&utils, "\0").await.is_err());
    assert_eq!(utils.count_jobs().await.unwrap().total(), 6);
}

/// A prepared statement may live longer than the schema that it uses.
#[tokio::test]
async fn a_prepared_add_works_on_after_the_schema_was_replaced() {
    let db = Database::migrated().await;
    let utils = utils(&db).await.with_prepared_statements(true);
    for n in 0..8 {
        let job = utils.add_raw_job("t", json!({ "n": n }), JobSpec::default()).await.unwrap();
        assert_eq!((job.task_identifier(), job.attempts()), ("t", 0));
    }
    let prepared = utils.pool().get().await.unwrap();
    let count = prepared.query_one(
        "select count(*) from pg_prepared_statements where statement like '-- Adds one job%'",
        &[],
    );
    assert_eq!(count.await.unwrap().get::<_, i64>(0), 1);
    drop(prepared);
    db.client().await.batch_execute("drop schema graphile_worker cascade").await.unwrap();
    let error = utils.add_raw_job("t", json!({}), JobSpec::default()).await.unwrap_err();
    assert!(error.to_string().contains("adding"), "{error}");
    utils.migrate().await.unwrap();
    utils.add_raw_job("t", json!({}), JobSpec::default()).await.unwrap();
    assert_eq!(utils.count_jobs().await.unwrap().ready, 1);
}

#[tokio::test]
async fn unsafe_dedupe_is_refused_for_many_and_returns_the_existing_job() {
    let db = Database::migrated().await;
    let utils = utils(&db).await;
    let spec = JobSpecBuilder::new().job_key("k").job_key_mode(JobKeyMode::UnsafeDedupe).build();
    let many = [RawJobSpec::new("b", 1, spec.clone()).unwrap()];
    assert!(utils.add_raw_jobs(&many).await.unwrap_err().is_invalid_input());
    let first = utils.add_raw_job("a", 1, JobSpecBuilder::new().job_key("k").queue_name("q")).await.unwrap();
    let second = utils.add_raw_job("b", 2, spec).await.unwrap();
    assert_eq!((second.id(), second.task_identifier(), second.queue_name()), (first.id(), "a", Some("q")));
}

#[tokio::test]
async fn errors_carry_the_code_and_the_hint_of_the_database() {
    let db = Database::migrated().await;
    let utils = utils(&db).await;
    let error = utils.add_raw_job("x".repeat(129), 1, JobSpec::default()).await.unwrap_err();
    assert_eq!(error.db_code(), Some("GWBID"));
    assert_eq!(error.hint(), Some("At most 128 characters are allowed."));
    assert!(!error.is_transient());

    let nowhere = Database::empty().await;
    let utils = WorkerUtils::connect(&nowhere.url()).unwrap();
    let error = utils.add_raw_job("x", 1, JobSpec::default()).await.unwrap_err();
    assert!(error.hint().unwrap().contains("atta migrate"), "{error}");
}

#[tokio::test]
async fn jobs_are_listed_by_state_and_page_and_counted() {
    let db = Database::migrated().await;
    let utils = utils(&db).await;
    let later = Utc::now() + TimeDelta::hours(1);
    utils.add_raw_job("ready", 1, JobSpec::default()).await.unwrap();
    utils.add_raw_job("scheduled", 1, JobSpecBuilder::new().run_at(later)).await.unwrap();
    utils.add_raw_job("running", 1, JobSpecBuilder::new().queue_name("q")).await.unwrap();
    utils.add_raw_job("waiting", 1, JobSpecBuilder::new().queue_name("q").job_key("w")).await.unwrap();
    utils.add_raw_job("retrying", 1, JobSpecBuilder::new().run_at(later)).await.unwrap();
    let failed = utils.add_raw_job("failed", 1, JobSpec::default()).await.unwrap();
    utils.permanently_fail_jobs(&[failed.id()], "by \0 hand").await.unwrap();
    let lock = "update graphile_worker._private_jobs set locked_at = now(), locked_by = 'w' where task_id =
        (select id from graphile_worker._private_tasks where identifier = 'running');
      update graphile_worker._private_job_queues set locked_at = now(), locked_by = 'w';
      update graphile_worker._private_jobs set attempts = 1 where task_id =
        (select id from graphile_worker._private_tasks where identifier = 'retrying')";
    db.client().await.batch_execute(lock).await.unwrap();

    let counts = utils.count_jobs().await.unwrap();
    assert_eq!(
        (counts.ready, counts.waiting, counts.scheduled, counts.retrying, counts.running, counts.failed),
        (1, 1, 1, 1, 1, 1)
    );
    for (state, task) in [
        (JobState::Ready, "ready"),
        (JobState::Waiting, "waiting"),
        (JobState::Scheduled, "scheduled"),
        (JobState::Retrying, "retrying"),
        (JobState::Running, "running"),
        (JobState::Failed, "failed"),
    ] {
        let filter = JobFilter { states: Some(vec![state]), ..JobFilter::default() };
        let jobs = utils.list_jobs(&filter).await.unwrap();
        assert_eq!(jobs.iter().map(|job| job.task_identifier()).collect::<Vec<_>>(), [task]);
    }
    let page = JobFilter { limit: 4, ..JobFilter::default() };
    let first = utils.list_jobs(&page).await.unwrap();
    let rest = utils.list_jobs(&JobFilter { after_id: Some(first[3].id()), ..page }).await.unwrap();
    assert_eq!((first.len(), rest.len()), (4, 2));
    let by_key = JobFilter { key: Some("w".into()), ..JobFilter::default() };
    assert_eq!(utils.list_jobs(&by_key).await.unwrap()[0].task_identifier(), "waiting");
    let by_error = JobFilter { error_contains: Some("hand".into()), ..JobFilter::default() };
    assert_eq!(utils.list_jobs(&by_error).await.unwrap()[0].last_error(), Some("by \u{fffd} hand"));
}

#[tokio::test]
async fn jobs_are_completed_rescheduled_removed_and_unlocked() {
    let db = Database::migrated().await;
    let utils = utils(&db).await;
    let a = utils.add_raw_job("a", 1, JobSpecBuilder::new().priority(3)).await.unwrap();
    let b = utils.add_raw_job("b", 1, JobSpecBuilder::new().job_key("b")).await.unwrap();
    let options = RescheduleJobOptions { priority: Some(0), max_attempts: Some(2), ..Default::default() };
    let changed = utils.reschedule_jobs(&[a.id()], options).await.unwrap();
    assert_eq!((changed[0].priority(), changed[0].max_attempts(), changed[0].task_identifier()), (0, 2, "a"));
    assert_eq!(utils.complete_jobs(&[a.id(), 999]).await.unwrap().len(), 1);
    assert_eq!(utils.remove_job("b").await.unwrap().unwrap().id(), b.id());
    assert!(utils.remove_job("b").await.unwrap().is_none());
    let c = utils.add_raw_job("c", 1, JobSpec::default()).await.unwrap();
    let lock = "update graphile_worker._private_jobs set locked_at = now(), locked_by = 'gone'";
    db.client().await.batch_execute(lock).await.unwrap();
    assert!(utils.complete_jobs(&[c.id()]).await.unwrap().is_empty());
    utils.force_unlock_workers(&["gone"]).await.unwrap();
    assert_eq!(utils.complete_jobs(&[c.id()]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_clean_up_deletes_only_unused_queues_unused_tasks_and_permanently_failed_jobs() {
    let db = Database::migrated().await;
    let utils = utils(&db).await;
    let done = utils.add_raw_job("done", 1, JobSpecBuilder::new().queue_name("done")).await.unwrap();
    let kept = utils.add_raw_job("kept", 1, JobSpecBuilder::new().queue_name("kept")).await.unwrap();
    // A job without a queue must not keep unused queues alive (`not in` and null).
    utils.add_raw_job("plain", 1, JobSpec::default()).await.unwrap();
    utils.permanently_fail_jobs(&[done.id()], "x").await.unwrap();
    let all = [CleanupTask::GcJobQueues, CleanupTask::GcTaskIdentifiers, CleanupTask::DeletePermafailedJobs];
    utils.cleanup(&all, &["needed"]).await.unwrap();
    let client = db.client().await;
    let names = "select array_agg(n order by n) from (
      select identifier as n from graphile_worker._private_tasks
      union all select queue_name from graphile_worker._private_job_queues) as names";
    let names: Vec<String> = client.query_one(names, &[]).await.unwrap().get(0);
    assert_eq!(names, ["kept", "kept", "plain"]);
    assert!(utils.get_job(kept.id()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_worker_runs_jobs_of_a_task_that_was_cleaned_up_and_added_again() {
    let db = Database::migrated().await;
    let worker = super::support::options(&db).define_raw_job("t", |_| async {}).init().await.unwrap();
    let utils = worker.create_utils();
    for _ in 0..2 {
        utils.add_raw_job("t", 1, JobSpec::default()).await.unwrap();
        worker.run_once().await.unwrap();
        assert_eq!(utils.count_jobs().await.unwrap().total(), 0);
        utils.cleanup(&[CleanupTask::GcTaskIdentifiers], &[]).await.unwrap();
    }
}

#[tokio::test]
async fn run_does_everything_in_one_call() {
    let db = Database::empty().await;
    atta::run_migrations(&db.url()).await.unwrap();
    let job = atta::quick_add_job(&db.url(), "hello", json!({ "a": 1 }), JobSpec::default()).await.unwrap();
    assert_eq!(job.payload_json(), r#"{"a":1}"#);
    let options = super::support::options(&db).define_raw_job("hello", |_| async {});
    atta::run_once(options).await.unwrap();
    assert_eq!(utils(&db).await.count_jobs().await.unwrap().total(), 0);
}
