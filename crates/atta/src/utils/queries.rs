//! Statements with a function apart from the method that uses them: one function per file in `sql/queries`, named like
//! its file. The statements of the other methods of [`WorkerUtils`] are in the methods themselves, which have the names
//! of their files too.

use std::collections::BTreeSet;

use bytes::BytesMut;
use deadpool_postgres::{Object, Transaction};
use serde_json::{Value, json};
use tokio_postgres::Error as DatabaseError;
use tokio_postgres::types::Type;

use super::add::{Access, Argument, ManyArgument, encode};
use super::bulk::Prepared;
use super::connection::AddJobs;
use super::read::JobState;
use super::text_rows::TextRow;
use super::{WorkerUtils, decode_jobs};
use crate::{Error, Job, Result, Schema};

/// Adds a job.
pub(super) async fn add_job(
    transaction: &mut impl AddJobs,
    schema: &Schema,
    job: &Argument<'_>,
) -> Result<Option<Job>> {
    let sql = schema.fill(include_str!("../../sql/queries/add_job.sql"));
    let rows = transaction.query_text(&sql, encode(job)?).await?;
    Ok(decode_jobs("adding a job", &rows)?.pop())
}

/// Adds a job unless there is one with its key. Returns that job.
pub(super) async fn add_job_deduped(
    transaction: &mut impl AddJobs,
    schema: &Schema,
    job: &Argument<'_>,
) -> Result<Option<Job>> {
    let sql = schema.fill(include_str!("../../sql/queries/add_job_deduped.sql"));
    let rows = transaction.query_text(&sql, encode(job)?).await?;
    Ok(decode_jobs("adding a job", &rows)?.pop())
}

/// Adds jobs, and returns them in the same order, without the names of tasks and queues.
pub(super) async fn add_jobs(
    transaction: &mut impl AddJobs,
    schema: &Schema,
    jobs: &ManyArgument<'_>,
) -> Result<Vec<Job>> {
    let sql = schema.fill(include_str!("../../sql/queries/add_jobs.sql"));
    let rows = transaction.query_text(&sql, encode(jobs)?).await?;
    decode_jobs("adding jobs", &rows)
}

/// How this role may access the tables.
pub(super) async fn read_access(transaction: &mut impl AddJobs, schema: &Schema) -> Result<Access> {
    let sql = schema.fill(include_str!("../../sql/queries/read_access.sql"));
    let rows = transaction.query_text(&sql, String::new()).await?;
    Ok(match rows.first().map(String::as_str) {
        Some("copy") => Access::Copy,
        Some("read") => Access::Read,
        _ => Access::Add,
    })
}

/// Creates missing tasks and queues, and draws this number of ids from the sequence.
pub(super) async fn prepare_bulk(
    transaction: &mut impl AddJobs,
    schema: &Schema,
    identifiers: &BTreeSet<&str>,
    queue_names: &BTreeSet<&str>,
    count: usize,
) -> Result<Prepared> {
    let sql = schema.fill(include_str!("../../sql/queries/prepare_bulk.sql"));
    let argument = json!({ "identifiers": identifiers, "queue_names": queue_names, "count": count });
    let rows = transaction.query_text(&sql, argument.to_string()).await?;
    let answer = rows.first().map(String::as_str).unwrap_or("null");
    serde_json::from_str(answer).map_err(|error| {
        Error::internal(format!("adding jobs: unexpected response from the database: {error}"))
    })
}

/// Announces this number of jobs. Workers are notified when the transaction is committed.
pub(super) async fn announce_jobs(
    transaction: &mut impl AddJobs,
    schema: &Schema,
    count: usize,
) -> Result<()> {
    let sql = schema.fill(include_str!("../../sql/queries/announce_jobs.sql"));
    transaction.query_text(&sql, count.to_string()).await.map(drop)
}

/// Adds jobs with ids that [`prepare_bulk`] has drawn.
pub(super) async fn copy_jobs(transaction: &mut impl AddJobs, schema: &Schema, data: BytesMut) -> Result<()> {
    let sql = schema.fill(include_str!("../../sql/queries/copy_jobs.sql"));
    transaction.copy(&sql, data).await
}

/// Adds jobs, for which the server draws the ids.
pub(super) async fn copy_jobs_unnamed(
    transaction: &mut impl AddJobs,
    schema: &Schema,
    data: BytesMut,
) -> Result<()> {
    let sql = schema.fill(include_str!("../../sql/queries/copy_jobs_unnamed.sql"));
    transaction.copy(&sql, data).await
}

const LISTING: &str = "listing jobs";

/// Lists jobs by their ids, the lowest first. `filter` is a [`JobFilter`](super::JobFilter) as JSON, here and in the
/// statements below.
pub(super) async fn list_jobs(utils: &WorkerUtils, filter: &Value) -> Result<Vec<(Job, JobState)>> {
    let sql = include_str!("../../sql/queries/list_jobs.sql");
    listed(utils.ask_rows(LISTING, sql, filter).await?)
}

/// Lists jobs by their ids, the highest first.
pub(super) async fn list_jobs_newest(utils: &WorkerUtils, filter: &Value) -> Result<Vec<(Job, JobState)>> {
    let sql = include_str!("../../sql/queries/list_jobs_newest.sql");
    listed(utils.ask_rows(LISTING, sql, filter).await?)
}

/// Lists the job with the key of the filter, if it matches.
pub(super) async fn list_jobs_by_key(utils: &WorkerUtils, filter: &Value) -> Result<Vec<(Job, JobState)>> {
    let sql = include_str!("../../sql/queries/list_jobs_by_key.sql");
    listed(utils.ask_rows(LISTING, sql, filter).await?)
}

/// Lists those of the jobs with the ids of the filter that match.
pub(super) async fn list_jobs_by_ids(utils: &WorkerUtils, filter: &Value) -> Result<Vec<(Job, JobState)>> {
    let sql = include_str!("../../sql/queries/list_jobs_by_ids.sql");
    listed(utils.ask_rows(LISTING, sql, filter).await?)
}

/// Lists locked jobs.
pub(super) async fn list_locked_jobs(utils: &WorkerUtils, filter: &Value) -> Result<Vec<(Job, JobState)>> {
    let sql = include_str!("../../sql/queries/list_locked_jobs.sql");
    listed(utils.ask_rows(LISTING, sql, filter).await?)
}

/// Lists the ids of jobs, the lowest first.
pub(super) async fn list_job_ids(utils: &WorkerUtils, filter: &Value) -> Result<Vec<i64>> {
    let sql = include_str!("../../sql/queries/list_job_ids.sql");
    utils.ask_as(LISTING, sql, filter).await
}

/// Lists the ids of jobs, the highest first.
pub(super) async fn list_job_ids_newest(utils: &WorkerUtils, filter: &Value) -> Result<Vec<i64>> {
    let sql = include_str!("../../sql/queries/list_job_ids_newest.sql");
    utils.ask_as(LISTING, sql, filter).await
}

/// Rows of a job as JSON, and its state.
fn listed(rows: Vec<TextRow>) -> Result<Vec<(Job, JobState)>> {
    let (mut texts, mut states) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for row in rows {
        let mut columns = row.into_iter().map(Option::unwrap_or_default);
        texts.push(columns.next().unwrap_or_default());
        states.push(decode_state(columns.next().unwrap_or_default())?);
    }
    Ok(decode_jobs(LISTING, &texts)?.into_iter().zip(states).collect())
}

fn decode_state(name: String) -> Result<JobState> {
    serde_json::from_value(Value::String(name)).map_err(|error| {
        Error::internal(format!("{LISTING}: unexpected response from the database: {error}"))
    })
}

/// Switches the conversion of text off until the transaction ends. Returns the encoding of the database.
pub(super) async fn stop_conversion(transaction: &Transaction<'_>) -> Result<String, DatabaseError> {
    let row = transaction.query_typed_one(include_str!("../../sql/queries/stop_conversion.sql"), &[]).await?;
    Ok(row.get("encoding"))
}

/// Text from its bytes in the encoding of the database. Fails if the server can't convert it.
pub(super) async fn convert_text(client: &Object, bytes: &[u8]) -> Result<String, DatabaseError> {
    let sql = include_str!("../../sql/queries/convert_text.sql");
    Ok(client.query_typed_one(sql, &[(&bytes, Type::BYTEA)]).await?.get(0))
}

/// Deletes the jobs that have no attempts left. Returns their number.
pub(super) async fn delete_permafailed_jobs(
    transaction: &Transaction<'_>,
    schema: &Schema,
) -> Result<u64, DatabaseError> {
    let sql = schema.fill(include_str!("../../sql/queries/delete_permafailed_jobs.sql"));
    transaction.execute(&sql, &[]).await
}

/// Locks the table of tasks until the transaction ends.
pub(super) async fn lock_tasks(transaction: &Transaction<'_>, schema: &Schema) -> Result<(), DatabaseError> {
    transaction.batch_execute(&schema.fill(include_str!("../../sql/queries/lock_tasks.sql"))).await
}

/// Deletes the tasks that have no jobs, except for those to keep. Returns their number.
pub(super) async fn delete_unused_tasks(
    transaction: &Transaction<'_>,
    schema: &Schema,
    keep: &[&str],
) -> Result<u64, DatabaseError> {
    let sql = schema.fill(include_str!("../../sql/queries/delete_unused_tasks.sql"));
    transaction.execute(&sql, &[&keep]).await
}

/// Locks the table of queues until the transaction ends.
pub(super) async fn lock_job_queues(
    transaction: &Transaction<'_>,
    schema: &Schema,
) -> Result<(), DatabaseError> {
    transaction.batch_execute(&schema.fill(include_str!("../../sql/queries/lock_job_queues.sql"))).await
}

/// Deletes the queues that have no jobs. Returns their number.
pub(super) async fn delete_unused_job_queues(
    transaction: &Transaction<'_>,
    schema: &Schema,
) -> Result<u64, DatabaseError> {
    let sql = schema.fill(include_str!("../../sql/queries/delete_unused_job_queues.sql"));
    transaction.execute(&sql, &[]).await
}

/// Whether row level security hides a table from a role.
pub(super) struct Visibility {
    pub(super) table: String,
    pub(super) role: String,
    pub(super) is_hidden: bool,
    /// Whether the role owns the table. Row level security is then forced.
    pub(super) is_owner: bool,
}

/// The visibility of each table. Empty: there are no tables.
pub(super) async fn read_visibility(
    client: &Object,
    schema: &Schema,
) -> Result<Vec<Visibility>, DatabaseError> {
    let sql = schema.fill(include_str!("../../sql/queries/read_visibility.sql"));
    let rows = client.query_typed(&sql, &[]).await?;
    let visibility = |row: &tokio_postgres::Row| Visibility {
        table: row.get("name"),
        role: row.get("role"),
        is_hidden: row.get("is_hidden"),
        is_owner: row.get("is_owner"),
    };
    Ok(rows.iter().map(visibility).collect())
}

/// A schema for producers.
pub(super) struct AddSchema {
    pub(super) add_schema: String,
    /// The schema that it adds jobs to.
    pub(super) schema: String,
    pub(super) may_add: bool,
}

/// The schemas for producers that add to this schema, or this schema itself if it is one.
pub(super) async fn read_add_schemas(
    client: &Object,
    schema: &Schema,
) -> Result<Vec<AddSchema>, DatabaseError> {
    let sql = schema.fill(include_str!("../../sql/queries/read_add_schemas.sql"));
    let rows = client.query_typed(&sql, &[]).await?;
    let add_schema = |row: &tokio_postgres::Row| AddSchema {
        add_schema: row.get("add_schema"),
        schema: row.get("schema"),
        may_add: row.get("may_add"),
    };
    Ok(rows.iter().map(add_schema).collect())
}
