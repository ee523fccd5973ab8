//! diesel-async.

use std::error::Error as StdError;

use ::diesel_async::{AsyncConnection, AsyncPgConnection};
use atta::{JobKeyMode, JobSpecBuilder, WorkerUtils};
use serde_json::json;
use testkit::Database;

use super::{add_three, add_wrong, assert_refused, count, cut_connections, utils};

type BoxError = Box<dyn StdError + Send + Sync>;

async fn connect(db: &Database) -> AsyncPgConnection {
    AsyncPgConnection::establish(&db.url()).await.unwrap()
}

#[tokio::test]
async fn jobs_added_in_a_transaction_are_there_after_its_commit() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    let add = async |connection: &mut AsyncPgConnection| -> Result<(), BoxError> {
        add_three(&utils, connection).await;
        assert_eq!(count(&utils).await, 0);
        Ok(())
    };
    connect(&db).await.transaction(add).await.unwrap();
    assert_eq!(count(&utils).await, 3);
}

#[tokio::test]
async fn jobs_added_in_a_transaction_are_gone_after_its_rollback() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    let add = async |connection: &mut AsyncPgConnection| -> Result<(), BoxError> {
        add_three(&utils, connection).await;
        Err("changed my mind".into())
    };
    connect(&db).await.transaction(add).await.unwrap_err();
    assert_eq!(count(&utils).await, 0);
}

#[tokio::test]
async fn jobs_added_outside_a_transaction_are_there_at_once() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    add_three(&utils, &mut connect(&db).await).await;
    assert_eq!(count(&utils).await, 3);
}

#[tokio::test]
async fn a_rejected_job_has_an_error_with_the_reason() {
    let db = Database::migrated().await;
    let utils = utils(&db);
    let mut connection = connect(&db).await;
    assert_refused(&add_wrong(&utils, &mut connection).await);
    assert_eq!(
        code(&utils, &mut connection, JobSpecBuilder::new().queue_name("q".repeat(129))).await,
        "GWBQN"
    );
    assert_eq!(code(&utils, &mut connection, JobSpecBuilder::new().job_key("k".repeat(513))).await, "GWBJK");
    assert_eq!(code(&utils, &mut connection, JobSpecBuilder::new().job_key("")).await, "GWBJK");
    assert_eq!(code(&utils, &mut connection, JobSpecBuilder::new().max_attempts(0)).await, "GWBMA");
}

async fn code(utils: &WorkerUtils, connection: &mut AsyncPgConnection, spec: JobSpecBuilder) -> String {
    let spec = spec.job_key_mode(JobKeyMode::Replace);
    let error = utils.add_raw_job_in(connection, "task", json!({}), spec).await.unwrap_err();
    error.db_code().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_lost_connection_is_transient() {
    let db = Database::migrated().await;
    let mut connection = connect(&db).await;
    cut_connections(&db).await;
    let error = add_wrong(&utils(&db), &mut connection).await;
    assert!(error.is_transient(), "{error:?}");
}
