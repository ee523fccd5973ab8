//! The harness of the crate graphile_worker. Settings: `500` and `5000`, the size of the local queue, with 24 and 500
//! jobs at a time respectively. Latency and lateness are measured without a local queue, which is the default.

use std::time::{Duration, Instant};

use bench_common::{Mode, Order, Result};
use chrono::DateTime;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions,
};
use graphile_worker::{JobSpecBuilder, Worker};
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Noop {}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        bench_common::noop();
    }
}

#[derive(Serialize, Deserialize)]
struct Ping {
    due: i64,
}

impl TaskHandler for Ping {
    const IDENTIFIER: &'static str = "ping";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        bench_common::ping(self.due);
    }
}

#[tokio::main]
async fn main() -> Result {
    let order = Order::read()?;
    let worker = options(&order)?.init().await?;
    match order.mode {
        Mode::Prepare => Ok(()),
        Mode::Add => add(&worker, order.count).await,
        Mode::Drain | Mode::Latency | Mode::Late => work(worker, &order).await,
        Mode::Part | Mode::Cost | Mode::Wait => {
            Err("only atta's harness has the modes part, cost and wait".into())
        },
    }
}

fn options(order: &Order) -> Result<WorkerOptions> {
    let (size, concurrency) = match order.setting.as_str() {
        "500" => (500, 24),
        "5000" => (5000, 500),
        other => return Err(format!("unknown setting {other:?}").into()),
    };
    let options = WorkerOptions::default()
        .database_url(&order.url)
        .concurrency(concurrency)
        .listen_os_shutdown_signals(false)
        .define_job::<Noop>()
        .define_job::<Ping>();
    if order.mode != Mode::Drain {
        return Ok(options);
    }
    // The shortest delays that its documentation recommends; without any, each job is completed on its own.
    Ok(options
        .local_queue(LocalQueueConfig::default().with_size(size))
        .complete_job_batch_delay(Duration::from_millis(1))
        .fail_job_batch_delay(Duration::from_millis(1)))
}

async fn add(worker: &Worker, count: usize) -> Result {
    let spec = JobSpec::default();
    let jobs: Vec<(Noop, &JobSpec)> = (0..count).map(|_| (Noop {}, &spec)).collect();
    bench_common::added(worker.create_utils().add_jobs(&jobs)).await
}

async fn work(worker: Worker, order: &Order) -> Result {
    let (utils, pool) = (worker.create_utils(), worker.pg_pool().clone());
    let start = Instant::now();
    let running = tokio::spawn(async move { worker.run().await.map_err(|error| error.to_string()) });
    let done = match order.mode {
        Mode::Drain => {
            let is_empty = async || {
                let sql = "select not exists (select from graphile_worker._private_jobs)";
                Ok(sqlx::query_scalar(sql).fetch_one(&pool).await?)
            };
            bench_common::drained(order.count, start, is_empty).await
        }
        Mode::Late => {
            let add = async |due| {
                let run_at = DateTime::from_timestamp_micros(due).ok_or("a time out of range")?;
                utils.add_job(Ping { due }, JobSpecBuilder::new().run_at(run_at).build()).await?;
                Ok(())
            };
            bench_common::late(order.count, add).await
        }
        Mode::Latency | Mode::Prepare | Mode::Add | Mode::Part | Mode::Cost | Mode::Wait => {
            let add = async |due| {
                utils.add_job(Ping { due }, JobSpec::default()).await?;
                Ok(())
            };
            bench_common::latency(order.count, add).await
        }
    };
    running.abort();
    done
}
