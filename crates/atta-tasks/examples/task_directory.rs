//! A worker with a task in Rust, a folder of tasks in other languages, and a crontab.
//!
//! Run it in a folder that contains `tasks` and `crontab`, as the folder of this example does, with
//! `DATABASE_URL=postgres://… cargo run --manifest-path ../Cargo.toml --example task_directory`.

use std::time::Duration;

use atta::{HookFuture, Hooks, Job, JobSpec, Task, TaskResult, WorkerContext, WorkerOptions};
use atta_tasks::WorkerOptionsExt;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The task in Rust: it adds a job for each of the others.
#[derive(Serialize, Deserialize)]
struct Welcome {
    name: String,
}

impl Task for Welcome {
    const IDENTIFIER: &'static str = "welcome";

    async fn run(self, ctx: WorkerContext) -> TaskResult {
        for task in ["hello", "count_words", "disk_space"] {
            let payload = json!({ "name": self.name, "text": "to be or not to be" });
            ctx.utils().add_raw_job(task, payload, JobSpec::default()).await?;
        }
        Ok(())
    }
}

struct PrintCompleted;

impl Hooks for PrintCompleted {
    fn on_complete<'a>(&'a self, job: &'a Job) -> HookFuture<'a> {
        Box::pin(async move { println!("{} completed", job.task_identifier()) })
    }
}

#[tokio::main]
async fn main() -> atta::Result<()> {
    // First, because this process may be the guard: if the worker is killed, a second process of this program ends the
    // processes of its tasks.
    atta_tasks::run_guard_if_requested();

    let worker = WorkerOptions::default()
        .define_job::<Welcome>()
        .add_hooks(PrintCompleted)
        .crontab_file("crontab")?
        // The last option of the worker. It is followed by options of the folder.
        .task_directory("tasks")
        .time_limit(Duration::from_secs(60))
        .init()
        .await?;

    let welcome = Welcome { name: "Bobby Tables".into() };
    worker.create_utils().add_job(welcome, JobSpec::default()).await?;

    // Runs due jobs and returns. A service calls `run`, which goes on, and schedules the crontab.
    worker.run_once().await?;
    worker.close().await;
    Ok(())
}
