//! Listing everything, and managing jobs by id, from Rust.

use atta::{JobFilter, JobSpecBuilder, JobState, WorkerStatus, WorkerUtils};
use chrono::{TimeDelta, Utc};
use serde_json::json;
use testkit::{Database, fill_sql};
use tokio_postgres::Client;

use super::support::{Running, options};

async fn fill(client: &Client) {
    let jobs = "
        select graphile_worker.add_job('a', queue_name := 'q', job_key := 'k');
        select graphile_worker.add_job('a', queue_name := 'q');
        select graphile_worker.add_job('b', run_at := '-infinity');
        update graphile_worker._private_jobs set locked_at = now(), locked_by = 'node' where id = 1;
        update graphile_worker._private_job_queues set locked_at = now(), locked_by = 'node';
        insert into graphile_worker._private_known_crontabs values ('c', '2026-01-01Z', null);";
    client.batch_execute(jobs).await.expect("jobs are added");
}

#[tokio::test]
async fn queues_tasks_workers_and_cron_items_are_listed() {
    let db = Database::migrated().await;
    fill(&db.client().await).await;
    let worker = Running::start(options(&db).define_raw_job("known", |_| async {})).await;
    let utils = &worker.utils;
    let queues = utils.list_queues(None, 10).await.unwrap();
    assert_eq!((queues.len(), queues[0].queue_name.as_str()), (1, "q"));
    assert_eq!((queues[0].locked_by.as_deref(), queues[0].jobs.waiting), (Some("node"), 1));
    assert!(utils.list_queues(Some("q"), 10).await.unwrap().is_empty());

    testkit::wait_for("the worker to be known", || async {
        let workers = utils.list_workers().await.unwrap();
        (workers.len() == 2).then_some(())
    })
    .await;
    let workers = utils.list_workers().await.unwrap();
    assert_eq!((workers[0].status(), workers[1].status()), (WorkerStatus::Alive, WorkerStatus::Foreign));
    assert_eq!((workers[1].id.as_str(), workers[1].jobs, workers[1].queues), ("node", 1, 1));

    let tasks = utils.list_tasks(Some("a"), 10).await.unwrap();
    let names: Vec<(&str, u64)> =
        tasks.iter().map(|task| (task.task_identifier.as_str(), task.workers)).collect();
    assert_eq!(names, [("b", 0), ("known", 1)]);
    assert_eq!(utils.unknown_tasks(&["a", "known", "other"]).await.unwrap(), ["other"]);
    let known = utils.list_known_crontabs().await.unwrap();
    assert_eq!((known[0].identifier.as_str(), known[0].last_execution), ("c", None));
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn statistics_count_all_and_each_task_and_queue() {
    let db = Database::migrated().await;
    fill(&db.client().await).await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let stats = utils.read_stats(10).await.unwrap();
    assert_eq!((stats.jobs.total(), stats.jobs.running, stats.jobs.ready), (3, 1, 1));
    let tasks: Vec<(&str, u64)> =
        stats.tasks.iter().map(|(task, jobs)| (task.as_str(), jobs.total())).collect();
    assert_eq!(tasks, [("a", 2), ("b", 1)]);
    let queues: Vec<(Option<&str>, u64)> =
        stats.queues.iter().map(|(queue, jobs)| (queue.as_deref(), jobs.total())).collect();
    assert_eq!(queues, [(Some("q"), 2), (None, 1)]);
    let top = utils.read_stats(1).await.unwrap();
    assert_eq!((top.jobs, top.tasks.len(), top.queues.len()), (stats.jobs, 1, 1));
    assert!(utils.read_job_counters().await.unwrap().is_some());
    let none = Database::migrated().await;
    let none = WorkerUtils::connect(&none.url()).unwrap().read_stats(10).await.unwrap();
    assert_eq!((none.jobs.total(), none.tasks.len(), none.queues.len()), (0, 0, 0));
}

#[tokio::test]
async fn a_retried_job_is_due_at_once_and_workers_are_notified() {
    let db = Database::migrated().await;
    // Too long for a test: only a notification can wake the worker.
    let slow = std::time::Duration::from_secs(600);
    let worker = Running::start(options(&db).poll_interval(slow).define_raw_job("t", |_| async {})).await;
    let spec = JobSpecBuilder::new().run_at(chrono::Utc::now() + chrono::TimeDelta::hours(1));
    let job = worker.utils.add_raw_job("t", json!({}), spec).await.unwrap();
    worker.utils.permanently_fail_jobs(&[job.id()], "no").await.unwrap();
    let retried = worker.utils.retry_jobs(&[job.id(), 999]).await.unwrap();
    assert_eq!((retried.len(), retried[0].attempts(), retried[0].task_identifier()), (1, 0, "t"));
    testkit::wait_for("the job to be done", || async {
        worker.utils.get_job(job.id()).await.unwrap().is_none().then_some(())
    })
    .await;
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn unlocking_a_job_frees_its_queue_and_no_other_lock() {
    let db = Database::migrated().await;
    let client = db.client().await;
    fill(&client).await;
    let other = "select graphile_worker.add_job('a', queue_name := 'r');
        update graphile_worker._private_jobs set locked_at = now(), locked_by = 'node' where id = 4;
        update graphile_worker._private_job_queues set locked_at = now(), locked_by = 'node' where queue_name = 'r'";
    client.batch_execute(other).await.unwrap();
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let unlocked = utils.unlock_jobs(&[1, 2, 99]).await.unwrap();
    assert_eq!((unlocked.len(), unlocked[0].id(), unlocked[0].locked_by()), (1, 1, None));
    let workers = utils.list_workers().await.unwrap();
    assert_eq!((workers.len(), workers[0].jobs, workers[0].queues), (1, 1, 1));
}

#[tokio::test]
async fn listing_ids_returns_the_same_jobs_as_listing_jobs() {
    let db = Database::migrated().await;
    fill(&db.client().await).await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let every = JobFilter::default();
    for filter in [
        every.clone(),
        JobFilter { after_id: Some(1), limit: 1, ..every.clone() },
        JobFilter { states: Some(vec![JobState::Waiting]), ..every.clone() },
        JobFilter { ids: Some(vec![3, 1, 7, 1]), ..every.clone() },
        JobFilter { key: Some("k".into()), ..every.clone() },
        JobFilter { locked_by: Some("node".into()), ..every.clone() },
        JobFilter { newest_first: true, ..every.clone() },
        JobFilter { newest_first: true, after_id: Some(3), limit: 1, ..every.clone() },
    ] {
        let jobs = utils.list_jobs(&filter).await.unwrap();
        let ids = utils.list_job_ids(&filter).await.unwrap();
        assert_eq!(jobs.iter().map(|job| job.id()).collect::<Vec<_>>(), ids, "{filter:?}");
        assert!(!ids.is_empty(), "{filter:?}");
    }
}

#[tokio::test]
async fn ids_keys_and_later_pages_are_found_by_an_index() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let jobs = "insert into graphile_worker._private_tasks (identifier) values ('t');
      insert into graphile_worker._private_jobs (task_id, key) select 1, 'key ' || n from generate_series(1, 50000) as n;
      analyze graphile_worker._private_jobs, graphile_worker._private_tasks, graphile_worker._private_job_queues;";
    client.batch_execute(jobs).await.unwrap();
    let (page, by_ids, by_key, ids, newest, newest_ids) = (
        include_str!("../../../sql/queries/list_jobs.sql"),
        include_str!("../../../sql/queries/list_jobs_by_ids.sql"),
        include_str!("../../../sql/queries/list_jobs_by_key.sql"),
        include_str!("../../../sql/queries/list_job_ids.sql"),
        include_str!("../../../sql/queries/list_jobs_newest.sql"),
        include_str!("../../../sql/queries/list_job_ids_newest.sql"),
    );
    for (sql, filter, most) in [
        (page, json!({ "limit": 10 }), 10),
        (page, json!({ "limit": 10, "after_id": 40_000 }), 10),
        (ids, json!({ "limit": 10, "after_id": 40_000 }), 10),
        (newest, json!({ "limit": 10, "newest_first": true }), 10),
        (newest, json!({ "limit": 10, "newest_first": true, "after_id": 40_000 }), 10),
        (newest_ids, json!({ "limit": 10, "newest_first": true, "after_id": 40_000 }), 10),
        (by_ids, json!({ "limit": 10, "ids": [5, 40_000] }), 2),
        (by_key, json!({ "limit": 10, "key": "key 40000" }), 1),
    ] {
        let statement = fill_sql(sql).replace("$1::text", &format!("'{filter}'::text"));
        let plan = client.query(&format!("explain (analyze, costs off) {statement}"), &[]).await.unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        let on_jobs = plan.lines().find(|line| line.contains("on _private_jobs")).expect("it reads jobs");
        let rows = on_jobs.split("rows=").nth(1).and_then(|rest| rest.split([' ', '.']).next());
        let rows: u64 = rows.and_then(|rows| rows.parse().ok()).expect("it says how many");
        assert!(on_jobs.contains("Index Scan") && rows <= most, "{filter}: {plan}");
    }
}

#[tokio::test]
async fn locked_jobs_are_found_by_their_index() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let jobs = "insert into graphile_worker._private_tasks (identifier) values ('t');
      insert into graphile_worker._private_jobs (task_id) select 1 from generate_series(1, 50000);
      update graphile_worker._private_jobs set locked_at = now(), locked_by = 'w' where id in (7, 40000);
      vacuum analyze graphile_worker._private_jobs;";
    for statement in jobs.split_inclusive(';') {
        client.batch_execute(statement).await.unwrap();
    }
    let sql = fill_sql(include_str!("../../../sql/queries/list_locked_jobs.sql"));
    let statement = sql.replace("$1::text", "'{\"limit\": 10, \"locked_by\": \"w\"}'::text");
    let plan = client.query(&format!("explain (analyze, costs off) {statement}"), &[]).await.unwrap();
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    assert!(plan.contains("_atta_jobs_locked_index") && plan.contains("jobs_pkey"), "{plan}");
    assert!(!plan.contains("Seq Scan on _private_jobs"), "{plan}");
}

#[tokio::test]
async fn jobs_are_listed_newest_first_page_by_page() {
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    db.client()
        .await
        .batch_execute("select graphile_worker.add_job('t') from generate_series(1, 5)")
        .await
        .unwrap();
    let newest = JobFilter { newest_first: true, limit: 2, ..JobFilter::default() };
    let ids = async |filter: JobFilter| utils.list_job_ids(&filter).await.unwrap();
    assert_eq!(ids(newest.clone()).await, [5, 4]);
    assert_eq!(ids(JobFilter { after_id: Some(4), ..newest.clone() }).await, [3, 2]);
    let by_ids = JobFilter { ids: Some(vec![1, 2, 5]), after_id: Some(5), ..newest };
    assert_eq!(ids(by_ids).await, [2, 1]);
}

/// A job that failed, one that failed and was retried by hand, one that a worker has, and one that nobody has run.
#[tokio::test]
async fn jobs_are_found_by_the_time_they_failed_or_were_claimed_at_and_counted() {
    let db = Database::migrated().await;
    let (client, utils) = (db.client().await, WorkerUtils::connect(&db.url()).unwrap());
    client
        .batch_execute(
            "select graphile_worker.add_job('t') from generate_series(1, 4);
            update graphile_worker._private_jobs set attempts = 1, last_error = 'e', updated_at = now() - interval '1 hour' where id = 1;
            update graphile_worker._private_jobs set last_error = 'e' where id = 2;
            update graphile_worker._private_jobs set attempts = 1, locked_at = now() - interval '1 hour', locked_by = 'w' where id = 3",
        )
        .await
        .unwrap();
    let ago = |minutes| Some(Utc::now() - TimeDelta::minutes(minutes));
    for (filter, expected) in [
        (JobFilter { failed_since: ago(61), ..JobFilter::default() }, vec![1]),
        (JobFilter { failed_since: ago(59), ..JobFilter::default() }, vec![]),
        (JobFilter { locked_before: ago(59), ..JobFilter::default() }, vec![3]),
        (JobFilter { locked_before: ago(61), ..JobFilter::default() }, vec![]),
        (JobFilter { states: Some(vec![JobState::Running]), ..JobFilter::default() }, vec![3]),
        (
            JobFilter {
                failed_since: Some(chrono::DateTime::<Utc>::MIN_UTC),
                limit: 1,
                ..JobFilter::default()
            },
            vec![1],
        ),
    ] {
        assert_eq!(utils.list_job_ids(&filter).await.unwrap(), expected, "{filter:?}");
        assert_eq!(utils.count_matching_jobs(&filter).await.unwrap(), expected.len() as u64, "{filter:?}");
    }
    let all = JobFilter { limit: 1, ..JobFilter::default() };
    assert_eq!(utils.count_matching_jobs(&all).await.unwrap(), 4, "the limit does not count");
}
