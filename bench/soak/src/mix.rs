//! The jobs that are added: of a hundred, ninety are plain, five are in queues, three are due in some seconds, one has
//! a key and is due later, and one fails once. They are in the same order each time.

use atta::{JobKeyMode, JobSpec, JobSpecBuilder, RawJobSpec};
use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use crate::Result;
use crate::tasks::{FAILS_ONCE, LATER, PLAIN, QUEUED};

/// Few enough that each has several jobs per second.
const QUEUES: u64 = 100;
/// So few that many adds find the key's last job still there, and are merged into it.
const KEYS: u64 = 200;

/// A typical payload: a number by which to look something up, and a few words.
#[derive(Serialize)]
struct Payload {
    id: u64,
    kind: &'static str,
}

/// Jobs to add, by how they are added.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// By COPY.
    pub(crate) plain: Vec<RawJobSpec>,
    /// By the SQL function, which merges.
    pub(crate) keyed: Vec<RawJobSpec>,
    /// How many of them run at once and then never again.
    pub(crate) prompt: u64,
}

/// The jobs with these numbers.
pub(crate) fn batch(numbers: std::ops::Range<u64>, now: DateTime<Utc>) -> Result<Batch> {
    let mut batch = Batch::default();
    for number in numbers {
        // 37 and 100 have no common divisor, so each hundred has every remainder once, well mixed.
        let (task, spec) = match number * 37 % 100 {
            0..90 => (PLAIN, JobSpec::default()),
            90..95 => (QUEUED, JobSpecBuilder::new().queue_name(queue(number)).build()),
            95..98 => (LATER, JobSpecBuilder::new().run_at(some_seconds_after(now, number)).build()),
            98 => (LATER, keyed(number, now)),
            _ => (FAILS_ONCE, JobSpec::default()),
        };
        if task == PLAIN || task == QUEUED {
            batch.prompt += 1;
        }
        let has_key = spec.job_key.is_some();
        let job = RawJobSpec::new(task, Payload { id: number, kind: "a job of the soak" }, spec)?;
        if has_key { batch.keyed.push(job) } else { batch.plain.push(job) }
    }
    Ok(batch)
}

fn queue(number: u64) -> String {
    format!("soak_{}", number / 20 % QUEUES)
}

/// One to ten seconds after `now`.
fn some_seconds_after(now: DateTime<Utc>, number: u64) -> DateTime<Utc> {
    now + TimeDelta::milliseconds(1000 + (number * 7919 % 9000) as i64)
}

fn keyed(number: u64, now: DateTime<Utc>) -> JobSpec {
    JobSpecBuilder::new()
        .job_key(format!("soak_{}", number / 100 * 7919 % KEYS))
        .job_key_mode(JobKeyMode::PreserveRunAt)
        .run_at(now + TimeDelta::seconds(2))
        .build()
}
