//! A worker with one task, and a job for it. The smallest program that does something.
//!
//! Run it with `DATABASE_URL=postgres://… cargo run --example quickstart`.

use atta::{JobSpec, Task, TaskResult, WorkerContext, WorkerOptions};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Hello {
    name: String,
}

impl Task for Hello {
    const IDENTIFIER: &'static str = "hello";

    async fn run(self, ctx: WorkerContext) -> TaskResult {
        println!("Hello, {}! (job {}, attempt {})", self.name, ctx.job().id(), ctx.job().attempts());
        // After an error, by `?` for example, the job is retried later.
        Ok(())
    }
}

#[tokio::main]
async fn main() -> atta::Result<()> {
    // Reads DATABASE_URL, and installs the schema if it does not exist.
    let worker = WorkerOptions::default().define_job::<Hello>().init().await?;

    worker.create_utils().add_job(Hello { name: "Bobby Tables".into() }, JobSpec::default()).await?;

    // Runs due jobs and returns; `run` would go on forever.
    worker.run_once().await
}
