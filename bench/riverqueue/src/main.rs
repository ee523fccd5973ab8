//! The harness of the crate riverqueue. The only setting, `2000`, is the number of workers of its own bench command;
//! the pauses between fetches are that command's too.

use std::time::{Duration, Instant};

use bench_common::{Mode, Order, Result};
use riverqueue::jiff::Timestamp;
use riverqueue::migrate::PostgresMigrator;
use riverqueue::sqlx::PgPool;
use riverqueue::{
    BoxError, Client, InsertOpts, Job, JobArgs, QUEUE_DEFAULT, QueueConfig, WorkContext, WorkOutcome, Workers,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Deserialize, JobArgs, Serialize)]
#[river(kind = "noop")]
struct Noop {}

#[derive(Clone, Deserialize, JobArgs, Serialize)]
#[river(kind = "ping")]
struct Ping {
    due: i64,
}

async fn noop(_context: WorkContext, _job: Job<Noop>) -> Result<WorkOutcome, BoxError> {
    bench_common::noop();
    Ok(WorkOutcome::Complete)
}

async fn ping(_context: WorkContext, job: Job<Ping>) -> Result<WorkOutcome, BoxError> {
    bench_common::ping(job.args.due);
    Ok(WorkOutcome::Complete)
}

#[tokio::main]
async fn main() -> Result {
    let order = Order::read()?;
    let pool = PgPool::connect(&order.url).await?;
    if order.mode == Mode::Prepare {
        PostgresMigrator::new(pool).migrate_up().await?;
        return Ok(());
    }
    let client = client(pool.clone(), order.setting.parse()?)?;
    if order.mode == Mode::Add {
        let jobs: Vec<Noop> = (0..order.count).map(|_| Noop {}).collect();
        return bench_common::added(async { client.insert_many(jobs).await }).await;
    }
    work(&client, &pool, &order).await
}

fn client(pool: PgPool, workers: usize) -> Result<Client> {
    let mut tasks = Workers::new();
    tasks.add_fn(noop)?;
    tasks.add_fn(ping)?;
    let queue = QueueConfig::new(workers)
        .with_fetch_cooldown(Duration::from_millis(2))
        .with_fetch_poll_interval(Duration::from_millis(20));
    Ok(Client::builder(pool).workers(tasks).queue(QUEUE_DEFAULT, queue).build()?)
}

async fn work(client: &Client, pool: &PgPool, order: &Order) -> Result {
    let start = Instant::now();
    let mut running = client.start()?;
    let done = match order.mode {
        Mode::Drain => {
            // Completed jobs stay in its table for a day.
            let is_empty = async || {
                let sql = "select not exists (select from river_job where state <> 'completed')";
                Ok(sqlx::query_scalar(sql).fetch_one(pool).await?)
            };
            bench_common::drained(order.count, start, is_empty).await
        }
        Mode::Late => {
            let add = async |due| {
                let opts = InsertOpts::default().with_scheduled_at(Timestamp::from_microsecond(due)?);
                client.insert(Ping { due }).opts(opts).await?;
                Ok(())
            };
            bench_common::late(order.count, add).await
        }
        Mode::Latency | Mode::Prepare | Mode::Add | Mode::Part | Mode::Cost | Mode::Wait => {
            let add = async |due| {
                client.insert(Ping { due }).await?;
                Ok(())
            };
            bench_common::latency(order.count, add).await
        }
    };
    running.stop().await?;
    done
}
