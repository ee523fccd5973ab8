//! SeaORM.

use ::sea_orm::{Database as SeaOrm, TransactionTrait};
use testkit::Database;

use super::{add_three, add_wrong, assert_refused, count, cut_connections, utils};

#[tokio::test]
async fn jobs_added_in_a_transaction_are_there_after_its_commit() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    let connection = SeaOrm::connect(db.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    add_three(&utils, &mut transaction).await;
    assert_eq!(count(&utils).await, 0);
    transaction.commit().await.unwrap();
    assert_eq!(count(&utils).await, 3);
}

#[tokio::test]
async fn jobs_added_in_a_transaction_are_gone_after_its_rollback() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    let connection = SeaOrm::connect(db.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    add_three(&utils, &mut transaction).await;
    transaction.rollback().await.unwrap();
    assert_eq!(count(&utils).await, 0);
}

#[tokio::test]
async fn jobs_added_outside_a_transaction_are_there_at_once() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    let mut connection = SeaOrm::connect(db.url()).await.unwrap();
    add_three(&utils, &mut connection).await;
    assert_eq!(count(&utils).await, 3);
    assert_refused(&add_wrong(&utils, &mut connection).await);
}

#[tokio::test]
async fn a_rejected_job_has_an_error_with_the_reason() {
    let db = Database::migrated().await;
    let connection = SeaOrm::connect(db.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    assert_refused(&add_wrong(&utils(&db), &mut transaction).await);
}

#[tokio::test]
async fn a_lost_connection_is_transient() {
    let db = Database::migrated().await;
    let connection = SeaOrm::connect(db.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    cut_connections(&db).await;
    let error = add_wrong(&utils(&db), &mut transaction).await;
    assert!(error.is_transient(), "{error:?}");
}
