//! sqlx.

use std::time::Duration;

use ::sqlx::postgres::PgPoolOptions;
use ::sqlx::{Connection, Executor, PgConnection, PgPool};
use atta::JobSpec;
use serde_json::json;
use testkit::Database;

use super::{add_three, add_wrong, assert_refused, count, cut_connections, utils};

#[tokio::test]
async fn jobs_added_in_a_transaction_are_there_after_its_commit() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    let pool = PgPool::connect(&db.url()).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    add_three(&utils, &mut transaction).await;
    assert_eq!(count(&utils).await, 0);
    transaction.commit().await.unwrap();
    assert_eq!(count(&utils).await, 3);
}

#[tokio::test]
async fn jobs_added_in_a_transaction_are_gone_after_its_rollback() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    let mut connection = PgConnection::connect(&db.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    add_three(&utils, &mut transaction).await;
    add_three(&utils, &mut *transaction).await;
    transaction.rollback().await.unwrap();
    assert_eq!(count(&utils).await, 0);
}

#[tokio::test]
async fn jobs_added_in_a_transaction_begun_by_hand_are_gone_after_its_rollback() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    let mut connection = PgConnection::connect(&db.url()).await.unwrap();
    connection.execute("begin").await.unwrap();
    add_three(&utils, &mut connection).await;
    connection.execute("rollback").await.unwrap();
    assert_eq!(count(&utils).await, 0);
}

#[tokio::test]
async fn jobs_added_outside_a_transaction_are_there_at_once() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    let mut connection = PgPool::connect(&db.url()).await.unwrap().acquire().await.unwrap();
    add_three(&utils, &mut connection).await;
    assert_eq!(count(&utils).await, 3);
    assert_refused(&add_wrong(&utils, &mut connection).await);
    add_three(&utils, &mut connection).await;
    assert_eq!(count(&utils).await, 6);
}

#[tokio::test]
async fn a_rejected_job_has_an_error_with_the_reason() {
    let db = Database::migrated().await;
    let mut connection = PgConnection::connect(&db.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    assert_refused(&add_wrong(&utils(&db), &mut transaction).await);
}

#[tokio::test]
async fn a_lost_connection_is_transient() {
    let db = Database::migrated().await;
    let mut connection = PgConnection::connect(&db.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    cut_connections(&db).await;
    let error = add_wrong(&utils(&db), &mut transaction).await;
    assert!(error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn a_missing_schema_is_reported() {
    let db = Database::empty().await;
    let mut connection = PgConnection::connect(&db.url()).await.unwrap();
    let error = add_wrong(&utils(&db), &mut connection).await;
    assert!(error.hint().is_some_and(|hint| hint.contains("atta migrate")), "{error:?}");
}

/// A service whose callers have short timeouts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_jobs_are_committed_although_other_adds_time_out() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    let pool = PgPoolOptions::new().max_connections(5).connect(&db.url()).await.unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..5_u64 {
        let (utils, pool) = (utils.clone(), pool.clone());
        callers.spawn(async move {
            let mut acknowledged = Vec::new();
            for n in 0..200_u64 {
                let mut connection = pool.acquire().await.unwrap();
                let patience = match n % 10 {
                    0 => Duration::from_micros((caller * 200 + n) * 7919 % 3000),
                    _ => testkit::DEADLINE,
                };
                let add = utils.add_raw_job_in(&mut connection, "task", json!(n), JobSpec::default());
                if let Ok(added) = tokio::time::timeout(patience, add).await {
                    acknowledged.push(added.unwrap().id());
                }
            }
            acknowledged
        });
    }
    // A transaction that stays open would block the others.
    let ended = tokio::time::timeout(testkit::DEADLINE, callers.join_all()).await;
    let acknowledged = ended.expect("no add waits for one that was dropped").concat();
    assert!(acknowledged.len() >= 900, "{}", acknowledged.len());
    pool.close().await;
    let sql = "select count(*) from graphile_worker.jobs where id = any ($1)";
    let committed: i64 = db.client().await.query_one(sql, &[&acknowledged]).await.unwrap().get(0);
    assert_eq!(committed, i64::try_from(acknowledged.len()).unwrap());
}
