//! Adding very many jobs at once: the same rows as with the SQL function, but faster.

use atta::{JobSpec, RawJobSpec, WorkerUtils};
use chrono::{DateTime, Utc};
use serde_json::json;
use testkit::Database;

/// Jobs of every shape, without keys.
fn specs(count: usize) -> Vec<RawJobSpec> {
    let at: DateTime<Utc> = "2031-02-03T04:05:06.789012Z".parse().unwrap();
    (0..count)
        .map(|n| {
            let spec = JobSpec {
                queue_name: (n % 3 == 0).then(|| format!("queue \"{}\" ü", n % 6)),
                run_at: (n % 4 == 0).then_some(at),
                max_attempts: (n % 5 == 0).then_some(7),
                priority: (n % 2 == 0).then_some(-3),
                flags: (n % 7 == 0).then(|| vec!["b".to_owned(), "a\"".to_owned(), "b".to_owned()]),
                ..JobSpec::default()
            };
            RawJobSpec::new(format!("task {}", n % 4), json!({ "n": n, "text": "ü\u{1F41C}\n" }), spec)
                .unwrap()
        })
        .collect()
}

/// The rows without ids and the time of the add, which always differ.
const ROWS: &str = "select coalesce(json_agg(row_to_json(job) order by job.n), '[]')::text from (
    select (payload ->> 'n')::int as n, payload::text, task.identifier, queue.queue_name, priority, max_attempts,
      case when run_at = job.created_at then null else run_at end as run_at, attempts, key, revision, flags, last_error
    from graphile_worker._private_jobs as job
    join graphile_worker._private_tasks as task on task.id = task_id
    left join graphile_worker._private_job_queues as queue on queue.id = job_queue_id
  ) as job";

async fn rows(db: &Database) -> String {
    db.client().await.query_one(ROWS, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn many_jobs_are_the_same_rows_as_one_by_one() {
    let (one_by_one, together, counted) =
        (Database::migrated().await, Database::migrated().await, Database::migrated().await);
    let utils = WorkerUtils::connect(&one_by_one.url()).unwrap();
    for spec in specs(120) {
        utils.add_raw_jobs(&[spec]).await.unwrap();
    }
    let expected = rows(&one_by_one).await;
    WorkerUtils::connect(&together.url()).unwrap().add_raw_jobs(&specs(120)).await.unwrap();
    assert_eq!(rows(&together).await, expected);
    let count = WorkerUtils::connect(&counted.url()).unwrap().insert_raw_jobs(&specs(120)).await.unwrap();
    assert_eq!(count, 120);
    assert_eq!(rows(&counted).await, expected);
}

#[tokio::test]
async fn the_returned_jobs_are_the_stored_jobs_in_order() {
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    utils.add_raw_jobs(&specs(3)).await.unwrap();
    let jobs = utils.add_raw_jobs(&specs(100)).await.unwrap();
    assert!(jobs.is_sorted_by_key(|job| job.id()));
    for (n, job) in jobs.iter().enumerate() {
        let stored = utils.get_job(job.id()).await.unwrap().unwrap();
        assert_eq!(format!("{stored:?}"), format!("{job:?}"), "{n}");
    }
    let next = utils.add_raw_job("next", 1, JobSpec::default()).await.unwrap();
    assert!(next.id() > jobs[99].id(), "ids are not given out twice");
}

#[tokio::test]
async fn a_bulk_add_follows_its_transaction_and_sends_one_notification() {
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let mut client = utils.pool().get().await.unwrap();
    let mut transaction = client.transaction().await.unwrap();
    assert_eq!(utils.insert_raw_jobs_in(&mut transaction, &specs(80)).await.unwrap(), 80);
    transaction.rollback().await.unwrap();
    assert_eq!(utils.count_jobs().await.unwrap().total(), 0);

    let mut listener = crate::sql_api::support::Listener::on(&db, "jobs:insert").await;
    utils.insert_raw_jobs(&specs(80)).await.unwrap();
    let notices = listener.received().await;
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("\"count\" : 80"), "{notices:?}");
}

#[tokio::test]
async fn an_invalid_job_among_many_is_rejected_with_its_code_and_nothing_is_added() {
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let mut jobs = specs(80);
    jobs.push(RawJobSpec::new("x".repeat(129), 1, JobSpec::default()).unwrap());
    let error = utils.insert_raw_jobs(&jobs).await.unwrap_err();
    assert_eq!(error.db_code(), Some("GWBID"));
    assert_eq!(utils.count_jobs().await.unwrap().total(), 0);
}
