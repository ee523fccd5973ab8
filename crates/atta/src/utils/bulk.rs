//! Adding very many jobs: not through the SQL function, but by COPY in its binary format, with one notification for
//! all.
//!
//! COPY is used only for jobs without a key whose values are certainly valid. All other jobs go through the SQL
//! function, which can merge and reject them. If the call returns the jobs, their ids are drawn from the sequence
//! first.

use std::collections::{BTreeSet, HashMap};

use bytes::{BufMut, BytesMut};
use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::add::{Access, RawJobSpec, in_micros};
use super::check::check_job;
use super::connection::{AddJobs, Own};
use super::{WorkerUtils, pool, queries};
use crate::job::Place;
use crate::{Error, Job, Result};

/// From this number of jobs on, COPY is worth its extra round trips.
const WORTHWHILE: usize = 50;

/// A task or queue that another transaction is creating at the same time is found by the next attempt.
const TRIES: usize = 10;

/// What the database returns before a COPY.
#[derive(Deserialize)]
pub(super) struct Prepared {
    now: DateTime<Utc>,
    tasks: HashMap<String, i32>,
    queues: HashMap<String, i32>,
    ids: Vec<i64>,
}

impl WorkerUtils {
    /// Adds many jobs at once and returns only their number. This is the fastest way to add jobs. Fewer than 50 jobs
    /// are added through the SQL function, the others by COPY.
    ///
    /// Cancel safe: it is done as a whole or not at all.
    pub async fn insert_raw_jobs(&self, jobs: &[RawJobSpec]) -> Result<usize> {
        let mut client = pool::get(self.pool(), "adding jobs").await?;
        let mut transaction = Own::begin(&mut client).await?;
        let count = self.insert_raw_jobs_in(&mut transaction, jobs).await?;
        transaction.commit().await?;
        Ok(count)
    }

    /// [`WorkerUtils::insert_raw_jobs`] within your own transaction.
    ///
    /// Cancel safe: the transaction can be used and committed afterwards.
    pub async fn insert_raw_jobs_in(
        &self,
        transaction: &mut impl AddJobs,
        jobs: &[RawJobSpec],
    ) -> Result<usize> {
        if !self.can_copy(transaction, jobs).await? {
            return Ok(self.add_raw_jobs_in(transaction, jobs).await?.len());
        }
        jobs.iter().try_for_each(check_job)?;
        self.copy_jobs(transaction, jobs, false).await?;
        Ok(jobs.len())
    }

    /// Adds jobs by COPY and returns them, or returns nothing if COPY is not possible for them.
    pub(super) async fn try_copy(
        &self,
        transaction: &mut impl AddJobs,
        jobs: &[RawJobSpec],
    ) -> Result<Option<Vec<Job>>> {
        if !self.can_copy(transaction, jobs).await? {
            return Ok(None);
        }
        let prepared = self.copy_jobs(transaction, jobs, true).await?;
        let named = jobs.iter().zip(&prepared.ids).map(|(job, id)| self.as_added(job, *id, &prepared));
        Ok(Some(named.collect()))
    }

    async fn can_copy(&self, transaction: &mut impl AddJobs, jobs: &[RawJobSpec]) -> Result<bool> {
        let may_be = is_worthwhile(jobs) && transaction.can_copy();
        Ok(may_be && self.access(transaction).await? == Access::Copy)
    }

    async fn copy_jobs(
        &self,
        transaction: &mut impl AddJobs,
        jobs: &[RawJobSpec],
        with_ids: bool,
    ) -> Result<Prepared> {
        let prepared = self.prepare(transaction, jobs, if with_ids { jobs.len() } else { 0 }).await?;
        let data = self.encode(jobs, &prepared);
        // The notification is sent first, so that the caller's transaction never contains unannounced jobs if the
        // future is dropped in between. Workers receive it when the transaction is committed.
        queries::announce_jobs(transaction, self.schema(), jobs.len()).await?;
        let copied = match with_ids {
            true => queries::copy_jobs(transaction, self.schema(), data).await,
            false => queries::copy_jobs_unnamed(transaction, self.schema(), data).await,
        };
        copied.map_err(|error| self.explain(error))?;
        Ok(prepared)
    }

    async fn prepare(
        &self,
        transaction: &mut impl AddJobs,
        jobs: &[RawJobSpec],
        count: usize,
    ) -> Result<Prepared> {
        let identifiers: BTreeSet<&str> = jobs.iter().map(|job| job.identifier.as_str()).collect();
        let queue_names: BTreeSet<&str> =
            jobs.iter().filter_map(|job| job.spec.queue_name.as_deref()).collect();
        for _ in 0..TRIES {
            let prepared =
                queries::prepare_bulk(transaction, self.schema(), &identifiers, &queue_names, count).await;
            let prepared = prepared.map_err(|error| self.explain(error))?;
            if prepared.tasks.len() == identifiers.len() && prepared.queues.len() == queue_names.len() {
                return Ok(prepared);
            }
        }
        Err(Error::unavailable(
            "adding jobs: the tasks or queues were deleted by somebody else during every attempt",
        ))
    }

    /// The binary format of COPY: a header, then for each row the number of fields, and each field with its length.
    fn encode(&self, jobs: &[RawJobSpec], prepared: &Prepared) -> BytesMut {
        let mut data = BytesMut::with_capacity(jobs.len() * 128);
        data.put_slice(b"PGCOPY\n\xff\r\n\0");
        data.put_u32(0);
        data.put_u32(0);
        let default_run_at = self.default_run_at().unwrap_or(prepared.now);
        for (n, job) in jobs.iter().enumerate() {
            let spec = &job.spec;
            let id = prepared.ids.get(n);
            data.put_i16(if id.is_some() { 8 } else { 7 });
            if let Some(id) = id {
                put_field(&mut data, &id.to_be_bytes());
            }
            match spec.queue_name.as_ref().and_then(|name| prepared.queues.get(name)) {
                Some(queue) => put_field(&mut data, &queue.to_be_bytes()),
                None => data.put_i32(-1),
            }
            let task = prepared.tasks.get(&job.identifier).copied().unwrap_or_default();
            put_field(&mut data, &task.to_be_bytes());
            put_field(&mut data, crate::trace::carry(&job.payload).get().as_bytes());
            put_field(&mut data, &spec.priority.unwrap_or(0).to_be_bytes());
            put_field(
                &mut data,
                &micros(spec.due_at(default_run_at).unwrap_or(default_run_at)).to_be_bytes(),
            );
            put_field(&mut data, &spec.max_attempts.unwrap_or(25).to_be_bytes());
            match flags(job) {
                Some(flags) => {
                    let text = serde_json::Value::Object(flags).to_string();
                    data.put_i32(i32::try_from(text.len() + 1).unwrap_or(i32::MAX));
                    data.put_u8(1);
                    data.put_slice(text.as_bytes());
                }
                None => data.put_i32(-1),
            }
        }
        data.put_i16(-1);
        data
    }

    /// The job as it is now stored in the database.
    fn as_added(&self, job: &RawJobSpec, id: i64, prepared: &Prepared) -> Job {
        let spec = &job.spec;
        let default_run_at = self.default_run_at().unwrap_or(prepared.now);
        Job {
            id,
            task_identifier: job.identifier.as_str().into(),
            task_id: prepared.tasks.get(&job.identifier).copied().unwrap_or_default(),
            job_queue_id: spec.queue_name.as_ref().and_then(|name| prepared.queues.get(name)).copied(),
            queue_name: spec.queue_name.clone(),
            payload: crate::trace::carry(&job.payload).get().into(),
            priority: spec.priority.unwrap_or(0),
            run_at: in_micros(spec.due_at(default_run_at).unwrap_or(default_run_at)),
            attempts: 0,
            max_attempts: spec.max_attempts.unwrap_or(25),
            last_error: None,
            created_at: prepared.now,
            updated_at: prepared.now,
            key: None,
            locked_at: None,
            locked_by: None,
            revision: 0,
            flags: flags(job),
            place: Place::default(),
        }
    }
}

/// Whether COPY is worth its round trips: there are many jobs, none has a key, and all values are ones that the
/// function would accept.
pub(super) fn is_worthwhile(jobs: &[RawJobSpec]) -> bool {
    let is_name = |text: &str| text.chars().count() <= 128;
    let is_plain = |job: &RawJobSpec| {
        job.spec.job_key.is_none()
            && is_name(&job.identifier)
            && job.spec.queue_name.as_deref().is_none_or(is_name)
            && job.spec.max_attempts.is_none_or(|attempts| attempts >= 1)
    };
    jobs.len() >= WORTHWHILE && jobs.iter().all(is_plain)
}

fn flags(job: &RawJobSpec) -> Option<serde_json::Map<String, serde_json::Value>> {
    let flags = job.spec.flags.as_ref().filter(|flags| !flags.is_empty())?;
    Some(flags.iter().map(|flag| (flag.clone(), true.into())).collect())
}

fn put_field(data: &mut BytesMut, bytes: &[u8]) {
    // The server refuses a payload of two gigabytes in any case.
    data.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
    data.put_slice(bytes);
}

/// PostgreSQL counts microseconds from the year 2000.
fn micros(time: DateTime<Utc>) -> i64 {
    const YEAR_2000: i64 = 946_684_800_000_000;
    time.timestamp_micros().saturating_sub(YEAR_2000)
}
