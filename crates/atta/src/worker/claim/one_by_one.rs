//! A durable claim after the database has refused one: each job is claimed by a statement of its own.
//!
//! A trigger of the application may raise an error, or take very long, when a certain job is claimed. A claim of several
//! jobs would then fail again and again, and none of them would start. Here one transaction locks the jobs, and claims each
//! under a savepoint. The jobs that the database refuses are reported, and the planner leaves them out for a while.

use std::time::{Duration, Instant};

use futures_util::future::join3;
use tokio_postgres::Row;

use super::Refusal;
use crate::worker::claim::Claimable;
use crate::worker::queries::{self, ClaimedRows, Connection, LockedJob};
use crate::{Error, Result};

const CLAIMING: &str = "claiming jobs one by one";

/// The search may take long in a large table. Nothing of the application runs in it. Deferred triggers fire when their job
/// is claimed, so that an error concerns only that job, and not the commit.
const BEGIN: &str = "begin isolation level read committed; set constraints all immediate; \
     set local idle_in_transaction_session_timeout = '10s'; set local statement_timeout = '45s'";

/// How long the claim of one job may take.
const LIMIT_EACH: &str = "set local statement_timeout = '1s'; set local lock_timeout = '1s'";

/// When this time has passed, the transaction commits what it has. Other durable jobs wait for its end.
const LONGEST: Duration = Duration::from_secs(2);

/// Whether a claim that failed with this error may succeed without one of its jobs: the server refused the statement, or
/// cancelled it because it took too long.
pub(super) fn is_refusal(error: &Error) -> bool {
    error.db_code().is_some() && !error.is_transient() && !error.may_have_happened()
}

/// Claims the wanted jobs one by one. Returns the claimed ones, and those that the database refused.
pub(super) async fn claim(
    connection: Connection<'_>,
    wanted: &Claimable,
    forbidden_flags: &[String],
) -> Result<(ClaimedRows, Vec<Refusal>)> {
    let asked_at = Instant::now();
    connection.client.execute_text(CLAIMING, BEGIN).await?;
    let jobs = queries::find_claimable(connection, wanted, forbidden_flags).await?;
    connection.client.execute_text(CLAIMING, LIMIT_EACH).await?;
    let (began, mut rows, mut refused) = (Instant::now(), Vec::new(), Vec::new());
    for job in jobs {
        match claim_one(connection, &job).await {
            Ok(claimed) => rows.extend(claimed),
            Err(error) if error.db_code().is_some() && !error.may_have_happened() => {
                connection.client.execute_text(CLAIMING, "rollback to savepoint one").await?;
                let LockedJob { id, task_identifier, .. } = job;
                refused.push(Refusal { id, task_identifier, error });
            }
            Err(error) => return Err(error),
        }
        if began.elapsed() >= LONGEST {
            break;
        }
    }
    connection.client.execute_text(CLAIMING, "commit").await?;
    Ok((ClaimedRows::new(rows, asked_at), refused))
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
