//! The workers of the benchmark, and their two tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atta::{Claims, LocalQueueConfig, TaskError, Worker, WorkerContext, WorkerHandle, WorkerOptions};
use chrono::{DateTime, Utc};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use crate::args::{Bench, ClaimsChoice};
use crate::output::Failure;

/// Only counts; fails if the job has only one attempt.
pub(super) const COUNTED_TASK: &str = "atta_bench_count";
/// Reports when it started.
pub(super) const TIMED_TASK: &str = "atta_bench_time";

/// If no job runs for this long, something is wrong.
const STALLED: Duration = Duration::from_secs(60);

/// Running workers. They outlive a measurement that was interrupted, so that they can still shut down properly.
#[derive(Default)]
pub(super) struct Fleet {
    handles: Vec<WorkerHandle>,
    running: JoinSet<atta::Result<()>>,
}

impl Fleet {
    pub(super) fn start(&mut self, workers: Vec<Worker>) {
        for worker in workers {
            self.handles.push(worker.handle());
            self.running.spawn(async move { worker.run().await });
        }
    }

    /// Returns when all workers have released their jobs and ended. May be called again if it was interrupted.
    pub(super) async fn stop(&mut self) -> Result<(), Failure> {
        for handle in &self.handles {
            handle.request_shutdown();
        }
        let mut failure = None;
        while let Some(ended) = self.running.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failure = Some(error.into()),
                Err(error) => failure = Some(Failure::new(format!("a worker failed: {error}"))),
            }
        }
        self.handles.clear();
        failure.map_or(Ok(()), Err)
    }
}

/// A worker with the requested settings.
pub(super) async fn worker(
    args: &Bench,
    url: &str,
    tally: &Arc<Tally>,
    starts: Option<mpsc::UnboundedSender<Start>>,
) -> Result<Worker, Failure> {
    let counted = tally.clone();
    let mut options = WorkerOptions::default()
        .database_url(url)
        .schema(args.connection.schema.as_str())
        .concurrency(args.concurrency)
        .claims(match args.claims {
            ClaimsChoice::Held => Claims::Held,
            ClaimsChoice::Durable => Claims::Durable,
        })
        .define_raw_job(COUNTED_TASK, move |ctx| {
            let done = count(&counted, &ctx);
            async move { done }
        });
    if let Some(starts) = starts {
        options = options.define_raw_job(TIMED_TASK, move |ctx| {
            let start = Start { at: Instant::now(), time: Utc::now(), run_at: ctx.job().run_at() };
            // The receiver exists until the worker ends.
            let _ = starts.send(start);
            std::future::ready(())
        });
    }
    if let Some(size) = args.local_queue {
        options = options.local_queue(LocalQueueConfig::new(size));
    }
    Ok(options.init().await?)
}

fn count(tally: &Tally, ctx: &WorkerContext) -> Result<(), TaskError> {
    tally.add();
    match ctx.job().max_attempts() {
        1 => Err(TaskError::new("failed on purpose: --fail-rate")),
        _ => Ok(()),
    }
}

/// When a timed job started, by the monotonic clock and by the wall clock, and when it should have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) at: Instant,
    pub(super) time: DateTime<Utc>,
    pub(super) run_at: DateTime<Utc>,
}

/// How many jobs were run.
#[derive(Debug)]
pub(super) struct Tally {
    count: AtomicU64,
    target: u64,
    reached: Notify,
}

impl Tally {
    /// A tally for a caller that waits until this many jobs have run.
    pub(super) fn towards(target: u64) -> Arc<Tally> {
        Arc::new(Tally { count: AtomicU64::new(0), target, reached: Notify::new() })
    }

    /// A tally for which nobody waits.
    pub(super) fn endless() -> Arc<Tally> {
        Tally::towards(u64::MAX)
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn add(&self) {
        if self.count.fetch_add(1, Ordering::Relaxed) + 1 == self.target {
            self.reached.notify_one();
        }
    }

    /// Waits until the target is reached, and reports the progress now and then.
    pub(super) async fn wait(&self, say: impl Fn(u64)) -> Result<(), Failure> {
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            let tick = Duration::from_millis(100);
            if tokio::time::timeout(tick, self.reached.notified()).await.is_ok() {
                return Ok(());
            }
            let count = self.count();
            say(count);
            if count > seen {
                (seen, since) = (count, Instant::now());
            } else if since.elapsed() > STALLED {
                let (target, seconds) = (self.target, STALLED.as_secs());
                return Err(Failure::new(format!(
                    "only {count} of {target} jobs have run, and none in the last {seconds} s"
                )));
            }
        }
    }
}
