//! Jobs that can't be claimed because the server can't send their text in UTF-8. A database with another encoding may
//! store bytes that are no characters. A claim that includes such a job fails as a whole, so the job is permanently
//! failed.

use super::Shared;
use crate::db::lease::Lease;
use crate::worker::queries;
use crate::{Error, Result};

/// No equivalent in UTF-8; not valid in the database's own encoding; too long to convert.
const CODES: [&str; 3] = ["22P05", "22021", "54000"];

/// Whether the server could not send the result because of such a job.
pub(super) fn is_unreadable(error: &Error) -> bool {
    error.db_code().is_some_and(|code| CODES.contains(&code))
}

/// After a claim failed: if such jobs are the cause, permanently fails them, so that the next claim succeeds. Returns
/// whether there were any.
pub(super) async fn fail_unreadable_jobs(shared: &Shared, error: &Error) -> bool {
    if !is_unreadable(error) {
        return false;
    }
    match fail(shared).await {
        Ok(ids) if ids == "[]" => return false,
        Ok(ids) => tracing::error!(
            jobs = ids,
            cause = %error,
            "permanently failed jobs whose text is not valid in the encoding of the database"
        ),
        Err(error) => {
            tracing::warn!(%error, "could not find the jobs whose text can't be converted to UTF-8");
            return false;
        }
    }
    true
}

/// Returns the ids as a JSON array.
async fn fail(shared: &Shared) -> Result<String> {
    let failed = |error| Error::database("failing jobs whose text can't be converted to UTF-8", error);
    let (tasks, flags) = (shared.active_tasks(), shared.forbidden_flags.now().await?);
    let mut client =
        Lease::get(&shared.lane_pool, "failing jobs whose text can't be converted to UTF-8").await?;
    let transaction = client.transaction().await.map_err(failed)?;
    let ids =
        queries::fail_unreadable_jobs(&transaction, &shared.texts, &tasks, &flags).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(ids)
}
