//! A durable claim after the database has refused one: each job is claimed by a statement of its own.
//!
//! A trigger of the application may raise an error, or take very long, when a certain job is claimed. A claim of
//! several jobs would then fail again and again, and none of them would start. Here one transaction locks the jobs, and
//! claims each under a savepoint. The jobs that the database refuses are reported, and the planner leaves them out for
//! a while.

use std::time::{Duration, Instant};

use futures_util::future::join3;
use tokio_postgres::Row;

use super::Refusal;
use crate::Result;
use crate::worker::claim::Claimable;
use crate::worker::queries::{self, ClaimedRows, Connection, LockedJob};

const CLAIMING: &str = "claiming jobs one by one";

/// The search may take long in a large table. Nothing of the application runs in it. Deferred triggers fire when their
/// job is claimed, so that an error concerns only that job, and not the commit.
const BEGIN: &str = "begin isolation level read committed; set constraints all immediate; \
     set local idle_in_transaction_session_timeout = '10s'; set local statement_timeout = '45s'";

/// How long the claim of one job may take.
const LIMIT_EACH: &str = "set local statement_timeout = '1s'; set local lock_timeout = '1s'";

/// When this time has passed, the transaction commits what it has. Other durable jobs wait for its end.
const LONGEST: Duration = Duration::from_secs(2);

/// What came of a claim job by job.
pub(super) struct OneByOne {
    pub(super) rows: ClaimedRows,
    pub(super) refused: Vec<Refusal>,
    /// Some jobs were not tried, because the others took too long.
    pub(super) is_cut_short: bool,
}

/// Claims the wanted jobs one by one.
pub(super) async fn claim(
    connection: Connection<'_>,
    wanted: &Claimable,
    forbidden_flags: &[String],
) -> Result<OneByOne> {
    let asked_at = Instant::now();
    connection.client.execute_text(CLAIMING, BEGIN).await?;
    let jobs = queries::find_claimable(connection, wanted, forbidden_flags).await?;
    connection.client.execute_text(CLAIMING, LIMIT_EACH).await?;
    let (began, mut rows, mut refused) = (Instant::now(), Vec::new(), Vec::new());
    let mut jobs = jobs.into_iter();
    while began.elapsed() < LONGEST
        && let Some(job) = jobs.next()
    {
        let tried_at = Instant::now();
        match claim_one(connection, &job).await {
            Ok(claimed) => rows.extend(claimed),
            Err(error) if error.db_code().is_some() && !error.may_have_happened() => {
                connection.client.execute_text(CLAIMING, "rollback to savepoint one").await?;
                let LockedJob { id, task_identifier, .. } = job;
                refused.push(Refusal { id, task_identifier, error, took: tried_at.elapsed() });
            }
            Err(error) => return Err(error),
        }
    }
    connection.client.execute_text(CLAIMING, "commit").await?;
    let is_cut_short = jobs.next().is_some();
    Ok(OneByOne { rows: ClaimedRows::new(rows, asked_at), refused, is_cut_short })
}

/// One round trip.
async fn claim_one(connection: Connection<'_>, job: &LockedJob) -> Result<Vec<Row>> {
    let mark = queries::mark_claimed(connection, job).await?;
    let (begun, rows, released) = join3(
        connection.client.execute_text(CLAIMING, "savepoint one"),
        mark,
        connection.client.execute_text(CLAIMING, "release savepoint one"),
    )
    .await;
    begun?;
    let rows = rows?;
    released?;
    Ok(rows)
}
