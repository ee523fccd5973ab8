//! One schema for Rust and Node: each worker claims the jobs of the tasks that it knows, and no others.
//!
//! Node's `graphile-worker` may run on the same database at the same time, with a task `render_page`.

use atta::{JobSpec, JobSpecBuilder, WorkerOptions};
use serde_json::json;

#[tokio::main]
async fn main() -> atta::Result<()> {
    let worker = WorkerOptions::default()
        .concurrency(1)
        .define_raw_job("resize_image", |ctx| async move {
            println!("resizing {}", ctx.job().payload_json());
            // A job for Node's worker, in a queue whose jobs run one after the other on both sides.
            let spec = JobSpecBuilder::new().queue_name("page:7");
            ctx.utils().add_raw_job("render_page", json!({ "page": 7 }), spec).await.map(drop)
        })
        .init()
        .await?;
    let utils = worker.create_utils();
    utils.add_raw_job("resize_image", json!({ "image": 1 }), JobSpec::default()).await?;
    worker.run_once().await?;

    for job in atta::testing::jobs_of(&utils, "render_page").await? {
        println!("left for Node: {} {}", job.task_identifier(), job.payload_json());
    }
    Ok(())
}
