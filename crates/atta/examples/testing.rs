//! How an application tests its jobs: it runs due jobs immediately, and moves the clock instead of waiting.

use atta::{JobSpecBuilder, WorkerOptions, testing};
use chrono::TimeDelta;
use serde_json::json;

#[tokio::main]
async fn main() -> atta::Result<()> {
    let clock = testing::Clock::system();
    let worker = WorkerOptions::default()
        .clock(clock.clone())
        .define_raw_job("remind", |ctx| async move { println!("reminding {}", ctx.job().payload_json()) })
        .init()
        .await?;
    let utils = worker.create_utils();

    // The code under test.
    let next_week = clock.now() + TimeDelta::days(7);
    utils.add_raw_job("remind", json!({ "user": 42 }), JobSpecBuilder::new().run_at(next_week)).await?;

    let job = testing::assert_added(&utils, "remind").await;
    println!("added for later: {}", job.run_at() > clock.now());
    println!("ran now: {}", testing::run_due_jobs(&worker).await?.count());
    clock.advance(TimeDelta::days(8));
    let ran = testing::run_due_jobs(&worker).await?;
    ran.assert_no_failures();
    println!("ran next week: {}", ran.count());
    Ok(())
}
