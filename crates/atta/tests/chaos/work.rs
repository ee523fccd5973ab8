//! The producers, and a record of which of their adds were acknowledged.
//!
//! Producers connect through the proxy as well. A producer that loses its connection can't know whether its job was
//! added, and adds it again, as a careful application would. So a number may occur twice, and the first add may even
//! take effect after the second. Only acknowledged adds are checked.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atta::{Job, JobKeyMode, JobSpec, JobSpecBuilder, RawJobSpec, WorkerUtils};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_postgres::{Client, IsolationLevel};

use crate::schedule::THRESHOLD;

const QUEUES: [&str; 3] = ["first queue", "second queue", "third queue"];
const KEYS: i64 = 4;

/// An add that the database acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Ack {
    pub(crate) kind: &'static str,
    /// The number of the add among those of its kind, queue or key.
    pub(crate) n: i64,
    pub(crate) job_id: i64,
    pub(crate) run_at: DateTime<Utc>,
    pub(crate) queue: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) items: Vec<i64>,
    /// A time after the acknowledgement.
    pub(crate) at: DateTime<Utc>,
}

/// An add without a reply, or with an error.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct UnknownAdd {
    pub(crate) kind: String,
    pub(crate) queue: Option<String>,
    pub(crate) n: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct Producers {
    utils: WorkerUtils,
    is_over: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
}

/// The results of adds.
#[derive(Debug, Default)]
struct Seen {
    acks: Vec<Ack>,
    unknown_adds: HashSet<UnknownAdd>,
    refused: u64,
    /// Jobs of transactions that were rolled back.
    ghosts: HashSet<i64>,
}

/// An add to be made.
struct Next {
    kind: &'static str,
    n: i64,
    payload: Value,
    items: Vec<i64>,
    spec: JobSpec,
}

impl Next {
    fn new(kind: &'static str, n: i64, payload: Value, spec: impl Into<JobSpec>) -> Next {
        Next { kind, n, payload, items: vec![], spec: spec.into() }
    }
}

impl Producers {
    pub(crate) fn new(utils: WorkerUtils) -> Producers {
        Producers { utils, is_over: Arc::default(), seen: Arc::default() }
    }

    /// Starts all producers; they run until [`Producers::stop`].
    pub(crate) fn start(&self) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        tasks.spawn(self.clone().add_plain());
        tasks.spawn(self.clone().add(400, |n| {
            Next::new("slow", n, json!({ "n": n, "ms": fastrand::u64(100..1200) }), JobSpec::default())
        }));
        // Sometimes longer than the recovery threshold, and sometimes longer than the ten seconds after which the server
        // ends an idle transaction, that of a held claim for example.
        tasks.spawn(self.clone().add(1500, |n| {
            let threshold = u64::try_from(THRESHOLD.as_millis()).unwrap_or(u64::MAX);
            let range = match n % 24 {
                11 => threshold..2 * threshold,
                23 => 11_000..14_000,
                _ => 50..800,
            };
            Next::new("blocking", n, json!({ "n": n, "blocks_ms": fastrand::u64(range) }), JobSpec::default())
        }));
        tasks.spawn(self.clone().add(300, |n| {
            Next::new("retrying", n, json!({ "n": n, "fails": 1 + n % 2 }), JobSpec::default())
        }));
        tasks.spawn(self.clone().add(700, |n| {
            Next::new("failing", n, json!({ "n": n, "fails": 100 }), JobSpecBuilder::new().max_attempts(2))
        }));
        tasks.spawn(self.clone().add(200, |n| {
            let spec = JobSpecBuilder::new().run_at(after(fastrand::i64(0..4000)));
            Next::new("scheduled", n, json!({ "n": n }), spec)
        }));
        tasks.spawn(self.clone().add(60, |n| {
            let spec = keyed("replace", n, JobKeyMode::Replace).run_at(after(fastrand::i64(0..300)));
            Next::new("replace", n, json!({ "n": n, "ms": fastrand::u64(0..60) }), spec)
        }));
        tasks.spawn(self.clone().add(80, |n| {
            let spec = keyed("preserve", n, JobKeyMode::PreserveRunAt).run_at(after(1000));
            Next::new("preserve", n, json!({ "n": n, "ms": fastrand::u64(0..60) }), spec)
        }));
        tasks.spawn(self.clone().add(80, |n| {
            let spec = keyed("dedupe", n, JobKeyMode::UnsafeDedupe);
            Next::new("dedupe", n, json!({ "n": n, "ms": fastrand::u64(0..300) }), spec)
        }));
        tasks.spawn(self.clone().add(60, |n| {
            let items = vec![3 * n, 3 * n + 1, 3 * n + 2];
            let payload = items.iter().map(|n| json!({ "n": n })).collect();
            let spec = keyed("batch", n, JobKeyMode::Replace).run_at(after(500)).build();
            Next { items, ..Next::new("batch", n, payload, spec) }
        }));
        for queue in QUEUES {
            tasks.spawn(self.clone().add(120, move |n| {
                let payload = json!({ "n": n, "ms": fastrand::u64(0..30), "fails": i64::from(n % 20 == 7) });
                Next::new("queued", n, payload, JobSpecBuilder::new().queue_name(queue))
            }));
        }
        tasks
    }

    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// The adds that were acknowledged after this time.
    pub(crate) fn acks_since(&self, since: DateTime<Utc>) -> Vec<Ack> {
        let seen = self.seen();
        let first = seen.acks.partition_point(|ack| ack.at <= since);
        seen.acks[first..].to_vec()
    }

    pub(crate) fn unknown_adds(&self) -> HashSet<UnknownAdd> {
        self.seen().unknown_adds.clone()
    }

    pub(crate) fn ghosts(&self) -> HashSet<i64> {
        self.seen().ghosts.clone()
    }

    /// How many adds had no reply, or an error.
    pub(crate) fn refused(&self) -> u64 {
        self.seen().refused
    }

    /// Adds a job in a transaction that stays open for `length`, and then commits or rolls back.
    pub(crate) async fn add_late(&self, client: &mut Client, length: Duration, commits: bool) {
        let Ok(mut transaction) =
            client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().await
        else {
            return;
        };
        let specs: Result<Vec<RawJobSpec>, _> =
            (0..5).map(|n| RawJobSpec::new("late", json!({ "n": n }), JobSpec::default())).collect();
        let added = self.utils.add_raw_jobs_in(&mut transaction, &specs.expect("payloads are JSON")).await;
        let Ok(jobs) = added else { return self.note_unknown("late", 0, None) };
        tokio::time::sleep(length).await;
        if !commits {
            self.seen().ghosts.extend(jobs.iter().map(Job::id));
            // If the connection is lost, the transaction is rolled back too.
            let _ = transaction.rollback().await;
            return;
        }
        match transaction.commit().await {
            Ok(()) => self.note("late", 0, vec![], &JobSpec::default(), &jobs),
            Err(_) => self.note_unknown("late", 0, None),
        }
    }

    /// Adds jobs one after the other, with this pause, and repeats each add until it is acknowledged.
    async fn add(self, every_ms: u64, next: impl Fn(i64) -> Next + Send) {
        let mut n = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let Next { kind, n: number, payload, items, spec } = next(n);
            match self.utils.add_raw_job(kind, payload, spec.clone()).await {
                Ok(job) => {
                    self.note(kind, number, items, &spec, &[job]);
                    n += 1;
                }
                Err(_) => self.note_unknown(kind, number, spec.queue_name),
            }
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..2 * every_ms))).await;
        }
    }

    /// Adds ten jobs per call.
    async fn add_plain(self) {
        let mut n = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let specs: Result<Vec<RawJobSpec>, _> = (0..10)
                .map(|_| RawJobSpec::new("plain", json!({ "ms": fastrand::u64(0..6) }), JobSpec::default()))
                .collect();
            match self.utils.add_raw_jobs(&specs.expect("payloads are JSON")).await {
                Ok(jobs) => {
                    self.note("plain", n, vec![], &JobSpec::default(), &jobs);
                    n += 1;
                }
                Err(_) => self.note_unknown("plain", n, None),
            }
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..300))).await;
        }
    }

    fn note(&self, kind: &'static str, n: i64, items: Vec<i64>, spec: &JobSpec, jobs: &[Job]) {
        let mut seen = self.seen();
        // Taken while the lock is held, so that the times are in order.
        let at = Utc::now();
        let acks = jobs.iter().map(|job| Ack {
            kind,
            n,
            job_id: job.id(),
            run_at: job.run_at(),
            queue: spec.queue_name.clone(),
            key: spec.job_key.clone(),
            items: items.clone(),
            at,
        });
        seen.acks.extend(acks);
    }

    fn note_unknown(&self, kind: &str, n: i64, queue: Option<String>) {
        let mut seen = self.seen();
        seen.refused += 1;
        seen.unknown_adds.insert(UnknownAdd { kind: kind.into(), queue, n });
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keyed(kind: &str, n: i64, mode: JobKeyMode) -> JobSpecBuilder {
    JobSpecBuilder::new().job_key(format!("{kind} {}", n % KEYS)).job_key_mode(mode)
}

fn after(milliseconds: i64) -> DateTime<Utc> {
    Utc::now() + TimeDelta::milliseconds(milliseconds)
}
