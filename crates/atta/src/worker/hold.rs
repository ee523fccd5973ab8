//! Held claims: jobs that a transaction keeps by row locks alone, from their pick to what became of them.
//!
//! A lane opens a transaction and picks; nobody else can take those jobs, Node's workers neither, and nothing was
//! written. They run. When all have ended, or the budget of the transaction is over, the lane settles: it deletes the
//! completed, writes down the failed, turns those that still run into durable claims, and commits. What was picked
//! and not begun is free again by that, at no cost. A worker that dies frees everything at once.
//!
//! If the connection is lost meanwhile, so are the row locks. Then the lane claims over another connection whatever
//! nobody has touched since, durably, and releases that in the usual way. So a job runs a second time only if its
//! connection was lost while it was held and another worker won the race for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use deadpool_postgres::Object;
use futures_util::future::{join, join3};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::Shared;
use super::claim::{self, Level};
use super::lanes::{Left, Times, read_times};
use super::promote::Unsettled;
use super::release::{self, Failures};
use super::run::{Finished, Outcome};
use super::scan::{Gap, Kind, LevelKey, Request, Seen};
use super::unreadable::fail_unreadable_jobs;
use crate::db::pool;
use crate::job::Place;
use crate::{Error, Job, Result};

/// The server ends a transaction of ours that hears nothing from us for so long, because our process is stopped, say.
pub(crate) const LONGEST_SILENCE: Duration = Duration::from_secs(10);

const BEGIN: &str =
    "begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s'";

/// On connections whose sessions are not ours: behind a pooler, or of a pool that was given. There each pick is planned
/// anew, by what is known of the table, which may be from when it was empty.
const BEGIN_BY_INDEXES: &str = "begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s'; \
     set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off";

/// Reading fewer jobs than this takes no time that the next pick could use.
pub(crate) const MANY: usize = 100;

/// What a lane reports while it is away.
pub(crate) enum News {
    /// Its pick was answered: the next one can be sent at once, while the jobs of this one are being read.
    Seen {
        lane: u64,
        request: Request,
        seen: Seen,
    },
    Picked(Picked),
    /// The durable claim that was sent at this time was answered: the next ones can be sent.
    Answered {
        sent_at: Instant,
        epoch: u64,
        /// What it took, if that was of one level.
        level: Option<Level>,
    },
}

/// Jobs that a lane holds, and where it waits for what becomes of them.
pub(crate) struct Picked {
    pub(crate) lane: u64,
    /// In the order in which they are to run.
    pub(crate) jobs: Vec<Arc<Job>>,
    /// Held, but there was no room for their payloads. They become free with the others that are not begun.
    pub(crate) without_room: Vec<Arc<Job>>,
    pub(crate) settle: oneshot::Sender<Settlement>,
}

/// What became of held jobs; those in neither list were not begun.
#[derive(Default)]
pub(crate) struct Settlement {
    pub(crate) finished: Vec<Finished>,
    pub(crate) running: Vec<Arc<Job>>,
    /// Jobs that another batch of this worker has and has lost. They become durable claims, which that batch takes over.
    pub(crate) known: Vec<i64>,
}

/// What a lane should pick.
pub(crate) struct Wanted {
    pub(crate) lane: u64,
    pub(crate) request: Request,
    /// For how many bytes of payloads there is room. One job is always picked.
    pub(crate) bytes: usize,
}

/// Picks, waits for what becomes of it, and settles. Returns how many jobs it picked. What could not be settled is put into
/// `left`, to be claimed anew.
pub(crate) async fn hold(
    shared: &Arc<Shared>,
    wanted: Wanted,
    news: &mpsc::Sender<News>,
    left: &mut Left,
) -> Result<usize> {
    let client = pool::get(&shared.lane_pool, "claiming jobs").await?;
    let lane = wanted.lane;
    let (jobs, without_room) = match pick(shared, &client, wanted, news).await {
        Ok(picked) => picked,
        Err(error) => {
            discard(client);
            fail_unreadable_jobs(shared, &error).await;
            return Err(error);
        }
    };
    let count = jobs.len();
    if jobs.is_empty() {
        if client.batch_execute("commit").await.is_err() {
            discard(client);
        }
        return Ok(0);
    }
    let (settle, settlement) = oneshot::channel();
    let sent = news.send(News::Picked(Picked { lane, jobs, without_room, settle })).await;
    // Both ends are in one loop; if it is gone, so are the jobs.
    let (Ok(()), Ok(settlement)) = (sent, settlement.await) else {
        discard(client);
        return Ok(count);
    };
    match write(shared, &client, &settlement).await {
        Ok(locked_at) => {
            left.locked_at = locked_at;
            release::tell_all(shared, settlement.finished);
        }
        Err((error, may_be_committed)) => {
            tracing::warn!(%error, "could not commit a batch of held jobs; claiming them again");
            discard(client);
            left.unsettled = Some(Unsettled::new(settlement, may_be_committed));
        }
    }
    Ok(count)
}

/// Closes a connection whose transaction is in no known state; the pool must not hand it out again.
fn discard(client: Object) {
    drop(Object::take(client));
}

/// Picks, reports at once what was seen, and then reads the jobs, which takes a while.
async fn pick(
    shared: &Shared,
    client: &Object,
    wanted: Wanted,
    news: &mpsc::Sender<News>,
) -> Result<(Vec<Arc<Job>>, Vec<Arc<Job>>)> {
    let Wanted { lane, request, bytes } = wanted;
    let (rows, seen) = query(shared, client, &request).await?;
    let copy = request.clone();
    // If the loop is gone, so are the jobs.
    let _ = news.send(News::Seen { lane, request: copy, seen }).await;
    if rows.len() >= MANY {
        tokio::task::yield_now().await;
    }
    read(shared, client, &rows, &request, bytes).await
}

/// One round trip: all statements are sent before the first is answered, in this order.
async fn query(shared: &Shared, client: &Object, request: &Request) -> Result<(Vec<Row>, Seen)> {
    let begin = if shared.use_prepared { BEGIN } else { BEGIN_BY_INDEXES };
    let now = shared.local_now();
    let (gaps, levels) = (Gaps::of(&request.gaps), Levels::of(request));
    let gaps = gaps.parameters(&now);
    let (mut picking, sql) = match (request.kind, request.levels.len()) {
        (Kind::Plain, 1) => (levels.first_parameters(&now), &shared.sql.pick_level),
        (Kind::Plain, _) => (levels.parameters(&now), &shared.sql.pick_jobs),
        (Kind::Flagged, _) => (levels.parameters(&now), &shared.sql.pick_flagged_jobs),
    };
    let forbidden = match request.kind {
        Kind::Plain => Vec::new(),
        Kind::Flagged => shared.forbidden_flags.now().await?,
    };
    if request.kind == Kind::Flagged {
        picking.push((&forbidden, Type::TEXT_ARRAY));
    }
    shared.prepare(client, sql, &picking).await.map_err(failed)?;
    shared.prepare(client, &shared.sql.find_levels, &gaps).await.map_err(failed)?;
    let start = Instant::now();
    let find = async {
        if request.gaps.is_empty() {
            Ok(Vec::new())
        } else {
            shared.query(client, &shared.sql.find_levels, &gaps).await
        }
    };
    let pick = async {
        if request.levels.is_empty() { Ok(Vec::new()) } else { shared.query(client, sql, &picking).await }
    };
    let (begun, found, rows) = join3(client.batch_execute(begin), find, pick).await;
    begun.map_err(failed)?;
    let (found, rows) = (found.map_err(failed)?, rows.map_err(failed)?);
    let (now, found) = read_found(&found)?;
    let (levels, first) = claim::read_levels(&rows, request)?;
    Ok((rows, Seen { levels, first, found, now, took: start.elapsed() }))
}

/// Gaps as columns, an entry each.
struct Gaps<'a> {
    tasks: Vec<&'a str>,
    are_flagged: Vec<bool>,
    after: Vec<i32>,
    before: Vec<i32>,
}

impl<'a> Gaps<'a> {
    fn of(gaps: &'a [Gap]) -> Gaps<'a> {
        Gaps {
            tasks: gaps.iter().map(|gap| &*gap.task_identifier).collect(),
            are_flagged: gaps.iter().map(|gap| gap.kind == Kind::Flagged).collect(),
            after: gaps.iter().map(|gap| gap.after).collect(),
            before: gaps.iter().map(|gap| gap.before).collect(),
        }
    }

    fn parameters<'b>(&'b self, now: &'b Option<DateTime<Utc>>) -> Vec<(&'b (dyn ToSql + Sync), Type)> {
        vec![
            (&self.tasks, Type::TEXT_ARRAY),
            (&self.are_flagged, Type::BOOL_ARRAY),
            (&self.after, Type::INT4_ARRAY),
            (&self.before, Type::INT4_ARRAY),
            (now, Type::TIMESTAMPTZ),
        ]
    }
}

/// Levels as columns, an entry each, and what holds for all of them.
struct Levels<'a> {
    tasks: Vec<&'a str>,
    priorities: Vec<i16>,
    after_times: Vec<Option<DateTime<Utc>>>,
    after_ids: Vec<i64>,
    limits: Vec<i64>,
    count: i64,
    before: (i16, Option<DateTime<Utc>>, i64),
    /// The same for the first level: less urgent levels are not limited by it.
    first_before: (Option<DateTime<Utc>>, i64),
}

impl<'a> Levels<'a> {
    fn of(request: &'a Request) -> Levels<'a> {
        let levels = || request.levels.iter();
        let before = claim::bound(request.before);
        let is_limited = levels().next().is_some_and(|level| level.key.priority == before.0);
        Levels {
            tasks: levels().map(|level| &*level.key.task_identifier).collect(),
            priorities: levels().map(|level| level.key.priority).collect(),
            after_times: levels().map(|level| level.after.run_at).collect(),
            after_ids: levels().map(|level| level.after.id).collect(),
            limits: levels().map(|level| i64::try_from(level.limit).unwrap_or(i64::MAX)).collect(),
            count: i64::try_from(request.count).unwrap_or(i64::MAX),
            before,
            first_before: if is_limited { (before.1, before.2) } else { (None, i64::MAX) },
        }
    }

    fn parameters<'b>(&'b self, now: &'b Option<DateTime<Utc>>) -> Vec<(&'b (dyn ToSql + Sync), Type)> {
        vec![
            (&self.tasks, Type::TEXT_ARRAY),
            (&self.priorities, Type::INT2_ARRAY),
            (&self.after_times, Type::TIMESTAMPTZ_ARRAY),
            (&self.after_ids, Type::INT8_ARRAY),
            (&self.limits, Type::INT8_ARRAY),
            (now, Type::TIMESTAMPTZ),
            (&self.count, Type::INT8),
            (&self.before.0, Type::INT2),
            (&self.before.1, Type::TIMESTAMPTZ),
            (&self.before.2, Type::INT8),
        ]
    }

    /// For a pick of one level.
    fn first_parameters<'b>(&'b self, now: &'b Option<DateTime<Utc>>) -> Vec<(&'b (dyn ToSql + Sync), Type)> {
        vec![
            (&self.tasks[0], Type::TEXT),
            (&self.priorities[0], Type::INT2),
            (&self.after_times[0], Type::TIMESTAMPTZ),
            (&self.after_ids[0], Type::INT8),
            (now, Type::TIMESTAMPTZ),
            (&self.count, Type::INT8),
            (&self.first_before.0, Type::TIMESTAMPTZ),
            (&self.first_before.1, Type::INT8),
        ]
    }
}

/// The database's time, and the levels that were found.
fn read_found(rows: &[Row]) -> Result<(Option<DateTime<Utc>>, Vec<LevelKey>)> {
    let (mut now, mut found) = (None, Vec::new());
    for row in rows {
        let task: Option<&str> = row.try_get(1).map_err(failed)?;
        let Some(task) = task else {
            now = row.try_get(0).map_err(failed)?;
            continue;
        };
        let is_flagged: bool = row.try_get(2).map_err(failed)?;
        let kind = if is_flagged { Kind::Flagged } else { Kind::Plain };
        let priority = row.try_get(3).map_err(failed)?;
        found.push(LevelKey { kind, priority, task_identifier: task.into() });
    }
    Ok((now, found))
}

/// Reads the picked jobs, in the order in which they are to run. Large payloads are read one by one, until the bytes are
/// used up; the jobs from there on are returned apart, without a payload.
async fn read(
    shared: &Shared,
    client: &Object,
    rows: &[Row],
    request: &Request,
    bytes: usize,
) -> Result<(Vec<Arc<Job>>, Vec<Arc<Job>>)> {
    let mut jobs = claim::decode(rows, |row| claim::read_picked(row, request).map(Arc::new)).await?;
    let is_sorted = |one: &Arc<Job>, other: &Arc<Job>| one.order() <= other.order();
    if request.levels.len() > 1 && !jobs.is_sorted_by(is_sorted) {
        jobs.sort_unstable_by_key(|job| job.order());
    }
    let mut used = 0;
    let mut end = jobs.len();
    for (index, job) in jobs.iter_mut().enumerate() {
        if used >= bytes && index > 0 {
            end = index;
            break;
        }
        if job.lacks_payload() {
            let payload = claim::read_payload(shared, client, job.id).await?;
            match (payload, Arc::get_mut(job)) {
                (Some(payload), Some(job)) => job.payload = payload,
                // Nobody else has the job yet, so it is the payload that is missing.
                _ => {
                    return Err(Error::unavailable(
                        "reading a payload: the row of a held job no longer exists",
                    ));
                }
            }
        }
        used += job.payload.len();
    }
    let without_room = jobs.split_off(end);
    Ok((jobs, without_room))
}

fn failed(error: tokio_postgres::Error) -> Error {
    Error::database("claiming jobs", error)
}

/// Writes the settlement and commits. Returns when the jobs that still run were claimed durably. On failure also says
/// whether the commit may have come through.
async fn write(shared: &Shared, client: &Object, settlement: &Settlement) -> Result<Times, (Error, bool)> {
    let failed = |error| (Error::database("committing a batch of held jobs", error), false);
    let ids_of = |is: fn(&Outcome) -> bool| -> Vec<i64> {
        settlement.finished.iter().filter(|one| is(&one.outcome)).map(|one| one.job.id).collect()
    };
    let failures = Failures::of(&settlement.finished);
    if !failures.ids.is_empty() {
        shared.query(client, &shared.sql.fail_held, &failures.parameters()).await.map_err(failed)?;
    }
    let running = settlement.running.iter().map(|job| job.id);
    let running: Vec<i64> = running.chain(settlement.known.iter().copied()).collect();
    let mut locked_at = Times::new();
    if !running.is_empty() {
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&&*shared.worker_id, Type::TEXT), (&running, Type::INT8_ARRAY)];
        let rows = shared.query(client, &shared.sql.promote_held, &parameters).await.map_err(failed)?;
        locked_at = read_times(&rows);
    }
    let interrupted = ids_of(|outcome| matches!(outcome, Outcome::Interrupted));
    if !interrupted.is_empty() && !shared.interrupted_job_retry_delay.is_zero() {
        let delay = shared.interrupted_job_retry_delay.as_secs_f64();
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&interrupted, Type::INT8_ARRAY), (&delay, Type::FLOAT8)];
        shared.query(client, &shared.sql.postpone_held, &parameters).await.map_err(failed)?;
    }
    let completed = settlement.finished.iter().filter(|one| matches!(one.outcome, Outcome::Completed));
    let completed: Vec<Place> = completed.map(|one| one.job.place).collect();
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&completed, Type::TID_ARRAY)];
    shared.prepare(client, &shared.sql.complete_held, &parameters).await.map_err(failed)?;
    let (deleted, committed) =
        join(shared.execute(client, &shared.sql.complete_held, &parameters), client.batch_execute("commit"))
            .await;
    let deleted = deleted.map_err(failed)?;
    committed.map_err(|error| (Error::database("committing a batch of held jobs", error), true))?;
    if deleted == completed.len() as u64 {
        return Ok(locked_at);
    }
    // Cannot be, while we hold the rows. If it is, what is left of them is found by id.
    Err((Error::unavailable("committing a batch of held jobs: some rows were moved"), true))
}

/// How many jobs to pick: as many as begin and end within the budget. Grows while they do, shrinks to what did.
#[derive(Debug)]
pub(crate) struct Size {
    least: usize,
    now: usize,
}

/// Twice as many as a thousand are a little faster; more were not tried, as one process should not sit on them.
const MOST: usize = 2000;

impl Size {
    /// Work that nobody knows yet is taken as it can be begun at once.
    pub(crate) fn new(slots: usize) -> Size {
        Size { least: slots.clamp(1, MOST), now: slots.clamp(1, MOST) }
    }

    pub(crate) fn get(&self) -> usize {
        self.now
    }

    /// A batch of `picked` jobs, of which `finished` ended, took this part of its budget.
    pub(crate) fn learn(&mut self, picked: usize, finished: usize, part_of_budget: f64) {
        if finished < picked {
            self.now = finished.clamp(self.least, MOST);
        } else if part_of_budget < 0.5 && picked >= self.now {
            // Far from the budget, so far that even eight times as many would stay well within.
            let factor = if part_of_budget < 0.05 { 8 } else { 2 };
            self.now = (self.now * factor).min(MOST);
        } else if part_of_budget > 0.8 {
            self.now = (self.now * 3 / 4).max(self.least);
        }
    }
}

/// How long the jobs of each task take, so that slow ones are claimed durably from the start.
#[derive(Debug)]
pub(crate) struct Durations {
    /// A task whose average is above this is slow.
    limit: f64,
    averages: HashMap<Arc<str>, f64>,
}

impl Durations {
    pub(crate) fn new(budget: Duration) -> Durations {
        Durations { limit: budget.as_secs_f64() / 2.0, averages: HashMap::new() }
    }

    /// Returns whether the task has become slow by it, or quick.
    pub(crate) fn learn(&mut self, task_identifier: &str, took: Duration) -> bool {
        let took = took.as_secs_f64();
        let Some(average) = self.averages.get_mut(task_identifier) else {
            self.averages.insert(task_identifier.into(), took);
            return took > self.limit;
        };
        let was_slow = *average > self.limit;
        *average += (took - *average) / 8.0;
        was_slow != (*average > self.limit)
    }

    pub(crate) fn is_slow(&self, task_identifier: &str) -> bool {
        self.averages.get(task_identifier).is_some_and(|average| *average > self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_while_all_is_done_early_and_shrinks_to_what_is_done_in_time() {
        let mut size = Size::new(4);
        for expected in [8, 16, 32, 64, 128, 256, 512, 1024, 2000, 2000] {
            size.learn(size.get(), size.get(), 0.1);
            assert_eq!(size.get(), expected);
        }
        size.learn(2000, 300, 1.0);
        assert_eq!(size.get(), 300);
        size.learn(300, 0, 1.0);
        assert_eq!(size.get(), 4);
        // A batch that was not full says nothing about a larger one.
        size.learn(2, 2, 0.0);
        assert_eq!(size.get(), 4);
    }

    #[test]
    fn a_task_is_slow_by_its_average() {
        let mut durations = Durations::new(Duration::from_millis(50));
        assert!(!durations.is_slow("t"));
        let changes = (0..20).filter(|_| durations.learn("t", Duration::from_millis(100))).count();
        assert!(durations.is_slow("t") && changes == 1);
        let changes = (0..20).filter(|_| durations.learn("t", Duration::from_millis(1))).count();
        assert!(!durations.is_slow("t") && changes == 1);
    }
}
