//! A worker that shuts down in an orderly way: it claims no new jobs, and lets the running one finish.
//!
//! A service would set `listen_os_shutdown_signals(true)`; here the program requests the shutdown itself.

use std::sync::Arc;
use std::time::Duration;

use atta::{JobSpec, WorkerOptions};
use serde_json::json;
use tokio::sync::Notify;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let started = Arc::new(Notify::new());
    let task_started = started.clone();
    let worker = WorkerOptions::default()
        .concurrency(1)
        .shutdown_grace_period(Duration::from_secs(20))
        .define_raw_job("slow", move |_ctx| {
            let started = task_started.clone();
            async move {
                println!("started");
                started.notify_one();
                tokio::time::sleep(Duration::from_millis(300)).await;
                println!("finished");
            }
        })
        .init()
        .await?;
    let (handle, utils) = (worker.handle(), worker.create_utils());
    let running = tokio::spawn(async move { worker.run().await });

    utils.add_raw_job("slow", json!({ "n": 1 }), JobSpec::default()).await?;
    started.notified().await;
    handle.request_shutdown();
    utils.add_raw_job("slow", json!({ "n": 2 }), JobSpec::default()).await?;
    running.await??;

    println!("{} job left for the next worker", utils.count_jobs().await?.ready);
    Ok(())
}
