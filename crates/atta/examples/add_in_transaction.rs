//! A job that exists exactly if the rest of the transaction does.

use atta::{JobSpec, WorkerUtils, testing};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let utils = WorkerUtils::connect(&std::env::var("DATABASE_URL")?)?;
    utils.migrate().await?;
    let mut client = utils.pool().get().await?;
    client.batch_execute("create table if not exists users (id int primary key, name text)").await?;

    // Rolled back: neither the user nor the job exists.
    let mut transaction = client.transaction().await?;
    transaction.execute("insert into users values (1, 'Ann')", &[]).await?;
    utils.add_raw_job_in(&mut transaction, "welcome", json!({ "user": 1 }), JobSpec::default()).await?;
    transaction.rollback().await?;
    testing::assert_not_added(&utils, "welcome").await;
    println!("rolled back: no job");

    // Committed: both exist.
    let mut transaction = client.transaction().await?;
    transaction.execute("insert into users values (2, 'Bob')", &[]).await?;
    utils.add_raw_job_in(&mut transaction, "welcome", json!({ "user": 2 }), JobSpec::default()).await?;
    transaction.commit().await?;
    println!("committed: {}", testing::assert_added(&utils, "welcome").await.payload_json());
    Ok(())
}
