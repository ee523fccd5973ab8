//! The worker: its tasks, which do almost nothing, and their counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use atta::{TaskError, Worker, WorkerContext, WorkerOptions};
use serde::{Deserialize, Serialize};

use crate::Result;

/// Does nothing.
pub(crate) const PLAIN: &str = "soak_plain";
/// The same, in a queue.
pub(crate) const QUEUED: &str = "soak_queued";
/// The same, with a key or a time: not to be run at once.
pub(crate) const LATER: &str = "soak_later";
/// Fails at its first attempt.
pub(crate) const FAILS_ONCE: &str = "soak_fails_once";
/// Reports how long ago it was added.
pub(crate) const TIMED: &str = "soak_timed";

/// The payload of a timed job: when its add began.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) at_micros: i64,
}

/// Counts of what has run.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Jobs that succeeded, of every task.
    completed: AtomicU64,
    /// How many of these could be run at once.
    prompt: AtomicU64,
    failed: AtomicU64,
    /// The times from add to start, in milliseconds, since the last report.
    delays: Mutex<Vec<f64>>,
}

impl Tally {
    pub(crate) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    pub(crate) fn prompt(&self) -> u64 {
        self.prompt.load(Ordering::Relaxed)
    }

    /// The counts so far, and the delays since the last report.
    pub(crate) fn report(&self) -> String {
        let mut delays = std::mem::take(&mut *self.delays.lock().unwrap_or_else(PoisonError::into_inner));
        delays.sort_by(f64::total_cmp);
        let (completed, failed) = (self.completed(), self.failed.load(Ordering::Relaxed));
        let mut report = format!("{{\"completed\":{completed},\"failed\":{failed}");
        if let (Some(half), Some(most)) = (percentile(&delays, 0.5), percentile(&delays, 0.99)) {
            report.push_str(&format!(",\"p50\":{half:.3},\"p99\":{most:.3}"));
        }
        report + "}"
    }

    fn done(&self) {
        self.completed.fetch_add(1, Ordering::Relaxed);
    }

    fn done_promptly(&self) {
        self.prompt.fetch_add(1, Ordering::Relaxed);
        self.done();
    }

    fn timed(&self, ctx: &WorkerContext) -> Result<(), TaskError> {
        let now = now_micros();
        let sent: Sent = ctx.payload().map_err(TaskError::new)?;
        let delay = (now - sent.at_micros) as f64 / 1e3;
        self.delays.lock().unwrap_or_else(PoisonError::into_inner).push(delay);
        self.done();
        Ok(())
    }

    fn fail_once(&self, ctx: &WorkerContext) -> Result<(), TaskError> {
        if ctx.job().attempts() == 1 {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return Err(TaskError::new("the first attempt fails on purpose"));
        }
        self.done();
        Ok(())
    }
}

/// A worker with all the tasks, and default settings otherwise.
pub(crate) async fn worker(url: &str, tally: &Arc<Tally>) -> Result<Worker> {
    let task = |run: fn(&Tally, &WorkerContext) -> Result<(), TaskError>| {
        let tally = tally.clone();
        move |ctx: WorkerContext| std::future::ready(run(&tally, &ctx))
    };
    let prompt = |tally: &Tally, _: &WorkerContext| {
        tally.done_promptly();
        Ok(())
    };
    let later = |tally: &Tally, _: &WorkerContext| {
        tally.done();
        Ok(())
    };
    let options = WorkerOptions::default()
        .database_url(url)
        .concurrency(24)
        .define_raw_job(PLAIN, task(prompt))
        .define_raw_job(QUEUED, task(prompt))
        .define_raw_job(LATER, task(later))
        .define_raw_job(FAILS_ONCE, task(Tally::fail_once))
        .define_raw_job(TIMED, task(Tally::timed));
    Ok(options.init().await?)
}

pub(crate) fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// The smallest value that is at least as large as this fraction of all values.
fn percentile(sorted: &[f64], part: f64) -> Option<f64> {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}
