//! Held claims: jobs that a transaction keeps by row locks alone, from the pick to the commit of their outcomes.
//!
//! A lane opens a transaction and picks jobs with row locks. No other worker can take these jobs, neither atta's nor
//! Node's, and nothing is written. The jobs run. When all have ended, or the hold budget is used up, the lane settles
//! the batch: it deletes completed jobs, writes the errors of failed ones, promotes those that still run to durable
//! claims, and commits. The commit also frees the jobs that were picked and not started, at no cost. If the worker
//! dies, all of its held jobs are free at once.
//!
//! If the connection is lost, so are the row locks. Then the lane durably claims those of the jobs that were not
//! changed since, on another connection, and releases them as durable claims. So a job runs a second time only if its
//! connection was lost while it was held and another worker claimed it first.
//!
//! A settlement that the database refuses has the same effect as a lost connection: the rollback frees all jobs of the
//! batch. So nothing is held while triggers or foreign keys could refuse a change (`jobs_have_triggers` of the poll),
//! and nothing for a while after a refusal (`HeldClaims::on_refused`). The same applies after a pick that brings a job
//! whose text the server can't send, if that job can't be failed: a durable claim leaves out only this job. A savepoint after the pick would keep the row
//! locks, but the deletion and the commit could then no longer be sent together, and a row that is locked by a
//! transaction and deleted by its subtransaction needs a multixact.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{join, join3};
use tokio::sync::oneshot;

use super::promote::Unsettled;
use super::unreadable::{fail_unreadable_jobs, is_unreadable};
use super::{LaneEvents, Left, Shared, Times};
use crate::db::lease::Lease;
use crate::job::Place;
use crate::worker::fleet;
use crate::worker::planner::Event;
use crate::worker::planner::scan::{Kind, Position, Request, Seen};
use crate::worker::queries::{self, Connection, Failures, FoundLevels, MANY, PickedRows};
use crate::worker::release;
use crate::worker::run::{Finished, Outcome};
use crate::{Error, Job, Result};

/// The server ends a transaction of ours that is idle for this long, for example because our process is stopped.
pub(crate) const LONGEST_SILENCE: Duration = Duration::from_secs(10);

const BEGIN: &str =
    "begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s'";

/// For sessions that are not ours: behind a pooler, or of a pool that the application gave. There PostgreSQL plans each
/// pick anew, by statistics that may be from a time when the table was empty.
const BEGIN_BY_INDEXES: &str = "begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s'; \
     set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off";

const COMMITTING: &str = "committing a batch of held jobs";

/// The outcomes of held jobs. Jobs in neither list were not started.
#[derive(Default)]
pub(crate) struct Settlement {
    pub(crate) finished: Vec<Finished>,
    /// Outcomes that the database may refuse: one refusal would roll back the whole batch. These jobs become durable
    /// claims, which are released after the commit.
    pub(crate) apart: Vec<Finished>,
    pub(crate) running: Vec<Arc<Job>>,
    /// Jobs of another batch of this worker whose connection was lost. They become durable claims of that batch.
    pub(crate) known: Vec<i64>,
}

impl Settlement {
    /// The jobs that become durable claims.
    pub(crate) fn promoted_ids(&self) -> Vec<i64> {
        let running = self.running.iter().map(|job| job.id);
        let apart = self.apart.iter().map(|one| one.job.id);
        running.chain(apart).chain(self.known.iter().copied()).collect()
    }
}

/// What a lane should pick.
pub(crate) struct Wanted {
    pub(crate) lane: u64,
    pub(crate) request: Request,
    /// How many bytes of payloads the pick may read. One job is always picked.
    pub(crate) bytes: usize,
}

/// One held claim, from its pick to its commit.
pub(crate) async fn hold(shared: Arc<Shared>, wanted: Wanted, lane_events: LaneEvents) -> Event {
    let (lane, mut left) = (wanted.lane, Left::default());
    let picked = pick_and_commit(&shared, wanted, &lane_events, &mut left).await;
    Event::BatchEnded { lane, picked, left }
}

/// Picks jobs, waits for their outcomes, and commits. Returns how many jobs it picked. Jobs whose outcomes could not be
/// committed are put into `left`, to be claimed again.
async fn pick_and_commit(
    shared: &Arc<Shared>,
    wanted: Wanted,
    lane_events: &LaneEvents,
    left: &mut Left,
) -> Result<usize> {
    let client = Lease::get(&shared.lane_pool, "claiming jobs").await?;
    let lane = wanted.lane;
    let (jobs, without_room) = match pick(shared.on(&client), wanted, lane_events).await {
        Ok(picked) => picked,
        Err(error) => {
            client.discard();
            shared.on_error(&error);
            left.is_unreadable = is_unreadable(&error) && !fail_unreadable_jobs(shared, &error).await;
            return Err(error);
        }
    };
    let count = jobs.len();
    if jobs.is_empty() {
        if client.execute_text("claiming jobs", "commit").await.is_err() {
            client.discard();
        }
        return Ok(0);
    }
    let (settle, settlement) = oneshot::channel();
    let sent = lane_events.send((Event::Picked { lane, jobs, without_room }, Some(settle))).await;
    // An error means that the driver has ended. The dropped transaction frees the jobs.
    let (Ok(()), Ok(settlement)) = (sent, settlement.await) else {
        client.discard();
        return Ok(count);
    };
    match write(shared, &client, &settlement).await {
        Ok(locked_at) => {
            left.locked_at = locked_at;
            left.running = settlement.running;
            left.finished = settlement.apart;
            release::report_all(shared, settlement.finished);
        }
        Err((error, may_be_committed)) => {
            tracing::warn!(%error, "could not commit a batch of held jobs; claiming them again");
            client.discard();
            shared.on_error(&error);
            let mut unsettled = Unsettled::new(settlement, may_be_committed);
            unsettled.refusal = error.is_refusal().then_some(error);
            left.unsettled = Some(unsettled);
        }
    }
    Ok(count)
}

/// Picks jobs. Reports the levels that were found at once, and then decodes the jobs, which takes longer.
async fn pick(
    connection: Connection<'_>,
    wanted: Wanted,
    lane_events: &LaneEvents,
) -> Result<(Vec<Arc<Job>>, Vec<Arc<Job>>)> {
    let Wanted { lane, request, bytes } = wanted;
    let (rows, seen) = query(connection, &request).await?;
    let copy = request.clone();
    // If the driver has ended, this report is not needed.
    let _ = lane_events.send((Event::Seen { lane, request: copy, seen }, None)).await;
    if rows.len() >= MANY {
        tokio::task::yield_now().await;
    }
    read(connection, rows, &request, bytes).await
}

/// Begins the transaction, searches for levels and picks.
async fn query(connection: Connection<'_>, request: &Request) -> Result<(PickedRows, Seen)> {
    let find = queries::find_levels(connection, &request.gaps).await?;
    match (request.kind, request.levels.len()) {
        (Kind::Plain, 1) if takes_turns(connection.shared, request) => {
            send_in_turn(connection, request, find).await
        }
        (Kind::Plain, 1) => {
            let pick = queries::pick_level(connection, request).await?;
            send(connection, request, find, pick).await
        }
        (Kind::Plain, _) => {
            let pick = queries::pick_jobs(connection, request).await?;
            send(connection, request, find, pick).await
        }
        (Kind::Flagged, _) => {
            let forbidden = connection.shared.forbidden_flags.now().await?;
            let pick = queries::pick_flagged_jobs(connection, request, forbidden).await?;
            send(connection, request, find, pick).await
        }
    }
}

/// Whether workers of a fleet that drain the same level take turns, and begin where the last of them has ended. Picks from
/// the start find what they pass by, as always.
fn takes_turns(shared: &Shared, request: &Request) -> bool {
    let Some(level) = request.levels.first() else { return false };
    let is_possible = shared.is_own_session && shared.use_prepared && level.after != Position::START;
    is_possible && shared.scan_turns.are_taken(Instant::now()) && {
        let fleet = shared.fleet.lock().unwrap_or_else(PoisonError::into_inner);
        fleet.has_others(&level.key.task_identifier)
    }
}

/// The same as [`send`] for a pick in turn. If the turn does not come soon, or if its statements fail, this worker picks
/// without turns for a while.
async fn send_in_turn(
    connection: Connection<'_>,
    request: &Request,
    find: impl Future<Output = Result<FoundLevels>>,
) -> Result<(PickedRows, Seen)> {
    let turns = &connection.shared.scan_turns;
    let take = queries::take_scan_turn(connection, fleet::LONGEST_TURN).await?;
    let pick = queries::pick_level_in_turn(connection, request).await?;
    let end = queries::end_scan_turn(connection).await?;
    // The future of the pick is polled before that of its end, so the statements are sent in this order.
    let pick = async {
        let (taken, rows, ended) = join3(take, pick, end).await;
        if !taken? {
            turns.pause(Instant::now(), fleet::WITHOUT_TURN);
        }
        ended?;
        rows
    };
    let sent = send(connection, request, find, pick).await;
    if sent.is_err() {
        turns.pause(Instant::now(), fleet::AFTER_ERROR);
    }
    sent
}

/// One round trip: all statements are sent before the first is answered, in this order.
async fn send(
    connection: Connection<'_>,
    request: &Request,
    find: impl Future<Output = Result<FoundLevels>>,
    pick: impl Future<Output = Result<PickedRows>>,
) -> Result<(PickedRows, Seen)> {
    let begin = if connection.shared.use_prepared { BEGIN } else { BEGIN_BY_INDEXES };
    let start = Instant::now();
    let begun = connection.client.execute_text("claiming jobs", begin);
    let (begun, found, rows) = join3(begun, find, pick).await;
    begun?;
    let (FoundLevels { now, levels: found }, rows) = (found?, rows?);
    let (levels, first) = rows.levels(request)?;
    Ok((rows, Seen { levels, first, found, now, took: start.elapsed() }))
}

/// Reads the picked jobs, in the order in which they are to run. Large payloads are read one by one, until the bytes
/// are used up; the jobs from there on are returned apart, without a payload.
async fn read(
    connection: Connection<'_>,
    rows: PickedRows,
    request: &Request,
    bytes: usize,
) -> Result<(Vec<Arc<Job>>, Vec<Arc<Job>>)> {
    let mut jobs = rows.decode(request).await?;
    let is_sorted = |one: &Arc<Job>, other: &Arc<Job>| one.order() <= other.order();
    if request.levels.len() > 1 && !jobs.is_sorted_by(is_sorted) {
        jobs.sort_unstable_by_key(|job| job.order());
    }
    let mut used = 0;
    let mut end = jobs.len();
    for (index, job) in jobs.iter_mut().enumerate() {
        if used >= bytes && index > 0 {
            end = index;
            break;
        }
        if job.lacks_payload() {
            let payload = queries::read_payload(connection, job.id).await?;
            match (payload, Arc::get_mut(job)) {
                (Some(payload), Some(job)) => job.payload = payload,
                // `get_mut` succeeds, since no other part of the worker has the job yet. So the payload is missing.
                _ => {
                    return Err(Error::unavailable(
                        "reading a payload: the row of a held job no longer exists",
                    ));
                }
            }
        }
        used += job.payload.len();
    }
    let without_room = jobs.split_off(end);
    Ok((jobs, without_room))
}

/// Writes the settlement and commits. Returns when the jobs that still run were claimed durably. An error is
/// returned with whether the commit may have succeeded.
async fn write(shared: &Shared, client: &Lease, settlement: &Settlement) -> Result<Times, (Error, bool)> {
    let failed = |error| (error, false);
    let connection = shared.on(client);
    let ids_of = |is: fn(&Outcome) -> bool| -> Vec<i64> {
        settlement.finished.iter().filter(|one| is(&one.outcome)).map(|one| one.job.id).collect()
    };
    let failures = Failures::of(&settlement.finished);
    if !failures.ids.is_empty() {
        queries::fail_held(connection, &failures).await.map_err(failed)?;
    }
    let running = settlement.promoted_ids();
    let mut locked_at = Times::new();
    if !running.is_empty() {
        locked_at = queries::promote_held(connection, &running).await.map_err(failed)?;
    }
    let interrupted = ids_of(|outcome| matches!(outcome, Outcome::Interrupted));
    if !interrupted.is_empty() && !shared.interrupted_job_retry_delay.is_zero() {
        queries::postpone_held(connection, &interrupted).await.map_err(failed)?;
    }
    let completed = settlement.finished.iter().filter(|one| matches!(one.outcome, Outcome::Completed));
    let completed: Vec<Place> = completed.map(|one| one.job.place).collect();
    let complete = queries::complete_held(connection, &completed).await.map_err(failed)?;
    let (deleted, committed) = join(complete, client.execute_text(COMMITTING, "commit")).await;
    let deleted = deleted.map_err(failed)?;
    committed.map_err(|error| (error, true))?;
    if deleted == completed.len() as u64 {
        return Ok(locked_at);
    }
    // This can't happen while we hold the row locks. If it does, the remaining jobs are found by their ids.
    Err((Error::unavailable("committing a batch of held jobs: some rows were moved"), true))
}
