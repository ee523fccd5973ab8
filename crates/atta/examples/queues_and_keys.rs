//! A queue, whose jobs run one after the other; and a job key, by which later adds change a waiting job.

use atta::{JobSpecBuilder, WorkerOptions, testing};
use chrono::{TimeDelta, Utc};
use serde_json::json;

#[tokio::main]
async fn main() -> atta::Result<()> {
    let worker = WorkerOptions::default()
        .concurrency(10)
        .define_raw_job("charge", |ctx| async move { println!("charging {}", ctx.job().payload_json()) })
        .init()
        .await?;
    let utils = worker.create_utils();

    // The worker has ten slots, but runs these jobs one after the other, in the order in which they were added.
    for amount in [3, 5, 8] {
        let spec = JobSpecBuilder::new().queue_name("account:7");
        utils.add_raw_job("charge", json!({ "amount": amount }), spec).await?;
    }
    worker.run_once().await?;

    // Each add replaces the waiting job and postpones it: the index is updated one minute after the last change.
    for page in [1, 2] {
        let spec = JobSpecBuilder::new().job_key("search-index").run_at(Utc::now() + TimeDelta::minutes(1));
        utils.add_raw_job("update_index", json!({ "page": page }), spec).await?;
    }
    println!("one job: {}", testing::assert_added(&utils, "update_index").await.payload_json());
    Ok(())
}
