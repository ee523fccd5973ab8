//! Waking: LISTEN, the poll timer and the next due time become one stream of wake-ups.
//!
//! Two tasks feed it. The listener (`listen.rs`) hears of new jobs. The poll asks the database at every poll interval, and when
//! the worker or the listener wants it: one statement that finds out when the next jobs are due, and whether other workers have
//! to be recovered. It also checks the schema when there is a reason to: a notification, or a statement that the schema made
//! fail. Wake-ups are hints: many at once are as good as one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio_postgres::types::Type;

use super::Shared;
use super::standing::Watch;
use crate::db::pool;
use crate::{Error, Result, recovery};

/// Why the worker should do something.
#[derive(Debug)]
pub(crate) enum Wake {
    /// There may be jobs, of any kind.
    Hint,
    /// Jobs were added; `Shared::announced` says how many.
    Announced,
    /// The next jobs are due then, in this order, as far as the database knows.
    Due(Vec<Instant>),
    /// The schema has become one that this version can't work with.
    Stop(Error),
}

/// With this many deaths within five minutes a job may be to blame. It is found by claiming durably, since then its crashes
/// are counted.
const SUSPICIOUS_DEATHS: i64 = 2;

/// However often a poll is asked for, this many times the duration of the last one pass before the next.
const REST: u32 = 5;

/// How long a poll waits for the application's list of forbidden flags.
const FLAGS_LIMIT: Duration = Duration::from_secs(1);

/// A full channel holds a hint already.
fn hint(wakes: &mpsc::Sender<Wake>) {
    let _ = wakes.try_send(Wake::Hint);
}

/// What a poll found.
struct Polled {
    /// Some may be declared dead.
    others_are_stale: bool,
    /// Some were declared dead, and not all of their locks are freed.
    others_are_dead: bool,
    recent_deaths: i64,
    functions_are_ours: bool,
    /// Seconds from now; negative if a job is due.
    next_due: Vec<f64>,
}

/// Polls at the interval, and when asked to, until the worker has ended. The first poll does not look for jobs: a worker that
/// finds no job asks. Heartbeats do not depend on it (`recovery/heartbeat.rs`).
pub(crate) async fn poll(shared: Arc<Shared>, wakes: mpsc::Sender<Wake>, asked: Arc<Notify>) {
    let again = shared.recovery_threshold / recovery::PER_THRESHOLD;
    let interval = shared.poll_interval.min(again);
    let mut sweep = recovery::SweepTimer::new(shared.recovery_threshold);
    let mut recovered_at: Option<Instant> = None;
    let mut for_jobs = false;
    let mut watch = Watch::default();
    loop {
        let start = Instant::now();
        let asked_for = shared.check_schema.swap(false, Ordering::Relaxed);
        let polled = ask(&shared, for_jobs).await;
        if let Err(stop) = watch.check(&shared, polled.as_ref().err(), asked_for).await {
            // Its receiver lives as long as the worker does.
            let _ = wakes.send(Wake::Stop(stop)).await;
        }
        match polled {
            Ok(polled) => {
                decide_claims(&shared, &polled);
                // Rows that somebody keeps locked are tried again, though not at every poll.
                let is_time = recovered_at.is_none_or(|time| time.elapsed() >= again);
                if polled.others_are_stale || (polled.others_are_dead && is_time) {
                    recovered_at = Some(Instant::now());
                    if recovery::recover(&shared).await {
                        sweep.check_later(shared.recovery_threshold);
                    }
                }
                let now = Instant::now();
                let due = |seconds: &f64| now + Duration::from_secs_f64(seconds.max(0.0));
                // Its receiver lives as long as the worker does.
                let _ = wakes.send(Wake::Due(polled.next_due.iter().map(due).collect())).await;
            }
            Err(error) => {
                if !watch.is_waiting() {
                    tracing::warn!(%error, "could not poll; retrying");
                }
                hint(&wakes);
            }
        }
        for_jobs = true;
        let rest = (start.elapsed() * REST).min(interval);
        sweep.sweep_when_due(&shared).await;
        tokio::time::sleep(rest).await;
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = asked.notified() => {}
        }
    }
}

/// Whether jobs may be held until the next poll.
fn decide_claims(shared: &Shared, polled: &Polled) {
    shared.functions_are_ours.store(polled.functions_are_ours, Ordering::Relaxed);
    let may_hold = polled.functions_are_ours && polled.recent_deaths < SUSPICIOUS_DEATHS;
    if shared.may_hold.swap(may_hold, Ordering::Relaxed) && !may_hold {
        let (deaths, ours) = (polled.recent_deaths, polled.functions_are_ours);
        tracing::warn!(deaths, functions_are_ours = ours, "using only durable claims for now");
    }
}

/// Whether there is no job that could be run, now or later. Asks over the pool that has migrated, and so is connected
/// already; its connection keeps no statement.
pub(super) async fn find_nothing(shared: &Shared) -> Result<bool> {
    let doing = "checking for jobs";
    let client = pool::get(shared.utils.pool(), doing).await?;
    let sql = shared.utils.schema().fill(include_str!("../../sql/queries/find_nothing.sql"));
    let row = client.query_typed_one(&sql, &[]).await;
    row.map(|row| row.get("finds_nothing")).map_err(|error| Error::database(doing, error))
}

async fn ask(shared: &Shared, for_jobs: bool) -> Result<Polled> {
    let client = pool::get(&shared.poll_pool, "polling").await?;
    // Recovery does not wait for code of the application. Claims do, and report what is wrong with it.
    let asked = tokio::time::timeout(FLAGS_LIMIT, shared.forbidden_flags.now()).await;
    let forbidden = asked.ok().and_then(Result::ok);
    let (knows_flags, forbidden) = (forbidden.is_some(), forbidden.unwrap_or_default());
    let for_jobs = for_jobs && knows_flags;
    let continuous = shared.continuity.duration(Instant::now()).as_secs_f64();
    let threshold = shared.recovery_threshold.as_secs_f64();
    let tasks = shared.active_tasks();
    let rows = shared
        .query(
            &client,
            &shared.sql.poll,
            &[
                (&tasks, Type::TEXT_ARRAY),
                (&forbidden, Type::TEXT_ARRAY),
                (&shared.local_now(), Type::TIMESTAMPTZ),
                (&&*shared.worker_id, Type::TEXT),
                (&continuous, Type::FLOAT8),
                (&threshold, Type::FLOAT8),
                (&for_jobs, Type::BOOL),
            ],
        )
        .await
        .map_err(|error| Error::database("polling", error))?;
    let row = rows.first().ok_or_else(|| Error::unavailable("polling: the database returned no row"))?;
    let next_due: Vec<f64> = row.get("next_due");
    Ok(Polled {
        others_are_stale: row.get("others_are_stale"),
        others_are_dead: row.get("others_are_dead"),
        recent_deaths: row.get("recent_deaths"),
        functions_are_ours: row.get("functions_are_ours"),
        // One may be due: only a claim can tell.
        next_due: if knows_flags { next_due } else { vec![0.0] },
    })
}
