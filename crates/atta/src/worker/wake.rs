//! Waking: LISTEN, the poll timer and the next due time become one stream of wake-ups.
//!
//! Two tasks feed it. The listener hears of new jobs; it reconnects for ever, and asks for a look after each
//! connection, since it may have missed something. The pulse looks at the database once every poll interval, and
//! when asked to: one statement that says that we are alive, asks after the others, and when the next job is due.
//! Wake-ups are hints: many at once are as good as one.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio_postgres::AsyncMessage;
use tokio_postgres::types::Type;

use super::Shared;
use super::backoff::Backoff;
use super::notice::{announced_jobs, breaking_revision};
use crate::db::{ConnectionSettings, connect, pool};
use crate::event::WorkerEvent;
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
    /// The schema has become one that we can't work with.
    Stop(String),
}

/// So many unclean deaths within five minutes, and a job may be to blame: it is found by claiming durably, since then
/// its attempts count although it kills its worker.
const SUSPICIOUS_DEATHS: i64 = 2;

/// However often a look is asked for, so many times the duration of the last one pass before the next.
const REST: u32 = 5;

/// Keeps a LISTEN alive until the worker stops.
pub(crate) async fn listen(shared: Arc<Shared>, settings: ConnectionSettings, wakes: mpsc::Sender<Wake>) {
    let mut backoff = Backoff::default();
    loop {
        let failures = backoff.tries();
        shared.events.send(|| WorkerEvent::ListenConnecting { failures });
        let lost = tokio::select! {
            lost = listen_once(&shared, &settings, &wakes, &mut backoff) => lost,
            () = shared.stop.cancelled() => return,
        };
        tracing::warn!(error = %lost, "LISTEN was lost; polling goes on meanwhile");
        shared.events.send(|| WorkerEvent::ListenFailed { error: lost.to_string().into() });
        tokio::select! {
            () = tokio::time::sleep(backoff.next()) => {}
            () = shared.stop.cancelled() => return,
        }
    }
}

/// Listens until the connection is lost, and says why it was.
async fn listen_once(
    shared: &Shared,
    settings: &ConnectionSettings,
    wakes: &mpsc::Sender<Wake>,
    backoff: &mut Backoff,
) -> Error {
    let failed = |error| Error::database("listening for jobs", error);
    let (client, mut connection) = match connect::open(settings).await {
        Ok(connected) => connected,
        Err(failure) => return failure.into_error(Some("listening for jobs")),
    };
    let listen = client.batch_execute(r#"listen "jobs:insert"; listen "worker:migrate""#);
    tokio::pin!(listen);
    let mut is_listening = false;
    loop {
        let message = tokio::select! {
            listened = &mut listen, if !is_listening => {
                if let Err(error) = listened {
                    return failed(error);
                }
                is_listening = true;
                *backoff = Backoff::default();
                shared.events.send(|| WorkerEvent::ListenStarted);
                // What was added before is not announced to us. Its receiver lives as long as the worker does.
                let _ = wakes.send(Wake::Hint).await;
                continue;
            }
            message = poll_fn(|cx| connection.poll_message(cx)) => message,
        };
        match message {
            Some(Ok(AsyncMessage::Notification(notice))) => hear(shared, &notice, wakes).await,
            Some(Ok(_)) => {}
            Some(Err(error)) => return failed(error),
            None => return Error::unavailable("listening for jobs: the server closed the connection"),
        }
    }
}

async fn hear(shared: &Shared, notice: &tokio_postgres::Notification, wakes: &mpsc::Sender<Wake>) {
    match notice.channel() {
        "jobs:insert" => {
            let count = announced_jobs(notice.payload());
            if count > 0 {
                shared.announced.fetch_add(count, Ordering::Relaxed);
                // A full channel wakes the worker just as well.
                let _ = wakes.try_send(Wake::Announced);
            }
        }
        "worker:migrate" => {
            if let Some(revision) = breaking_revision(notice.payload()) {
                let reason = format!(
                    "the schema was migrated to revision {revision}, which this version does not know"
                );
                // Its receiver lives as long as the worker does.
                let _ = wakes.send(Wake::Stop(reason)).await;
            }
        }
        _ => {}
    }
}

/// A full channel holds a hint already.
fn hint(wakes: &mpsc::Sender<Wake>) {
    let _ = wakes.try_send(Wake::Hint);
}

/// What a look at the database tells.
struct Look {
    is_registered: bool,
    others_are_silent: bool,
    recent_deaths: i64,
    functions_are_ours: bool,
    /// Seconds from now; negative if a job is due.
    next_due: Vec<f64>,
}

/// Looks every so often, and when asked to, until the worker has gone. The first time not for jobs, as that may take long,
/// nothing is held before, and a worker that finds no job asks.
pub(crate) async fn pulse(shared: Arc<Shared>, wakes: mpsc::Sender<Wake>, asked: Arc<Notify>) {
    let interval = shared.poll_interval.min(shared.heartbeat_interval);
    let mut sweep = recovery::SweepTimer::new(shared.recovery_threshold);
    let mut for_jobs = false;
    loop {
        let start = Instant::now();
        match look(&shared, for_jobs).await {
            Ok(seen) => {
                if shared.beats.note(start, seen.is_registered) {
                    tracing::warn!(
                        "this worker was silent for so long that others may have taken over its jobs"
                    );
                    shared.events.send(|| WorkerEvent::Revived);
                }
                let may_hold = seen.functions_are_ours && seen.recent_deaths < SUSPICIOUS_DEATHS;
                if shared.may_hold.swap(may_hold, Ordering::Relaxed) && !may_hold {
                    let (deaths, ours) = (seen.recent_deaths, seen.functions_are_ours);
                    tracing::warn!(deaths, functions_are_ours = ours, "claiming durably only, for now");
                }
                if recovery::after_look(&shared, seen.is_registered, seen.others_are_silent).await {
                    sweep.look_again_later(shared.recovery_threshold);
                }
                let now = Instant::now();
                let due = seen.next_due.iter().map(|seconds| now + Duration::from_secs_f64(seconds.max(0.0)));
                let due = due.collect();
                // Its receiver lives as long as the worker does.
                let _ = wakes.send(Wake::Due(due)).await;
            }
            Err(error) => {
                tracing::warn!(%error, "could not look for jobs, trying again");
                recovery::restore_own_objects(&shared, &error).await;
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

/// Whether there is nothing to be run and nobody to be buried. Asks over the pool that has migrated, and so is
/// connected already; its connection keeps no statement.
pub(super) async fn find_nothing(shared: &Shared) -> Result<bool> {
    let doing = "looking for jobs";
    let client = pool::get(shared.utils.pool(), doing).await?;
    let sql = shared.utils.schema().fill(include_str!("../../sql/queries/find_nothing.sql"));
    let threshold = shared.recovery_threshold.as_secs_f64();
    let row = client.query_typed_one(&sql, &[(&threshold, Type::FLOAT8)]).await;
    row.map(|row| row.get("finds_nothing")).map_err(|error| Error::database(doing, error))
}

async fn look(shared: &Shared, for_jobs: bool) -> Result<Look> {
    let client = pool::get(&shared.pulse_pool, "looking for jobs").await?;
    // The beat does not wait for code of the application's. Claims do, and tell what is wrong with it.
    let asked = tokio::time::timeout(shared.heartbeat_interval, shared.forbidden_flags.now()).await;
    let forbidden = asked.ok().and_then(Result::ok);
    let (knows_flags, forbidden) = (forbidden.is_some(), forbidden.unwrap_or_default());
    let for_jobs = for_jobs && knows_flags;
    let threshold = shared.recovery_threshold.as_secs_f64();
    let rows = shared
        .query(
            &client,
            &shared.sql.look,
            &[
                (&shared.task_identifiers, Type::TEXT_ARRAY),
                (&forbidden, Type::TEXT_ARRAY),
                (&shared.local_now(), Type::TIMESTAMPTZ),
                (&&*shared.worker_id, Type::TEXT),
                (&threshold, Type::FLOAT8),
                (&for_jobs, Type::BOOL),
            ],
        )
        .await
        .map_err(|error| Error::database("looking for jobs", error))?;
    let row = rows.first().ok_or_else(|| Error::unavailable("looking for jobs: no answer"))?;
    let next_due: Option<Vec<f64>> = row.get("next_due");
    Ok(Look {
        is_registered: row.get("is_registered"),
        others_are_silent: row.get("others_are_silent"),
        recent_deaths: row.get("recent_deaths"),
        functions_are_ours: row.get("functions_are_ours"),
        // One may be due: only a claim can tell.
        next_due: if knows_flags { next_due.unwrap_or_default() } else { vec![0.0] },
    })
}
