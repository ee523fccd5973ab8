//! One transaction per library, as the guide shows it: docs/guides/transactions.md contains parts of this file.

use atta::{JobSpec, WorkerUtils, testing};
use serde_json::json;
use testkit::Database;

use super::utils;

const TABLE: &str = "create table users (id int primary key)";

async fn with_table() -> (Database, WorkerUtils) {
    let db = Database::migrated().await;
    db.client().await.batch_execute(TABLE).await.unwrap();
    let utils = utils(&db);
    (db, utils)
}

/// Both the row and the job exist.
async fn assert_committed(db: &Database, utils: &WorkerUtils) {
    let users: i64 = db.client().await.query_one("select count(*) from users", &[]).await.unwrap().get(0);
    assert_eq!(users, 1);
    assert_eq!(testing::assert_added(utils, "welcome").await.payload_json(), r#"{"user":1}"#);
}

#[tokio::test]
async fn tokio_postgres() -> Result<(), Box<dyn std::error::Error>> {
    let (db, utils) = with_table().await;
    let mut client = db.client().await;

    let mut transaction = client.transaction().await?;
    transaction.execute("insert into users values (1)", &[]).await?;
    utils.add_raw_job_in(&mut transaction, "welcome", json!({ "user": 1 }), JobSpec::default()).await?;
    transaction.commit().await?;

    assert_committed(&db, &utils).await;
    Ok(())
}

#[tokio::test]
async fn sqlx() -> Result<(), Box<dyn std::error::Error>> {
    let (db, utils) = with_table().await;
    let pool = ::sqlx::PgPool::connect(&db.url()).await?;

    let mut transaction = pool.begin().await?;
    ::sqlx::query("insert into users values (1)").execute(&mut *transaction).await?;
    utils.add_raw_job_in(&mut transaction, "welcome", json!({ "user": 1 }), JobSpec::default()).await?;
    transaction.commit().await?;

    assert_committed(&db, &utils).await;
    Ok(())
}

#[tokio::test]
async fn diesel_async() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    use ::diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};

    let (db, utils) = with_table().await;
    let mut connection = AsyncPgConnection::establish(&db.url()).await?;

    let sign_up = async |connection: &mut AsyncPgConnection| {
        diesel::sql_query("insert into users values (1)").execute(connection).await?;
        utils.add_raw_job_in(connection, "welcome", json!({ "user": 1 }), JobSpec::default()).await?;
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    };
    connection.transaction(sign_up).await?;

    assert_committed(&db, &utils).await;
    Ok(())
}

#[tokio::test]
async fn sea_orm() -> Result<(), Box<dyn std::error::Error>> {
    use ::sea_orm::{ConnectionTrait, TransactionTrait};

    let (db, utils) = with_table().await;
    let connection = ::sea_orm::Database::connect(db.url()).await?;

    let mut transaction = connection.begin().await?;
    transaction.execute_unprepared("insert into users values (1)").await?;
    utils.add_raw_job_in(&mut transaction, "welcome", json!({ "user": 1 }), JobSpec::default()).await?;
    transaction.commit().await?;

    assert_committed(&db, &utils).await;
    Ok(())
}
