//! The producer: adds jobs at an even rate, and every tenth of a second one that reports how long it waited.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atta::{JobSpec, WorkerUtils};
use chrono::Utc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::Result;
use crate::mix::{Batch, batch};
use crate::tasks::{Sent, TIMED, Tally, now_micros};

/// How often jobs are added, and the largest number at once.
const TICK: Duration = Duration::from_millis(20);
const MOST_AT_ONCE: u64 = 1000;
/// How often a timed job is added.
const TIMED_EVERY: Duration = Duration::from_millis(100);
/// At full speed: how many jobs are added at once, and how many jobs that could run may wait.
const FULL_BATCH: u64 = 1000;
const MAY_WAIT: u64 = 10_000;
/// Before this, connections, caches and batch sizes are not at their best yet.
const WARM_UP: Duration = Duration::from_secs(5);

pub(crate) struct Producer {
    utils: WorkerUtils,
    /// Jobs per second.
    rate: f64,
    /// Jobs that were passed to be added, and the resulting rows: a key's second job is merged into the first.
    asked: AtomicU64,
    rows: AtomicU64,
    is_over: AtomicBool,
}

impl Producer {
    pub(crate) fn new(utils: WorkerUtils, rate: f64) -> Producer {
        let (asked, rows) = (AtomicU64::new(0), AtomicU64::new(0));
        Producer { utils, rate, asked, rows, is_over: AtomicBool::new(false) }
    }

    /// Ends after [`Producer::stop`], when the last add is done.
    pub(crate) async fn run(self: Arc<Producer>) -> Result {
        tokio::try_join!(self.add_evenly(), self.add_timed())?;
        Ok(())
    }

    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn report(&self) -> String {
        let (asked, rows) = (self.asked.load(Ordering::Relaxed), self.rows.load(Ordering::Relaxed));
        format!("{{\"asked\":{asked},\"rows\":{rows}}}")
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn note(&self, asked: u64, rows: u64) {
        self.asked.fetch_add(asked, Ordering::Relaxed);
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    /// Adds jobs at a steady rate. Jobs that could not be added in time are added later.
    async fn add_evenly(&self) -> Result {
        let (began, mut added) = (Instant::now(), 0);
        while !self.is_over() {
            let due = (self.rate * began.elapsed().as_secs_f64()) as u64;
            if due == added {
                sleep(TICK).await;
                continue;
            }
            let until = due.min(added + MOST_AT_ONCE);
            let rows = add(&self.utils, &batch(added..until, Utc::now())?).await?;
            self.note(until - added, rows);
            added = until;
            if until == due {
                sleep(TICK).await;
            }
        }
        Ok(())
    }

    async fn add_timed(&self) -> Result {
        let mut ticks = interval(TIMED_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.is_over() {
            ticks.tick().await;
            let sent = Sent { at_micros: now_micros() };
            self.utils.add_raw_job(TIMED, sent, JobSpec::default()).await?;
            self.note(1, 1);
        }
        Ok(())
    }
}

/// Jobs per second that run while as many are added.
pub(crate) async fn full_speed(utils: &WorkerUtils, tally: &Tally, length: Duration) -> Result<f64> {
    let (began, mut number, mut prompt) = (Instant::now(), 0, 0);
    let mut start = None;
    while began.elapsed() < WARM_UP + length {
        if began.elapsed() >= WARM_UP && start.is_none() {
            start = Some((Instant::now(), tally.completed()));
        }
        if prompt > tally.prompt() + MAY_WAIT {
            sleep(Duration::from_millis(1)).await;
            continue;
        }
        let batch = batch(number..number + FULL_BATCH, Utc::now())?;
        add(utils, &batch).await?;
        prompt += batch.prompt;
        number += FULL_BATCH;
    }
    let (start, before) = start.ok_or("the measurement ended before the warm-up was over")?;
    Ok((tally.completed() - before) as f64 / start.elapsed().as_secs_f64())
}

/// Returns the number of resulting rows. Jobs with keys are added at the same time over another connection.
async fn add(utils: &WorkerUtils, batch: &Batch) -> Result<u64> {
    let (plain, keyed) =
        tokio::try_join!(utils.insert_raw_jobs(&batch.plain), utils.add_raw_jobs(&batch.keyed))?;
    let new = keyed.iter().filter(|job| job.revision() == 0).count();
    Ok((plain + new) as u64)
}
