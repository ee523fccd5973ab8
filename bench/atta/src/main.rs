//! atta's harness. Settings: `held` and `durable`, both with 24 slots; `durable` claims up to 5000 jobs ahead, as the
//! fastest peer does. `held-N` is that number of workers with held claims, in this process. None of them claims jobs with
//! the flag `stuck`.

use std::time::Instant;

use atta::{
    Claims, IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions,
};
use atta::{RawJobSpec, Worker};
use bench_common::{Mode, Order, Result};
use chrono::DateTime;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
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
        Mode::Drain | Mode::Part | Mode::Latency | Mode::Late | Mode::Cost | Mode::Wait => {
            work(worker, &order).await
        }
    }
}

fn options(order: &Order) -> Result<WorkerOptions> {
    let options = WorkerOptions::default()
        .database_url(&order.url)
        .concurrency(24)
        .add_forbidden_flag("stuck")
        .define_job::<Noop>()
        .define_job::<Ping>();
    match (order.setting.as_str(), order.mode) {
        ("held", _) => Ok(options),
        (setting, _) if setting.starts_with("held-") => Ok(options),
        ("durable", Mode::Drain | Mode::Part) => {
            Ok(options.claims(Claims::Durable).local_queue(LocalQueueConfig::new(5000)))
        }
        ("durable", _) => Ok(options.claims(Claims::Durable)),
        (other, _) => Err(format!("unknown setting {other:?}").into()),
    }
}

async fn add(worker: &Worker, count: usize) -> Result {
    let jobs: atta::Result<Vec<RawJobSpec>> =
        (0..count).map(|_| RawJobSpec::new("noop", Noop {}, JobSpec::default())).collect();
    let (jobs, utils) = (jobs?, worker.create_utils());
    // Opens the connection.
    utils.count_jobs().await?;
    bench_common::added(utils.add_raw_jobs(&jobs)).await
}

async fn work(worker: Worker, order: &Order) -> Result {
    let utils = worker.create_utils();
    let client = utils.pool().get().await?;
    let mut workers = vec![worker];
    let count = match order.setting.strip_prefix("held-") {
        Some(number) => number.parse()?,
        None => 1,
    };
    for _ in 1..count {
        workers.push(options(order)?.init().await?);
    }
    let handles: Vec<_> = workers.iter().map(Worker::handle).collect();
    let start = Instant::now();
    let running: Vec<_> =
        workers.into_iter().map(|worker| tokio::spawn(async move { worker.run().await })).collect();
    let done = match order.mode {
        Mode::Drain => {
            let is_empty = async || {
                let sql = "select not exists (select from graphile_worker._private_jobs)";
                Ok(client.query_one(sql, &[]).await?.get(0))
            };
            bench_common::drained(order.count, start, is_empty).await
        }
        Mode::Part => bench_common::drained(order.count, start, async || Ok(true)).await,
        Mode::Late => {
            let add = async |due| {
                let run_at = DateTime::from_timestamp_micros(due).ok_or("a time out of range")?;
                utils.add_job(Ping { due }, JobSpec { run_at: Some(run_at), ..JobSpec::default() }).await?;
                Ok(())
            };
            bench_common::late(order.count, add).await
        }
        Mode::Cost => {
            let add = || {
                let utils = utils.clone();
                async move {
                    utils.add_job(Noop {}, JobSpec::default()).await?;
                    Ok(())
                }
            };
            bench_common::cost(order.count, add).await
        }
        Mode::Wait => bench_common::wait().await,
        Mode::Latency | Mode::Prepare | Mode::Add => {
            let add = async |due| {
                utils.add_job(Ping { due }, JobSpec::default()).await?;
                Ok(())
            };
            bench_common::latency(order.count, add).await
        }
    };
    // Workers that end without a shutdown would be declared dead, and after two deaths the next worker would hold no
    // jobs.
    for handle in &handles {
        handle.request_shutdown();
    }
    for one in running {
        one.await??;
    }
    done
}
