//! A durable claim: one statement that writes this worker and the time into the rows of jobs, and of their queues.

use std::time::Instant;

use super::one_by_one::{self, OneByOne};
use super::unreadable::{fail_unreadable_jobs, is_unreadable};
use super::{Claimable, Claimed, LaneEvents, Level, Shared};
use crate::db::lease::Lease;
use crate::worker::planner::Event;
use crate::worker::queries::{self, ClaimedRows, Connection, MANY};
use crate::{Error, Job, Result};

/// One durable claim, from its connection to its decoded jobs.
pub(crate) async fn claim_durably(
    shared: std::sync::Arc<Shared>,
    wanted: Claimable,
    lane_events: LaneEvents,
) -> Event {
    let mut claimed = claim_jobs(&shared, &wanted, &lane_events).await;
    if let Err(error) = &claimed {
        shared.on_error(error);
        let is_found = fail_unreadable_jobs(&shared, error).await;
        if !is_found && error.is_refusal() && !wanted.one_by_one {
            claimed = claim_one_by_one(&shared, &wanted).await;
        }
    }
    Event::Claimed { wanted: Box::new(wanted), claimed }
}

/// Claims due jobs durably: queued ones of all tasks, and of some tasks also those without a queue.
async fn claim_jobs(shared: &Shared, wanted: &Claimable, lane_events: &LaneEvents) -> Result<Claimed> {
    if wanted.one_by_one {
        return claim_one_by_one(shared, wanted).await;
    }
    let client = connect(shared).await?;
    let connection = shared.on(&client);
    let (rows, has_forbidden) = match &wanted.level {
        Some(level) => (queries::claim_level(connection, wanted, level).await?, false),
        None => {
            let forbidden = shared.forbidden_flags.now().await?;
            let rows = match wanted.has_few_queues {
                true => queries::claim_by_queue(connection, wanted, &forbidden).await?,
                false => queries::claim_by_job(connection, wanted, &forbidden).await?,
            };
            (rows, !forbidden.is_empty())
        }
    };
    let level = rows.level(wanted)?;
    if rows.len() >= MANY && !wanted.is_of_seen() {
        // If the driver has ended, this report is not needed.
        let answered = Event::Answered { sent_at: wanted.sent_at, epoch: wanted.epoch, level: level.clone() };
        let _ = lane_events.send((answered, None)).await;
        tokio::task::yield_now().await;
    }
    read(connection, rows, wanted, level, has_forbidden).await
}

/// The same after the database has refused a claim. Reports the jobs that are the cause.
async fn claim_one_by_one(shared: &Shared, wanted: &Claimable) -> Result<Claimed> {
    let forbidden = shared.forbidden_flags.now().await?;
    let client = connect(shared).await?;
    match one_by_one::claim(shared.on(&client), wanted, &forbidden).await {
        Ok(OneByOne { rows, refused, is_cut_short }) => {
            let claimed = read(shared.on(&client), rows, wanted, None, !forbidden.is_empty()).await?;
            Ok(Claimed { refused, is_cut_short, ..claimed })
        }
        Err(error) => {
            client.discard();
            Err(error)
        }
    }
}

async fn connect(shared: &Shared) -> Result<Lease> {
    let client = Lease::get(&shared.claim_pool, "claiming jobs").await?;
    // Other workers may declare this worker dead, and recover at once the jobs that it would claim.
    if shared.continuity.is_overdue(Instant::now()) {
        return Err(Error::unavailable("claiming jobs: no heartbeat of this worker succeeded recently"));
    }
    Ok(client)
}

/// Decodes the claimed jobs, and reads their large payloads.
async fn read(
    connection: Connection<'_>,
    rows: ClaimedRows,
    wanted: &Claimable,
    level: Option<Level>,
    has_forbidden: bool,
) -> Result<Claimed> {
    let (asked_at, took) = (rows.asked_at, rows.took);
    let mut jobs = rows.decode(&connection.shared.worker_id, wanted).await?;
    jobs.sort_by_key(Job::order);
    let Loaded { jobs, without_room, unreadable } = load_payloads(connection, jobs, wanted.bytes).await;
    let (refused, is_cut_short) = (Vec::new(), false);
    Ok(Claimed {
        jobs,
        without_room,
        unreadable,
        refused,
        is_cut_short,
        asked_at,
        took,
        level,
        has_forbidden,
    })
}

#[derive(Default)]
struct Loaded {
    jobs: Vec<Job>,
    without_room: Vec<Job>,
    unreadable: Vec<(Job, Error)>,
}

/// Reads the payloads that a claim left out, one by one, until the bytes are used up. Jobs whose payloads could not be
/// read because of the connection count as those for which there is no room.
async fn load_payloads(connection: Connection<'_>, jobs: Vec<Job>, bytes: usize) -> Loaded {
    if !jobs.iter().any(Job::lacks_payload) {
        return Loaded { jobs, ..Loaded::default() };
    }
    let (mut loaded, mut used) = (Loaded::default(), 0);
    for mut job in jobs {
        if !loaded.without_room.is_empty() || (used > 0 && used >= bytes) {
            loaded.without_room.push(job);
            continue;
        }
        if job.lacks_payload() {
            match queries::read_payload(connection, job.id).await {
                Ok(payload) => job.payload = payload.unwrap_or_default(),
                Err(error) if is_unreadable(&error) => {
                    loaded.unreadable.push((job, error));
                    continue;
                }
                Err(error) => {
                    let (worker, task, attempt) =
                        (&*connection.shared.worker_id, job.task_identifier(), job.attempts);
                    tracing::warn!(worker, job = job.id, task, attempt, %error, "could not read the payload of a claimed job");
                }
            }
        }
        if job.lacks_payload() {
            loaded.without_room.push(job);
            continue;
        }
        used += job.payload.len();
        loaded.jobs.push(job);
    }
    loaded
}
