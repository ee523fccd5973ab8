//! A job as it is stored. `spec` has the options with which a job is added or changed, `builder` makes jobs for tests.

mod builder;
mod spec;

use std::sync::Arc;

use bytes::BytesMut;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

pub use builder::JobBuilder;
pub(crate) use spec::after;
pub use spec::{JobKeyMode, JobSpec, JobSpecBuilder, RescheduleJobOptions};

use crate::{Error, Result};

/// The range of times of jobs: the years 1 to 9999. PostgreSQL's own range goes from 4713 BC to 294276 AD, and includes
/// infinity, which neither chrono nor most other programs can represent. If a time outside of this range was stored by
/// SQL, reading returns the nearest time in the range.
pub(crate) const FIRST_TIME: DateTime<Utc> = time_at(-62_135_596_800);
pub(crate) const LAST_TIME: DateTime<Utc> = time_at(253_402_214_400);

const fn time_at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 0).expect("a time within the years 1 to 9999")
}

/// A time read from a column, moved into the range from [`FIRST_TIME`] to [`LAST_TIME`].
pub(crate) struct StoredTime(pub(crate) DateTime<Utc>);

impl<'a> FromSql<'a> for StoredTime {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<StoredTime, Box<dyn std::error::Error + Sync + Send>> {
        // Microseconds since the year 2000; the lowest and the highest value stand for the infinities.
        let micros = i64::from_be_bytes(raw.try_into()?).saturating_add(946_684_800_000_000);
        let micros = micros.clamp(FIRST_TIME.timestamp_micros(), LAST_TIME.timestamp_micros());
        Ok(StoredTime(DateTime::from_timestamp_micros(micros).ok_or("no time")?))
    }

    accepts!(TIMESTAMPTZ);
}

/// A job as it is stored in the database.
///
/// The payload is kept as the stored text, and decoded only on request.
#[derive(Clone, Debug, Deserialize)]
pub struct Job {
    pub(crate) id: i64,
    #[serde(deserialize_with = "null_as_empty")]
    pub(crate) task_identifier: Arc<str>,
    pub(crate) task_id: i32,
    pub(crate) job_queue_id: Option<i32>,
    pub(crate) queue_name: Option<String>,
    #[serde(deserialize_with = "as_text")]
    pub(crate) payload: Box<str>,
    pub(crate) priority: i16,
    pub(crate) run_at: DateTime<Utc>,
    pub(crate) attempts: i16,
    pub(crate) max_attempts: i16,
    pub(crate) last_error: Option<String>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) updated_at: DateTime<Utc>,
    pub(crate) key: Option<String>,
    pub(crate) locked_at: Option<DateTime<Utc>>,
    #[serde(deserialize_with = "shared_text")]
    pub(crate) locked_by: Option<Arc<str>>,
    pub(crate) revision: i32,
    #[serde(deserialize_with = "object_or_none")]
    pub(crate) flags: Option<Flags>,
    /// Known while a worker holds a claim on the job.
    #[serde(skip)]
    pub(crate) place: Place,
}

/// Where a row lies in its table: the system column `ctid`. Valid for as long as the transaction that locked the row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place([u8; 6]);

impl<'a> FromSql<'a> for Place {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Place, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Place(raw.try_into()?))
    }

    accepts!(TID);
}

impl ToSql for Place {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(TID);
    to_sql_checked!();
}

impl Job {
    /// The id that PostgreSQL assigned.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The kind of work.
    pub fn task_identifier(&self) -> &str {
        &self.task_identifier
    }

    /// The id of its task in this schema. Use the identifier to recognize a task: the id changes if the schema is
    /// created again, or if a clean-up deletes the task and a later add creates it again.
    pub fn task_id(&self) -> i32 {
        self.task_id
    }

    /// The queue that the job is in, if any. Jobs of one queue run one after the other.
    pub fn queue_name(&self) -> Option<&str> {
        self.queue_name.as_deref()
    }

    /// The id of that queue. Known only while the job is claimed.
    pub fn job_queue_id(&self) -> Option<i32> {
        self.job_queue_id
    }

    /// The payload as JSON text, exactly as it is stored.
    pub fn payload_json(&self) -> &str {
        &self.payload
    }

    /// The payload, decoded.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        crate::payload::decode(&self.payload).map_err(|error| {
            let (type_name, why) = (std::any::type_name::<T>(), crate::error::without_values(&error));
            Error::payload(format!("the payload of job {} is not a {type_name}: {why}", self.id))
        })
    }

    /// Jobs with lower numbers run first.
    pub fn priority(&self) -> i16 {
        self.priority
    }

    /// The job does not run before this time.
    pub fn run_at(&self) -> DateTime<Utc> {
        self.run_at
    }

    /// How many attempts were started, including the one that is running.
    pub fn attempts(&self) -> i16 {
        self.attempts
    }

    /// How many attempts may be started.
    pub fn max_attempts(&self) -> i16 {
        self.max_attempts
    }

    /// Why the last attempt failed.
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// When it was first added.
    pub fn created_at(&self) -> DateTime<Utc> {
        self.created_at
    }

    /// When the job was last added, rescheduled, or failed. Starting a run does not change it. Workers of
    /// graphile-worker do not set it when a job fails.
    pub fn updated_at(&self) -> DateTime<Utc> {
        self.updated_at
    }

    /// The job key.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// When the worker that has the job claimed it. None if no worker has it.
    pub fn locked_at(&self) -> Option<DateTime<Utc>> {
        self.locked_at
    }

    /// The worker that has the job, if any.
    pub fn locked_by(&self) -> Option<&str> {
        self.locked_by.as_deref()
    }

    /// How often the job was changed through its key.
    pub fn revision(&self) -> i32 {
        self.revision
    }

    /// Its flags, in alphabetical order.
    pub fn flags(&self) -> Vec<&str> {
        self.flags.iter().flatten().map(|(flag, _)| flag.as_str()).collect()
    }

    /// Whether no attempt is left and the job is not running.
    pub fn is_permanently_failed(&self) -> bool {
        self.locked_at.is_none() && self.attempts >= self.max_attempts
    }

    /// Whether the claim left the payload out because it is large. JSON text is never empty.
    pub(crate) fn lacks_payload(&self) -> bool {
        self.payload.is_empty()
    }

    /// The key by which jobs are ordered: the lowest runs first.
    pub(crate) fn order(&self) -> Order {
        (self.priority, self.run_at, self.id)
    }
}

#[cfg(test)]
impl Job {
    /// A job for tests in which only the order and the task matter.
    pub(crate) fn for_tests((priority, run_at, id): Order, task_identifier: &str) -> Job {
        let job = Job::builder(task_identifier).id(id).priority(priority).run_at(run_at).build();
        Job { created_at: run_at, updated_at: run_at, ..job }
    }
}

/// Decides which of two jobs starts first: priority, then run_at, then id.
pub(crate) type Order = (i16, DateTime<Utc>, i64);

/// A JSON object whose member names are the flags.
pub(crate) type Flags = serde_json::Map<String, serde_json::Value>;

/// The SQL functions only write objects. If another tool stored any other value, it must not prevent the job from being
/// read.
fn object_or_none<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Flags>, D::Error> {
    let json = Option::<Box<RawValue>>::deserialize(deserializer)?;
    Ok(json.and_then(|json| serde_json::from_str(json.get()).ok()))
}

fn shared_text<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<str>>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(Arc::from))
}

/// Some statements do not know the task identifier and return null; their caller fills it in.
fn null_as_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.unwrap_or_default().into())
}

fn as_text<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Box<str>, D::Error> {
    Ok(Box::<RawValue>::deserialize(deserializer)?.into())
}
