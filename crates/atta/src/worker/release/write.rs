//! Writes outcomes: chooses the statement for them, and the limits within which it runs.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::super::Shared;
use super::super::claim::KnownJobs;
use super::super::queries::{self, Claims, Connection, Failures, Fates};
use super::Fate;
use super::pending::{Entry, Kind};
use crate::Result;
use crate::db::lease::Lease;

/// Writes outcomes of one kind by one statement. Returns the fate of each job whose claim was not lost.
pub(super) async fn write(shared: &Shared, entries: &[Entry], is_apart: bool) -> Result<Fates> {
    let Some(first) = entries.first() else { return Ok(Fates::new()) };
    let pool = if is_apart { &shared.apart_pool } else { &shared.release_pool };
    let client = Lease::get(pool, "releasing jobs").await?;
    let connection = shared.on(&client);
    let claims = Claims {
        ids: entries.iter().map(|one| one.finished.job.id).collect(),
        times: entries.iter().map(|one| one.locked_at).collect(),
        queues: entries.iter().map(|one| one.finished.job.job_queue_id).collect(),
    };
    let is_queued = claims.queues.iter().any(Option::is_some);
    if entries.len() >= MANY
        && first.kind() == Kind::Complete
        && !is_queued
        && let Some(fates) = complete_many(connection, &claims).await?
    {
        return Ok(fates);
    }
    match first.kind() {
        Kind::Complete if !is_queued => {
            let complete = queries::complete_claimed(connection, &claims).await?;
            send(connection, "completing jobs", is_apart, complete).await
        }
        Kind::Complete => {
            let complete = queries::complete_claimed_queued(connection, &claims).await?;
            send(connection, "completing jobs", is_apart, complete).await
        }
        Kind::Fail => {
            let failures = Failures::of(entries.iter().map(|one| &one.finished));
            let fail = queries::fail_claimed(connection, &claims, &failures).await?;
            send(connection, "failing jobs", is_apart, fail).await
        }
        kind @ (Kind::Interrupt | Kind::Return) => {
            let is_interrupted = kind == Kind::Interrupt;
            let delay = if is_interrupted { shared.interrupted_job_retry_delay } else { Duration::ZERO };
            let returned = queries::return_claimed(connection, &claims, delay).await?;
            send(connection, "returning jobs", is_apart, returned).await
        }
    }
}

/// Sends a release. On connections whose sessions are ours, the session has the time limits of a batch.
async fn send(
    connection: Connection<'_>,
    doing: &str,
    is_apart: bool,
    statement: impl Future<Output = Result<Fates>>,
) -> Result<Fates> {
    if connection.shared.use_prepared || is_apart {
        return connection.alone(doing, statement).await;
    }
    let answers = connection.within(BEGIN, doing, [statement]).await?;
    Ok(answers.into_iter().flatten().collect())
}

/// From this number of completed jobs on, they are first deleted without a separate lock step, under short time limits.
/// For fewer jobs, setting the limits costs more than that saves.
const MANY: usize = 50;

/// Jobs of up to this many claims are completed by one statement per claim. That is faster than one statement that
/// compares the claim time of each job.
const FEW_CLAIMS: usize = 3;

/// Completes jobs without a queue by the quickest statements, which wait for locked rows. None if one of them was
/// locked for too long: then nothing is written.
async fn complete_many(connection: Connection<'_>, claims: &Claims) -> Result<Option<Fates>> {
    let doing = "completing jobs";
    let by_claim = by_claim(claims);
    let completed = if by_claim.len() <= FEW_CLAIMS {
        let mut statements = Vec::with_capacity(by_claim.len());
        for (time, ids) in by_claim {
            statements.push(queries::complete_claim(connection, ids, time).await?);
        }
        connection.within(BEGIN_BRIEFLY, doing, statements).await
    } else {
        let statement = queries::complete_many_claimed(connection, claims).await?;
        connection.within(BEGIN_BRIEFLY, doing, [statement]).await
    };
    match completed {
        Ok(fates) => Ok(Some(fates.into_iter().flatten().collect())),
        Err(error) => match error.db_code() {
            // A row was locked for too long, or a deadlock was found.
            Some("55P03" | "40P01") => Ok(None),
            _ => Err(error),
        },
    }
}

/// Sets the time limits of a batch in a session that is not ours: see `TO_RELEASE` in the options.
const BEGIN: &str = "begin isolation level read committed; set constraints all immediate; set local statement_timeout = '1s'; set local lock_timeout = '1s'";

/// The same with a short lock timeout, for statements that wait for locked rows.
const BEGIN_BRIEFLY: &str = "begin isolation level read committed; set constraints all immediate; set local statement_timeout = '1s'; set local lock_timeout = '10ms'";

/// The ids of jobs by the time of their claim.
fn by_claim(claims: &Claims) -> BTreeMap<Option<DateTime<Utc>>, Vec<i64>> {
    let mut by_claim: BTreeMap<_, Vec<i64>> = BTreeMap::new();
    for (id, time) in claims.ids.iter().zip(&claims.times) {
        by_claim.entry(*time).or_default().push(*id);
    }
    by_claim
}

/// Returns the jobs of a claim whose reply was lost to the database. The result is their number, and the number of jobs
/// and queues that other transactions keep locked.
///
/// One statement finds the claims, and another one ends exactly these. Either may be executed long after its connection was
/// lost, and this worker has claimed again by then. The first only reads, and the second ends no claim with another time.
pub(crate) async fn return_unknown(shared: &Shared, known: &KnownJobs) -> Result<(usize, usize)> {
    let doing = "returning jobs of a lost claim";
    let client = Lease::get(&shared.lane_pool, doing).await?;
    let connection = shared.on(&client);
    let unknown = queries::find_unknown(connection, known).await?;
    if unknown.ids.is_empty() {
        return Ok((0, 0));
    }
    let statement = queries::return_claimed(connection, &unknown, Duration::ZERO).await?;
    let fates = connection.alone(doing, statement).await?;
    let is_written = |id: &&i64| fates.get(*id) == Some(&Fate::Written);
    let returned: Vec<&i64> = fates.keys().filter(is_written).collect();
    if !returned.is_empty() {
        tracing::warn!(jobs = ?returned, "the reply to a claim was lost; its jobs are returned");
    }
    Ok((returned.len(), fates.len() - returned.len()))
}
