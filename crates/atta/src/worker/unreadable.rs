//! Jobs that can't be claimed because the server can't send their text in UTF-8. A database with another encoding may store
//! bytes that are no characters. A claim that comes by such a job fails as a whole, so the job is permanently failed.

use tokio_postgres::types::{ToSql, Type};

use super::Shared;
use crate::db::pool;
use crate::{Error, Result};

/// No equivalent in UTF-8; not valid in the database's own encoding; too long to convert.
const CODES: [&str; 3] = ["22P05", "22021", "54000"];

/// Whether this is an answer that the server could not send.
pub(super) fn is_unreadable(error: &Error) -> bool {
    error.db_code().is_some_and(|code| CODES.contains(&code))
}

/// After a claim failed: if such jobs are the cause, permanently fails them, so that the next claim succeeds.
pub(super) async fn fail_unreadable_jobs(shared: &Shared, error: &Error) {
    if !is_unreadable(error) {
        return;
    }
    match fail(shared).await {
        Ok(ids) if ids == "[]" => {}
        Ok(ids) => tracing::error!(
            jobs = ids,
            cause = %error,
            "permanently failed jobs whose text is not valid in the encoding of the database"
        ),
        Err(error) => {
            tracing::warn!(%error, "could not find the jobs whose text can't be converted to UTF-8")
        }
    }
}

/// Returns the ids as a JSON array.
async fn fail(shared: &Shared) -> Result<String> {
    let failed = |error| Error::database("failing jobs whose text can't be converted to UTF-8", error);
    let json = |texts: &[String]| serde_json::to_string(texts).expect("text is JSON");
    let (tasks, flags) = (json(&shared.active_tasks()), json(&shared.forbidden_flags.now().await?));
    let mut client =
        pool::get(&shared.lane_pool, "failing jobs whose text can't be converted to UTF-8").await?;
    let transaction = client.transaction().await.map_err(failed)?;
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&tasks, Type::TEXT), (&flags, Type::TEXT)];
    let set = "select pg_catalog.set_config('atta.task_identifiers', $1::text, true), \
               pg_catalog.set_config('atta.forbidden_flags', $2::text, true)";
    transaction.query_typed(set, &parameters).await.map_err(failed)?;
    transaction.batch_execute(&shared.sql.fail_unreadable_jobs).await.map_err(failed)?;
    let read = "select pg_catalog.current_setting('atta.unreadable_jobs')";
    let row = transaction.query_typed(read, &[]).await.map_err(failed)?;
    let ids = row[0].try_get(0).map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(ids)
}
