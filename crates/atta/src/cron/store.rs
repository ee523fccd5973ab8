//! The statements of cron. Each can be repeated at any time: what was done is not done twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, Utc};
use deadpool_postgres::Pool;
use futures_util::future::join3;
use serde::Serialize;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use tokio_util::sync::CancellationToken;

use super::moment::Minute;
use super::plan::Known;
use super::{Cron, payload};
use crate::db::lease::Lease;
use crate::db::read_clock;
use crate::job::StoredTime;
use crate::{Error, Result, Schema};

/// An add by key, or to a queue, may wait for another transaction. Set here, because a session behind a pooler is not ours.
const BEGIN: &str = "begin isolation level read committed; set local lock_timeout = '1s'";

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

pub(super) struct Store {
    pool: Pool,
    schema: Schema,
    /// Ends the wait for a connection, but not a running statement.
    stop: CancellationToken,
}

/// The result of scheduling a minute.
#[derive(Debug, Default)]
pub(super) struct Scheduled {
    /// The items whose jobs this call added. The jobs of the others had been added before, by any worker.
    pub(super) identifiers: Vec<String>,
    /// The items that the database refused, and why.
    pub(super) refused: Vec<(String, Error)>,
    /// The items whose jobs can't be added yet: another transaction keeps the job of their key, or their queue, locked.
    pub(super) blocked: Vec<String>,
}

impl Store {
    pub(super) fn new(pool: Pool, schema: &Schema, stop: CancellationToken) -> Store {
        Store { pool, schema: schema.clone(), stop }
    }

    /// The database's time, and this machine's at the same moment: half-way between request and answer.
    pub(super) async fn read_clock(&self) -> Result<(DateTime<Utc>, DateTime<Utc>)> {
        let doing = "reading the database's clock";
        let client = self.client(doing).await?;
        let (asked_at, began) = (Utc::now(), Instant::now());
        let answer = client.answered(doing, read_clock(&client)).await?;
        let now = answer.map_err(|error| Error::database(doing, error))?;
        Ok((now, asked_at + began.elapsed() / 2))
    }

    /// Registers the items, from `now` on, and returns what was known about them before.
    pub(super) async fn register_cron_items(
        &self,
        identifiers: Vec<&str>,
        now: DateTime<Utc>,
    ) -> Result<HashMap<String, Known>> {
        let parameters: [Parameter<'_>; 2] = [(&identifiers, Type::TEXT_ARRAY), (&now, Type::TIMESTAMPTZ)];
        let sql = self.schema.fill(include_str!("../../sql/queries/register_cron_items.sql"));
        let rows = self.query("registering cron items", &sql, &parameters).await?;
        let known = |row: &Row| {
            let StoredTime(known_since) = row.get(1);
            let last_execution = row.get::<_, Option<StoredTime>>(2).map(|StoredTime(time)| time);
            Known { known_since, last_execution }
        };
        Ok(rows.iter().map(|row| (row.get(0), known(row))).collect())
    }

    /// Adds the jobs of a minute. If the database refuses one because of its values, or another transaction blocks it, the
    /// others are still added.
    pub(super) async fn schedule(
        &self,
        minute: Minute,
        items: &[Arc<Cron>],
        backfilled: bool,
    ) -> Result<Scheduled> {
        let jobs: Vec<CronJob<'_>> =
            items.iter().map(|item| CronJob::new(item, minute, backfilled)).collect();
        let error = match self.schedule_cron_jobs(minute, &jobs).await {
            Ok(identifiers) => {
                return Ok(Scheduled { identifiers, ..Scheduled::default() });
            }
            Err(error) => error,
        };
        if !is_about_values(&error) && !is_blocked(&error) {
            return Err(error);
        }
        let mut scheduled = Scheduled::default();
        for job in &jobs {
            match self.schedule_cron_jobs(minute, std::slice::from_ref(job)).await {
                Ok(identifiers) => scheduled.identifiers.extend(identifiers),
                Err(error) if is_about_values(&error) => {
                    scheduled.refused.push((job.identifier.to_owned(), error))
                }
                Err(error) if is_blocked(&error) => scheduled.blocked.push(job.identifier.to_owned()),
                Err(error) => return Err(error),
            }
        }
        Ok(scheduled)
    }

    async fn schedule_cron_jobs(&self, minute: Minute, jobs: &[CronJob<'_>]) -> Result<Vec<String>> {
        let doing = format!("adding the jobs of cron items for {}", minute.begin().format("%Y-%m-%dT%H:%MZ"));
        let payloads: Vec<&str> = jobs.iter().map(|job| job.payload.as_str()).collect();
        let jobs =
            serde_json::to_string(jobs).map_err(|error| Error::internal(format!("{doing}: {error}")))?;
        let at = minute.begin();
        let parameters: [Parameter<'_>; 3] =
            [(&jobs, Type::TEXT), (&at, Type::TIMESTAMPTZ), (&payloads, Type::TEXT_ARRAY)];
        let client = self.client(&doing).await?;
        let sql = self.schema.fill(include_str!("../../sql/queries/schedule_cron_jobs.sql"));
        let failed = |error| Error::database(&doing, error);
        let added = async {
            // All is sent before the first is answered. If the statement fails, the commit ends the transaction without it.
            let (begun, rows, committed) = join3(
                client.batch_execute(BEGIN),
                client.query_typed(&sql, &parameters),
                client.batch_execute("commit"),
            )
            .await;
            begun.map_err(failed)?;
            let rows = rows.map_err(failed)?;
            committed.map_err(failed)?;
            Ok(rows.iter().map(|row| row.get(0)).collect())
        };
        client.answered(&doing, added).await?
    }

    async fn query(&self, doing: &str, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        let client = self.client(doing).await?;
        let answer = client.answered(doing, client.query_typed(sql, parameters)).await?;
        answer.map_err(|error| Error::database(doing, error))
    }

    async fn client(&self, doing: &str) -> Result<Lease> {
        let stopped = || Error::unavailable(format!("{doing}: the worker is shutting down"));
        self.stop.run_until_cancelled(Lease::get(&self.pool, doing)).await.unwrap_or_else(|| Err(stopped()))
    }
}

/// Whether the values caused the error, and not the connection, the schema or the server: invalid data, a constraint,
/// an error of `add_job`, an error that a trigger raised, or an index entry that is too large.
fn is_about_values(error: &Error) -> bool {
    let Some(code) = error.db_code() else { return false };
    match code {
        // Two adds collided; the next attempt succeeds.
        "23505" => false,
        "P0001" | "54000" => true,
        _ => ["22", "23", "GWB"].iter().any(|class| code.starts_with(class)),
    }
}

/// Whether the statement waited too long for a lock of another transaction.
fn is_blocked(error: &Error) -> bool {
    error.db_code() == Some("55P03")
}

/// A job in the form that the statement reads.
#[derive(Serialize)]
struct CronJob<'a> {
    identifier: &'a str,
    task_identifier: &'a str,
    /// JSON text, passed as a separate parameter.
    #[serde(skip)]
    payload: String,
    queue_name: Option<&'a str>,
    max_attempts: Option<i16>,
    job_key: Option<&'a str>,
    job_key_mode: Option<&'static str>,
    priority: Option<i16>,
}

impl<'a> CronJob<'a> {
    fn new(item: &'a Cron, minute: Minute, backfilled: bool) -> CronJob<'a> {
        let options = &item.options;
        CronJob {
            identifier: item.identifier(),
            task_identifier: item.task_identifier(),
            payload: payload::of_job(item.payload.as_ref(), minute.begin(), backfilled).to_string(),
            queue_name: options.queue.as_deref(),
            max_attempts: options.max_attempts,
            job_key: options.job_key.as_deref(),
            job_key_mode: options.job_key_mode.map(|mode| mode.as_str()),
            priority: options.priority,
        }
    }
}
