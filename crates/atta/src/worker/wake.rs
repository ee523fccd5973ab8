//! Waking: LISTEN, the poll timer and the next due time become one stream of wake-ups.
//!
//! Two tasks send them. The listener (`listen.rs`) receives notifications of new jobs. The poll queries the database at
//! every poll interval, and when the driver or the listener requests it: one statement returns when the next jobs are
//! due, and whether other workers have to be recovered. The poll also checks the schema after a notification of a
//! migration, and after a statement that failed because of the schema. Wake-ups are hints: many at once have the same
//! effect as one.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};

use super::Shared;
use super::fleet::Fleet;
use super::queries::{self, Polled};
use super::standing::Watch;
use crate::db::lease::Lease;
use crate::db::pool;
use crate::{Error, Result, recovery};

/// A reason for the worker to act.
#[derive(Debug)]
pub(crate) enum Wake {
    /// There may be jobs, of any kind.
    Hint,
    /// Jobs were added; `Shared::announced` has their number.
    Announced,
    /// The next jobs are due then, in this order, as far as the database knows.
    Due(Vec<Instant>),
    /// The schema has become one that this version can't work with.
    Stop(Error),
}

/// If this many workers died within five minutes, a job may be the cause. Then jobs are only claimed durably, since the
/// crashes of durable claims are counted per job.
const SUSPICIOUS_DEATHS: i64 = 2;

/// The least pause between two polls, as a multiple of the duration of the first one, however often a poll is
/// requested.
const REST: u32 = 5;

/// How long a poll waits for the application's list of forbidden flags.
const FLAGS_LIMIT: Duration = Duration::from_secs(1);

/// If the channel is full, it already contains a wake-up.
fn hint(wakes: &mpsc::Sender<Wake>) {
    let _ = wakes.try_send(Wake::Hint);
}

/// Polls at the interval, and when requested, until the worker has ended. The first poll reads no due times: a worker
/// that finds no job requests a poll that does. Heartbeats do not depend on it (`recovery/heartbeat.rs`).
pub(crate) async fn poll(shared: Arc<Shared>, wakes: mpsc::Sender<Wake>, asked: Arc<Notify>) {
    let again = shared.recovery_threshold / recovery::PER_THRESHOLD;
    let interval = shared.poll_interval.min(again);
    let mut sweep = recovery::SweepTimer::new(shared.recovery_threshold);
    let mut recovered_at: Option<Instant> = None;
    let mut fleet_read_at: Option<Instant> = None;
    let mut for_jobs = false;
    let mut watch = Watch::default();
    loop {
        let start = Instant::now();
        let asked_for = shared.check_schema.swap(false, Ordering::Relaxed);
        let polled = ask(&shared, for_jobs).await;
        if let Err(stop) = watch.check(&shared, polled.as_ref().err(), asked_for).await {
            // The receiver lives as long as the worker.
            let _ = wakes.send(Wake::Stop(stop)).await;
        }
        match polled {
            Ok(polled) => {
                decide_claims(&shared, &polled);
                if fleet_read_at.is_none_or(|time| time.elapsed() >= again) {
                    fleet_read_at = Some(Instant::now());
                    read_fleet(&shared).await;
                }
                // Rows that other transactions keep locked are tried again, but not at every poll.
                let is_time = recovered_at.is_none_or(|time| time.elapsed() >= again);
                if polled.others_are_stale || (polled.others_are_dead && is_time) {
                    recovered_at = Some(Instant::now());
                    if recovery::recover(&shared).await {
                        sweep.check_later(shared.recovery_threshold);
                    }
                }
                let now = Instant::now();
                let due = |seconds: &f64| now + Duration::from_secs_f64(seconds.max(0.0));
                // The receiver lives as long as the worker.
                let _ = wakes.send(Wake::Due(polled.next_due.iter().map(due).collect())).await;
            }
            Err(error) => {
                shared.on_error(&error);
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

/// Whether jobs may be held until the next poll, and how durable claims search for jobs in queues.
fn decide_claims(shared: &Shared, polled: &Polled) {
    shared.functions_are_ours.store(polled.functions_are_ours, Ordering::Relaxed);
    shared.has_few_queues.store(polled.has_few_queues, Ordering::Relaxed);
    shared.has_triggers.store(polled.tables_have_triggers, Ordering::Relaxed);
    shared.stores_any_text.store(polled.stores_any_text, Ordering::Relaxed);
    let reason = why_not_held(polled, shared.trusts_triggers);
    let may_hold = reason.is_none();
    let was_held = shared.may_hold.swap(may_hold, Ordering::Relaxed);
    if let Some(reason) = reason.filter(|_| was_held) {
        let worker = &*shared.worker_id;
        tracing::warn!(worker, deaths = polled.recent_deaths, "using only durable claims for now: {reason}");
    }
}

/// Why no jobs may be held. None: they may.
fn why_not_held(polled: &Polled, trusts_triggers: bool) -> Option<&'static str> {
    if polled.recent_deaths >= SUSPICIOUS_DEATHS {
        return Some("several workers died recently, and one of the jobs may be the cause");
    }
    if !polled.functions_are_ours {
        return Some("the functions that add jobs were replaced by another tool");
    }
    // If the database refused one change, the whole batch would be rolled back, and its jobs would run again.
    let may_refuse = polled.jobs_have_triggers && !trusts_triggers;
    may_refuse.then_some("the table of jobs has triggers, rules or foreign keys of the application")
}

/// Whether there is no job that could be run, now or later. Uses the pool that ran the migration, since it is already
/// connected. The statement is not prepared.
pub(super) async fn find_nothing(shared: &Shared) -> Result<bool> {
    let doing = "checking for jobs";
    let client = pool::get(shared.utils.pool(), doing).await?;
    let sql = shared.utils.schema().fill(include_str!("../../sql/queries/find_nothing.sql"));
    let row = client.query_typed_one(&sql, &[]).await;
    row.map(|row| row.get("finds_nothing")).map_err(|error| Error::database(doing, error))
}

/// Reads which workers there are. If that fails, they are those that were read before.
async fn read_fleet(shared: &Shared) {
    let read = async {
        let client = Lease::get(&shared.poll_pool, "reading the fleet").await?;
        queries::read_fleet(shared.on(&client)).await
    };
    match read.await {
        Ok(groups) => *shared.fleet.lock().unwrap_or_else(PoisonError::into_inner) = Fleet::new(groups),
        Err(error) => tracing::debug!(%error, "could not read which workers there are"),
    }
}

async fn ask(shared: &Shared, for_jobs: bool) -> Result<Polled> {
    let client = Lease::get(&shared.poll_pool, "polling").await?;
    // Recovery must not wait for code of the application. Claims do wait for it, and report its errors.
    let asked = tokio::time::timeout(FLAGS_LIMIT, shared.forbidden_flags.now()).await;
    let forbidden = asked.ok().and_then(Result::ok);
    let (knows_flags, forbidden) = (forbidden.is_some(), forbidden.unwrap_or_default());
    let for_jobs = for_jobs && knows_flags;
    let continuous = shared.continuity.duration(Instant::now());
    let tasks = shared.active_tasks();
    let polled = queries::poll(shared.on(&client), &tasks, &forbidden, continuous, for_jobs).await?;
    // A job may be due. Only a claim can find out.
    let next_due = if knows_flags { polled.next_due } else { vec![0.0] };
    Ok(Polled { next_due, ..polled })
}
