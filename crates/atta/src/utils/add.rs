//! Adding jobs: one, many, and within the caller's own transaction.

use std::borrow::Cow;
use std::future::Future;

use bytes::{Bytes, BytesMut};
use chrono::{DateTime, Utc};
use futures_util::SinkExt;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio_postgres::CopyInSink;
use tokio_postgres::types::Type;

use super::check::check_job;
use super::{WorkerUtils, decode_jobs};
use crate::db::pool;
use crate::{BatchTaskHandler, Error, Job, JobKeyMode, JobSpec, Result, TaskHandler};

/// What can carry an add into the database: a transaction of yours, of whatever library.
///
/// Implemented for tokio-postgres and deadpool clients and transactions, and behind features for those of sqlx,
/// diesel-async and sea-orm. What was added through a transaction is gone when that is rolled back.
pub trait AddJobs: Send {
    /// Runs a statement with one text argument and gives back its one column of text.
    fn query_text(&mut self, sql: &str, argument: String)
    -> impl Future<Output = Result<Vec<String>>> + Send;

    /// Whether [`AddJobs::copy`] works here. Default: no; then many jobs go another way.
    fn can_copy(&self) -> bool {
        false
    }

    /// Runs a COPY from these data.
    fn copy(&mut self, sql: &str, data: BytesMut) -> impl Future<Output = Result<()>> + Send {
        let _ = (sql, data);
        std::future::ready(Err(Error::config("this connection can't COPY")))
    }
}

/// A COPY that ends early, because its future is dropped, is an error to the server. Without a savepoint it would end the
/// caller's transaction: its commit would then be a rollback, which reports success.
const SAVEPOINT: &str = "atta_copy";

impl AddJobs for tokio_postgres::Transaction<'_> {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        texts(self.query_typed(sql, &[(&argument, Type::TEXT)]).await)
    }

    fn can_copy(&self) -> bool {
        true
    }

    async fn copy(&mut self, sql: &str, data: BytesMut) -> Result<()> {
        let savepoint = self.savepoint(SAVEPOINT).await.map_err(failed)?;
        copy(&savepoint, sql, data).await?;
        savepoint.commit().await.map_err(failed)
    }
}

impl AddJobs for tokio_postgres::Client {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        texts(self.query_typed(sql, &[(&argument, Type::TEXT)]).await)
    }
}

impl AddJobs for deadpool_postgres::Transaction<'_> {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        texts(self.query_typed(sql, &[(&argument, Type::TEXT)]).await)
    }

    fn can_copy(&self) -> bool {
        true
    }

    async fn copy(&mut self, sql: &str, data: BytesMut) -> Result<()> {
        let savepoint = self.savepoint(SAVEPOINT).await.map_err(failed)?;
        copy(&savepoint, sql, data).await?;
        savepoint.commit().await.map_err(failed)
    }
}

impl AddJobs for deadpool_postgres::Object {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        texts(self.query_typed(sql, &[(&argument, Type::TEXT)]).await)
    }
}

/// A connection of a pool that keeps its prepared statements.
struct Preparing(deadpool_postgres::Object);

impl AddJobs for Preparing {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        let prepared = self.0.prepare_typed_cached(sql, &[Type::TEXT]).await;
        let statement = prepared.map_err(failed)?;
        texts(self.0.query(&statement, &[&argument]).await)
    }
}

/// A COPY that is refused leaves PgBouncer 1.18 with a wrong count of the answers that are still to come. What is sent
/// before they have come, a rollback and the next statement, may then never be answered. So nothing is.
async fn copy(transaction: &tokio_postgres::Transaction<'_>, sql: &str, data: BytesMut) -> Result<()> {
    let copied = match transaction.copy_in(sql).await {
        Ok(sink) => send_all(sink, data).await,
        Err(error) => Err(failed(error)),
    };
    if copied.is_err() {
        let _ = transaction.batch_execute("").await;
    }
    copied
}

/// In pieces, so that the connection's task can send one while the next is handed over.
async fn send_all(sink: CopyInSink<Bytes>, data: BytesMut) -> Result<()> {
    let mut sink = std::pin::pin!(sink);
    let mut data = data.freeze();
    while !data.is_empty() {
        let piece = data.split_to(data.len().min(1 << 18));
        sink.send(piece).await.map_err(failed)?;
    }
    sink.finish().await.map(drop).map_err(failed)
}

fn texts(rows: Result<Vec<tokio_postgres::Row>, tokio_postgres::Error>) -> Result<Vec<String>> {
    Ok(rows.map_err(failed)?.iter().map(|row| row.get(0)).collect())
}

fn failed(error: tokio_postgres::Error) -> Error {
    Error::database("adding jobs", error)
}

/// How near this role comes to the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// As near as their owner.
    Copy,
    /// It can read them, and add by the functions.
    Read,
    /// It has the functions alone.
    Add,
}

/// A job on its way into the database: what task, with what payload, under which spec.
#[derive(Clone, Debug)]
pub struct RawJobSpec {
    pub(super) identifier: String,
    pub(super) payload: Box<RawValue>,
    pub(super) spec: JobSpec,
}

impl RawJobSpec {
    /// Any task, known here or not.
    pub fn new(
        identifier: impl Into<String>,
        payload: impl Serialize,
        spec: impl Into<JobSpec>,
    ) -> Result<RawJobSpec> {
        let identifier = identifier.into();
        let payload = to_raw_value(&payload).map_err(|error| {
            Error::config(format!("the payload for task {identifier} is no JSON: {error}"))
        })?;
        Ok(RawJobSpec { identifier, payload, spec: spec.into() })
    }
}

/// A job as the SQL functions read it.
#[derive(Serialize)]
struct Argument<'a> {
    identifier: &'a str,
    #[serde(serialize_with = "as_string")]
    payload: Cow<'a, RawValue>,
    queue_name: &'a Option<String>,
    run_at: Option<DateTime<Utc>>,
    max_attempts: Option<i16>,
    job_key: &'a Option<String>,
    priority: Option<i16>,
    flags: &'a Option<Vec<String>>,
    job_key_mode: Option<&'static str>,
}

/// The argument of the statement add_jobs.
#[derive(Serialize)]
struct ManyArgument<'a> {
    jobs: Vec<Argument<'a>>,
    preserve_run_at: bool,
}

impl WorkerUtils {
    /// Adds a job of a task that is known here. Gives it back as it stands in the database.
    pub async fn add_job<T: TaskHandler>(&self, payload: T, spec: impl Into<JobSpec>) -> Result<Job> {
        self.add_raw_job(T::IDENTIFIER, payload, spec).await
    }

    /// Adds a job of any task by its identifier.
    pub async fn add_raw_job(
        &self,
        identifier: impl Into<String>,
        payload: impl Serialize,
        spec: impl Into<JobSpec>,
    ) -> Result<Job> {
        let mut client = pool::get(self.pool(), "adding a job").await?;
        if self.prepares {
            return self.add_raw_job_in(&mut Preparing(client), identifier, payload, spec).await;
        }
        self.add_raw_job_in(&mut client, identifier, payload, spec).await
    }

    /// Adds many jobs of one task in one round trip. Gives them back in the same order.
    pub async fn add_jobs<T: TaskHandler>(&self, jobs: &[(T, &JobSpec)]) -> Result<Vec<Job>> {
        let jobs: Result<Vec<RawJobSpec>> = jobs
            .iter()
            .map(|(payload, spec)| RawJobSpec::new(T::IDENTIFIER, payload, (*spec).clone()))
            .collect();
        self.add_raw_jobs(&jobs?).await
    }

    /// Adds many jobs of any tasks in one round trip. Gives them back in the same order.
    pub async fn add_raw_jobs(&self, jobs: &[RawJobSpec]) -> Result<Vec<Job>> {
        let mut client = pool::get(self.pool(), "adding jobs").await?;
        let mut transaction = client.transaction().await.map_err(failed)?;
        let jobs = self.add_raw_jobs_in(&mut transaction, jobs).await?;
        transaction.commit().await.map_err(failed)?;
        Ok(jobs)
    }

    /// Adds one job for many items of a batch task. With a job key, items of later calls join it until it runs.
    pub async fn add_batch_job<T: BatchTaskHandler>(
        &self,
        items: &[T],
        spec: impl Into<JobSpec>,
    ) -> Result<Job> {
        self.add_raw_job(T::IDENTIFIER, items, spec).await
    }

    /// [`WorkerUtils::add_job`] within a transaction of yours.
    pub async fn add_job_in<T: TaskHandler>(
        &self,
        transaction: &mut impl AddJobs,
        payload: T,
        spec: impl Into<JobSpec>,
    ) -> Result<Job> {
        self.add_raw_job_in(transaction, T::IDENTIFIER, payload, spec).await
    }

    /// [`WorkerUtils::add_raw_job`] within a transaction of yours.
    pub async fn add_raw_job_in(
        &self,
        transaction: &mut impl AddJobs,
        identifier: impl Into<String>,
        payload: impl Serialize,
        spec: impl Into<JobSpec>,
    ) -> Result<Job> {
        let job = RawJobSpec::new(identifier, payload, spec)?;
        check_job(&job)?;
        let argument = encode(&self.argument(&job))?;
        let is_deduped = job.spec.job_key_mode == Some(JobKeyMode::UnsafeDedupe);
        let template = if is_deduped && self.access(transaction).await? != Access::Add {
            include_str!("../../sql/queries/add_job_deduped.sql")
        } else {
            include_str!("../../sql/queries/add_job.sql")
        };
        let sql = self.schema().fill(template);
        let rows = transaction.query_text(&sql, argument).await.map_err(|error| self.explain(error))?;
        let added = decode_jobs("adding a job", &rows)?.pop();
        added.ok_or_else(|| not_ours(self.schema().name()))
    }

    /// [`WorkerUtils::add_raw_jobs`] within a transaction of yours.
    pub async fn add_raw_jobs_in(
        &self,
        transaction: &mut impl AddJobs,
        jobs: &[RawJobSpec],
    ) -> Result<Vec<Job>> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        jobs.iter().try_for_each(check_job)?;
        if jobs.iter().any(|job| job.spec.job_key_mode == Some(JobKeyMode::UnsafeDedupe)) {
            return Err(Error::config(
                "adding jobs: the job key mode unsafe_dedupe can't be used for many at once",
            )
            .with_hint("add those jobs one by one, or use replace or preserve_run_at"));
        }
        if let Some(added) = self.try_copy(transaction, jobs).await? {
            return Ok(added);
        }
        let preserve_run_at = jobs.iter().any(|job| job.spec.job_key_mode == Some(JobKeyMode::PreserveRunAt));
        let argument =
            ManyArgument { jobs: jobs.iter().map(|job| self.argument(job)).collect(), preserve_run_at };
        let sql = self.schema().fill(include_str!("../../sql/queries/add_jobs.sql"));
        let rows =
            transaction.query_text(&sql, encode(&argument)?).await.map_err(|error| self.explain(error))?;
        name_jobs(&rows, jobs, self.schema().name())
    }

    /// Asked once: rights that are given later are used by the next [`WorkerUtils`].
    pub(super) async fn access(&self, transaction: &mut impl AddJobs) -> Result<Access> {
        if let Some(access) = self.inner.access.get() {
            return Ok(*access);
        }
        let sql = self.schema().fill(include_str!("../../sql/queries/read_access.sql"));
        let rows = transaction.query_text(&sql, String::new()).await.map_err(|error| self.explain(error))?;
        let access = match rows.first().map(String::as_str) {
            Some("copy") => Access::Copy,
            Some("read") => Access::Read,
            // The tables may be made later; then there is more to be had.
            _ => return Ok(Access::Add),
        };
        Ok(*self.inner.access.get_or_init(|| access))
    }

    fn argument<'a>(&self, job: &'a RawJobSpec) -> Argument<'a> {
        let spec = &job.spec;
        Argument {
            identifier: &job.identifier,
            payload: crate::trace::carry(&job.payload),
            queue_name: &spec.queue_name,
            run_at: spec.run_at.or_else(|| self.default_run_at()).map(in_micros),
            max_attempts: spec.max_attempts,
            job_key: &spec.job_key,
            priority: spec.priority,
            flags: &spec.flags,
            job_key_mode: spec.job_key_mode.map(JobKeyMode::as_str),
        }
    }
}

/// JSON within a string of JSON: see the statement.
fn as_string<S: serde::Serializer>(json: &RawValue, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(json.get())
}

/// As exactly as PostgreSQL keeps it: in microseconds, and a leap second as the one after it.
pub(super) fn in_micros(time: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(time.timestamp_micros()).unwrap_or(time)
}

fn encode(argument: &impl Serialize) -> Result<String> {
    serde_json::to_string(argument).map_err(|error| Error::config(format!("a job is no JSON: {error}")))
}

/// The function gives the jobs back in the order of the specs, so the names are known from there.
fn name_jobs(rows: &[String], specs: &[RawJobSpec], schema: &str) -> Result<Vec<Job>> {
    let mut jobs = decode_jobs("adding jobs", rows)?;
    if jobs.len() != specs.len() {
        return Err(not_ours(schema));
    }
    for (job, spec) in jobs.iter_mut().zip(specs) {
        job.task_identifier = spec.identifier.as_str().into();
        job.queue_name.clone_from(&spec.spec.queue_name);
    }
    Ok(jobs)
}

fn not_ours(schema: &str) -> Error {
    Error::config(format!(
        "adding jobs: the functions of schema {schema:?} gave back fewer jobs than were added"
    ))
    .with_hint("another tool replaced them; run: atta migrate")
}
