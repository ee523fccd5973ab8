//! Two ways to follow a worker: events for observing, hooks for acting.

use atta::{HookFuture, Hooks, Job, JobSpec, WorkerEvent, WorkerOptions};
use serde_json::json;

/// Notifies somebody when a job has failed permanently.
struct Pager;

impl Hooks for Pager {
    fn on_permanent_failure<'a>(&'a self, job: &'a Job, error: &'a str) -> HookFuture<'a> {
        Box::pin(async move { println!("hook: {} failed permanently: {error}", job.task_identifier()) })
    }
}

#[tokio::main]
async fn main() -> atta::Result<()> {
    let options = WorkerOptions::default()
        .concurrency(1)
        .define_raw_job("good", |_ctx| async {})
        .define_raw_job("bad", |_ctx| async { Err::<(), _>("out of paper") })
        .add_hooks(Pager);
    let mut events = options.subscribe();
    let worker = options.init().await?;

    let once = JobSpec { max_attempts: Some(1), ..JobSpec::default() };
    worker.create_utils().add_raw_job("good", json!({}), JobSpec::default()).await?;
    worker.run_once().await?;
    worker.create_utils().add_raw_job("bad", json!({}), once).await?;
    worker.run_once().await?;

    while let Some(event) = events.try_next() {
        match event {
            WorkerEvent::JobSucceeded { job, .. } => println!("event: {} succeeded", job.task_identifier()),
            WorkerEvent::JobErrored { job, error } => {
                println!("event: {} failed: {error}", job.task_identifier())
            }
            _ => {}
        }
    }
    Ok(())
}
