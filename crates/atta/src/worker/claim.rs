//! Claiming: the only place that takes a lock on a job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use deadpool_postgres::Object;
use tokio::sync::mpsc;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};

use super::Shared;
use super::hold::{MANY, News};
use super::scan::{LevelRequest, Request};
use super::unreadable::is_unreadable;
use crate::job::{Flags, LAST_TIME, Order, Place, StoredTime};
use crate::{Error, Job, Result};

/// What a durable claim asks for.
#[derive(Debug)]
pub(crate) struct Claimable {
    pub(crate) count: usize,
    /// The tasks whose queued jobs are claimed: all but those that are paused.
    pub(crate) tasks: Vec<String>,
    /// The tasks whose jobs are claimed durably even without a queue.
    pub(crate) unqueued: Vec<String>,
    /// Only jobs that are more urgent than this.
    pub(crate) before: Order,
    /// For how many bytes of payloads there is room. One job is always claimed.
    pub(crate) bytes: usize,
    /// Reads all jobs with flags, also if most of them are forbidden.
    pub(crate) reads_all_flagged: bool,
    /// Whether to look beyond what is claimed, so that the next two claims can be sent together.
    pub(crate) looks_ahead: bool,
    /// The task and priority of all jobs without a queue, as far as is known.
    pub(crate) level: Option<Level>,
    /// The owner's count of what it had to forget, when this was sent.
    pub(crate) epoch: u64,
    pub(crate) sent_at: Instant,
}

impl Claimable {
    /// Whether this asks for jobs that an earlier claim has seen, and for none beyond them.
    pub(crate) fn is_of_seen(&self) -> bool {
        self.level.as_ref().is_some_and(|level| level.ahead.is_some())
    }
}

/// A run_at and an id: up to where jobs of one task and priority were claimed.
pub(crate) type Position = (DateTime<Utc>, i64);

/// The jobs of one task and priority, without queues and flags.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub(crate) task_identifier: Arc<str>,
    pub(crate) priority: i16,
    /// Those up to here were claimed. None: a claim reads them from the start.
    pub(crate) position: Option<Position>,
    /// A later position, and the number of jobs between the two. One claim can take these jobs while another takes the
    /// jobs behind them.
    pub(crate) ahead: Option<(Position, usize)>,
}

impl Level {
    pub(crate) fn is_same(&self, other: &Level) -> bool {
        (&self.task_identifier, self.priority) == (&other.task_identifier, other.priority)
    }

    /// The level of what a claim took, and what it saw beyond that, if it brought as much as it asked for, of one level only.
    fn of(rows: &[Row]) -> Result<Option<Level>, tokio_postgres::Error> {
        let Some(row) = rows.first() else { return Ok(None) };
        let read = |column: usize| -> Result<Option<Position>, tokio_postgres::Error> {
            let (run_at, id): (Option<DateTime<Utc>>, _) = (row.try_get(column)?, row.try_get(column + 1)?);
            Ok(run_at.zip(id))
        };
        let Some(last) = read(COLUMNS + 5)? else { return Ok(None) };
        let ahead = read(COLUMNS + 7)?.map(|position| (position, rows.len()));
        let task_identifier = row.try_get::<_, &str>(COLUMNS)?.into();
        Ok(Some(Level { task_identifier, priority: row.try_get(2)?, position: Some(last), ahead }))
    }
}

/// What a durable claim brought.
#[derive(Debug)]
pub(crate) struct Claimed {
    /// In the order in which they are to run.
    pub(crate) jobs: Vec<Job>,
    /// Claimed, but their payloads are not here: they are returned.
    pub(crate) without_room: Vec<Job>,
    /// Claimed, but the server can't send their payloads: they fail permanently, with these errors.
    pub(crate) unreadable: Vec<(Job, Error)>,
    pub(crate) asked_at: Instant,
    pub(crate) took: Duration,
    /// What these jobs are of, and where the next claim begins. None: they are of several, or fewer than were wanted.
    pub(crate) level: Option<Level>,
    /// Flags are forbidden, so there may be jobs that stay.
    pub(crate) has_forbidden: bool,
}

/// How many jobs with flags a claim reads of each task and priority, unless it reads all of them.
const FLAGGED_AT_ONCE: i64 = 1000;

/// Claims due jobs durably: queued ones of all tasks, and of some tasks also those without a queue.
pub(crate) async fn claim_jobs(
    shared: &Shared,
    client: &Object,
    wanted: &Claimable,
    news: &mpsc::Sender<News>,
) -> Result<Claimed> {
    let (has_forbidden, asked_at, rows) = match &wanted.level {
        Some(level) => query_level(shared, client, wanted, level).await,
        None => query_jobs(shared, client, wanted).await,
    }?;
    let took = asked_at.elapsed();
    let level = Level::of(&rows).map_err(|error| Error::database("reading claimed jobs", error))?;
    if rows.len() >= MANY && !wanted.is_of_seen() {
        // If the loop is gone, so are the jobs.
        let answered = News::Answered { sent_at: wanted.sent_at, epoch: wanted.epoch, level: level.clone() };
        let _ = news.send(answered).await;
        tokio::task::yield_now().await;
    }
    let failed = |error| Error::database("reading claimed jobs", error);
    let mut jobs = decode(&rows, |row| read_claimed(row).map_err(failed)).await?;
    // An UPDATE returns its rows in any order.
    jobs.sort_by_key(Job::order);
    let Loaded { jobs, without_room, unreadable } = load_payloads(shared, client, jobs, wanted.bytes).await;
    Ok(Claimed { jobs, without_room, unreadable, asked_at, took, level, has_forbidden })
}

/// Decodes rows in small steps: between them, other lanes read their answers and send their next claims.
pub(crate) async fn decode<T>(rows: &[Row], read: impl Fn(&Row) -> Result<T>) -> Result<Vec<T>> {
    let mut decoded = Vec::with_capacity(rows.len());
    for rows in rows.chunks(MANY) {
        if !decoded.is_empty() {
            tokio::task::yield_now().await;
        }
        for row in rows {
            decoded.push(read(row)?);
        }
    }
    Ok(decoded)
}

/// Whether flags are forbidden, when the statement was sent, and its rows.
type Answer = (bool, Instant, Vec<Row>);

async fn query_jobs(shared: &Shared, client: &Object, wanted: &Claimable) -> Result<Answer> {
    let forbidden = shared.forbidden_flags.now().await?;
    let now = shared.local_now();
    let limit = i64::try_from(wanted.count).unwrap_or(i64::MAX);
    let (priority, run_at, id) = bound(wanted.before);
    let has_forbidden = !forbidden.is_empty();
    let flagged = if has_forbidden && !wanted.reads_all_flagged { FLAGGED_AT_ONCE } else { i64::MAX };
    let parameters: [(&(dyn ToSql + Sync), Type); 11] = [
        (&&*shared.worker_id, Type::TEXT),
        (&wanted.tasks, Type::TEXT_ARRAY),
        (&forbidden, Type::TEXT_ARRAY),
        (&now, Type::TIMESTAMPTZ),
        (&limit, Type::INT8),
        (&wanted.unqueued, Type::TEXT_ARRAY),
        (&priority, Type::INT2),
        (&run_at, Type::TIMESTAMPTZ),
        (&id, Type::INT8),
        (&flagged, Type::INT8),
        (&wanted.looks_ahead, Type::BOOL),
    ];
    let (asked_at, rows) = ask(shared, client, &shared.sql.claim_jobs, &parameters).await?;
    Ok((has_forbidden, asked_at, rows))
}

async fn query_level(shared: &Shared, client: &Object, wanted: &Claimable, level: &Level) -> Result<Answer> {
    let now = shared.local_now();
    let limit = i64::try_from(wanted.count).unwrap_or(i64::MAX);
    let (after_time, after_id) = level.position.unzip();
    let (last_time, last_id) = level.ahead.map(|(position, _)| position).unzip();
    let parameters: [(&(dyn ToSql + Sync), Type); 11] = [
        (&&*shared.worker_id, Type::TEXT),
        (&&*level.task_identifier, Type::TEXT),
        (&level.priority, Type::INT2),
        (&now, Type::TIMESTAMPTZ),
        (&limit, Type::INT8),
        (&wanted.unqueued, Type::TEXT_ARRAY),
        (&after_time, Type::TIMESTAMPTZ),
        (&after_id, Type::INT8),
        (&last_time, Type::TIMESTAMPTZ),
        (&last_id, Type::INT8),
        (&wanted.looks_ahead, Type::BOOL),
    ];
    let (asked_at, rows) = ask(shared, client, &shared.sql.claim_level, &parameters).await?;
    Ok((false, asked_at, rows))
}

async fn ask(
    shared: &Shared,
    client: &Object,
    sql: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<(Instant, Vec<Row>)> {
    let failed = |error| Error::database("claiming jobs", error);
    shared.prepare(client, sql, parameters).await.map_err(failed)?;
    let asked_at = Instant::now();
    let rows = shared.query_alone(client, sql, parameters).await.map_err(failed)?;
    Ok((asked_at, rows))
}

/// The parameters for "only jobs before this".
pub(crate) fn bound((priority, run_at, id): Order) -> (i16, Option<DateTime<Utc>>, i64) {
    (priority, Some(run_at).filter(|time| *time < LAST_TIME), id)
}

#[derive(Default)]
struct Loaded {
    jobs: Vec<Job>,
    without_room: Vec<Job>,
    unreadable: Vec<(Job, Error)>,
}

/// Reads the payloads that a claim left out, one by one, until the bytes are used up. Jobs whose payloads could not be read
/// because of the connection count as those for which there is no room.
async fn load_payloads(shared: &Shared, client: &Object, jobs: Vec<Job>, bytes: usize) -> Loaded {
    if !jobs.iter().any(Job::lacks_payload) {
        return Loaded { jobs, ..Loaded::default() };
    }
    let (mut loaded, mut used) = (Loaded::default(), 0);
    for mut job in jobs {
        if !loaded.without_room.is_empty() || (used > 0 && used >= bytes) {
            loaded.without_room.push(job);
            continue;
        }
        if job.lacks_payload() {
            match read_payload(shared, client, job.id).await {
                Ok(payload) => job.payload = payload.unwrap_or_default(),
                Err(error) if is_unreadable(&error) => {
                    loaded.unreadable.push((job, error));
                    continue;
                }
                Err(error) => {
                    let (worker, task, attempt) = (&*shared.worker_id, job.task_identifier(), job.attempts);
                    tracing::warn!(worker, job = job.id, task, attempt, %error, "could not read the payload of a claimed job");
                }
            }
        }
        if job.lacks_payload() {
            loaded.without_room.push(job);
            continue;
        }
        used += job.payload.len();
        loaded.jobs.push(job);
    }
    loaded
}

/// Reads a held job. Its task is that of its level. A large payload is left out, to be read apart.
pub(crate) fn read_picked(row: &Row, request: &Request) -> Result<Job> {
    let failed = |error| Error::database("reading claimed jobs", error);
    let level = level_of(row, request)?;
    let place = row.try_get(COLUMNS + 1).map_err(failed)?;
    Ok(Job { place, ..read_job(row, level.key.task_identifier.clone()).map_err(failed)? })
}

/// Counts what each level of a pick brought, with the last job of each, and the most urgent job of all.
#[expect(clippy::type_complexity, reason = "used in one place")]
pub(crate) fn read_levels(
    rows: &[Row],
    request: &Request,
) -> Result<(Vec<(usize, Option<Order>)>, Option<Order>)> {
    if let ([_], [first, .., last]) = (&*request.levels, rows) {
        // The next pick waits for this: of one level, the first and the last row tell everything.
        return Ok((vec![(rows.len(), Some(read_order(last)?))], Some(read_order(first)?)));
    }
    let (mut levels, mut most_urgent) = (vec![(0, None); request.levels.len()], None);
    // The rows of a level follow one another.
    for rows in rows.chunk_by(|one, other| level_number(one).ok() == level_number(other).ok()) {
        let level = levels.get_mut(level_number(&rows[0])?).ok_or_else(unknown_level)?;
        let (first, last) = (read_order(&rows[0])?, read_order(&rows[rows.len() - 1])?);
        *level = (rows.len(), Some(last));
        most_urgent = Some(most_urgent.map_or(first, |other: Order| other.min(first)));
    }
    Ok((levels, most_urgent))
}

fn level_of<'a>(row: &Row, request: &'a Request) -> Result<&'a LevelRequest> {
    request.levels.get(level_number(row)?).ok_or_else(unknown_level)
}

/// Levels are numbered from 1.
fn level_number(row: &Row) -> Result<usize> {
    let number: i32 = row.try_get(COLUMNS).map_err(|error| Error::database("reading claimed jobs", error))?;
    usize::try_from(number - 1).map_err(|_| unknown_level())
}

fn unknown_level() -> Error {
    Error::unavailable("reading claimed jobs: unexpected response from the database")
}

fn read_order(row: &Row) -> Result<Order> {
    let failed = |error| Error::database("reading claimed jobs", error);
    Ok((row.try_get(2).map_err(failed)?, row.try_get(3).map_err(failed)?, row.try_get(0).map_err(failed)?))
}

/// Reads the payload of a job that this worker has claimed. None: the job is gone.
pub(crate) async fn read_payload(shared: &Shared, client: &Object, id: i64) -> Result<Option<Box<str>>> {
    let failed = |error| Error::database("reading a payload", error);
    let rows = shared.query(client, &shared.sql.read_payload, &[(&id, Type::INT8)]).await.map_err(failed)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let JsonText(payload) = row.try_get(0).map_err(failed)?;
    Ok(Some(payload))
}

fn read_claimed(row: &Row) -> Result<Job, tokio_postgres::Error> {
    let task_identifier: &str = row.try_get(COLUMNS)?;
    Ok(Job {
        job_queue_id: row.try_get(COLUMNS + 1)?,
        queue_name: row.try_get(COLUMNS + 2)?,
        locked_at: row.try_get(COLUMNS + 3)?,
        locked_by: row.try_get(COLUMNS + 4)?,
        ..read_job(row, task_identifier.into())?
    })
}

/// The columns that durable and held claims have in common, and begin with: `read_job` reads them. By their place,
/// since looking for a name costs as much as all the rest of reading a column.
const COLUMNS: usize = 13;

fn read_job(row: &Row, task_identifier: Arc<str>) -> Result<Job, tokio_postgres::Error> {
    let payload: Option<JsonText> = row.try_get(1)?;
    let (StoredTime(created_at), StoredTime(updated_at)) = (row.try_get(7)?, row.try_get(8)?);
    let flags: Option<FlagsColumn> = row.try_get(11)?;
    Ok(Job {
        id: row.try_get(0)?,
        task_identifier,
        task_id: row.try_get(12)?,
        job_queue_id: None,
        queue_name: None,
        payload: payload.map(|JsonText(payload)| payload).unwrap_or_default(),
        priority: row.try_get(2)?,
        run_at: row.try_get(3)?,
        attempts: row.try_get(4)?,
        max_attempts: row.try_get(5)?,
        last_error: row.try_get(6)?,
        created_at,
        updated_at,
        key: row.try_get(9)?,
        locked_at: None,
        locked_by: None,
        revision: row.try_get(10)?,
        flags: flags.and_then(|FlagsColumn(flags)| flags),
        place: Place::default(),
    })
}

/// JSON as the server stores it. It has checked it, so we do not; the task that decodes it does.
struct JsonText(Box<str>);

impl<'a> FromSql<'a> for JsonText {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<JsonText, Box<dyn std::error::Error + Sync + Send>> {
        Ok(JsonText(std::str::from_utf8(raw)?.into()))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSON
    }
}

/// Flags, if they are what the functions write. Whatever somebody else put there keeps no job from being claimed.
struct FlagsColumn(Option<Flags>);

impl<'a> FromSql<'a> for FlagsColumn {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<FlagsColumn, Box<dyn std::error::Error + Sync + Send>> {
        // The first byte is the version of the format.
        Ok(FlagsColumn(raw.get(1..).and_then(|json| serde_json::from_slice(json).ok())))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSONB
    }
}
