//! The loop of cron: registers the items, backfills missed ticks, then schedules minute after minute.
//!
//! The time is the database's (`clock.rs`): nothing is scheduled or skipped because this machine's clock is wrong.
//!
//! After any failure of the database, the loop reports it, waits, and starts over with the registration. It remembers
//! the next minute to schedule, so that a short outage loses no tick, and a long one no tick that an item's `fill`
//! covers. A stop waits for the statement that is running.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use deadpool_postgres::Pool;
use tokio_util::sync::CancellationToken;

use super::clock::CronClock;
use super::moment::Minute;
use super::plan::{self, Known, Missed, Step};
use super::store::{Scheduled, Store};
use super::{Cron, CronItems};
use crate::{Error, Result, Schema};

/// How many minutes are checked at a time for missed ticks: this takes some milliseconds with thousands of items.
const MINUTES_AT_A_TIME: usize = 500;

/// The events of the schedule.
#[derive(Debug)]
#[non_exhaustive]
pub enum CronEvent {
    /// The items are registered, and missed ticks are about to be backfilled.
    Started {
        /// The time by the clock that cron follows: the database's.
        at: DateTime<Utc>,
        /// How many items there are.
        items: usize,
    },
    /// Jobs were added for a minute that had been missed.
    Backfilled {
        /// The minute.
        timestamp: DateTime<Utc>,
        /// The items whose jobs this worker added; other workers may have added more.
        identifiers: Vec<String>,
    },
    /// Jobs were added for a minute that has just become due.
    Scheduled {
        /// The minute.
        timestamp: DateTime<Utc>,
        /// The items whose jobs this worker added; other workers may have added more.
        identifiers: Vec<String>,
    },
    /// The clock has jumped, or the machine has slept: the schedule goes on from the present.
    TimeJumped {
        /// The minute that was next.
        expected: DateTime<Utc>,
        /// The time that the clock shows.
        now: DateTime<Utc>,
    },
    /// This machine's clock differs from the database's by more than a minute. Cron follows the database's.
    ClockDiffers {
        /// How far this machine's clock is ahead; negative if it is behind.
        ahead: TimeDelta,
    },
    /// In the database, the last minute of an item is in the future: a worker whose clock is wrong has scheduled it. No
    /// job is added for the item until then.
    ScheduledAhead {
        /// The identifier of the item.
        identifier: String,
        /// The minute.
        last_execution: DateTime<Utc>,
        /// The time by the clock that cron follows.
        now: DateTime<Utc>,
    },
    /// The database refused the job of one item; the item is skipped for this minute.
    Refused {
        /// The minute.
        timestamp: DateTime<Utc>,
        /// The identifier of the item.
        identifier: String,
        /// Why.
        error: Error,
    },
    /// The job of one item can't be added yet, because another transaction keeps the job of its key, or its queue, locked.
    /// The other items are not affected. The job is added when that transaction has ended.
    Blocked {
        /// The minute.
        timestamp: DateTime<Utc>,
        /// The identifier of the item.
        identifier: String,
    },
    /// A statement failed; the schedule tries again after a pause.
    Failed {
        /// Why.
        error: Error,
        /// The length of the pause.
        pause: Duration,
    },
}

impl CronEvent {
    fn log(&self) {
        match self {
            CronEvent::Started { items, .. } => tracing::debug!(items, "cron started"),
            CronEvent::Backfilled { timestamp, identifiers } => {
                tracing::info!(%timestamp, ?identifiers, "cron backfilled jobs of a missed minute");
            }
            CronEvent::Scheduled { timestamp, identifiers } => {
                tracing::debug!(%timestamp, ?identifiers, "cron added jobs")
            }
            CronEvent::TimeJumped { expected, now } => {
                tracing::warn!(%expected, %now, "the clock has jumped; cron continues from the current time");
            }
            CronEvent::ClockDiffers { ahead } => tracing::warn!(
                seconds_ahead = ahead.num_seconds(),
                "this machine's clock differs from the database's; cron uses the database's clock"
            ),
            CronEvent::ScheduledAhead { identifier, last_execution, now } => tracing::warn!(
                identifier,
                %last_execution,
                %now,
                "a cron item was scheduled ahead of time, by a worker whose clock was wrong: no job of it is added until then; \
                 to change that, set last_execution of the item in _private_known_crontabs to the present"
            ),
            CronEvent::Refused { timestamp, identifier, error } => {
                tracing::error!(%timestamp, identifier, %error, "the database rejected the job of a cron item");
            }
            CronEvent::Blocked { timestamp, identifier } => tracing::warn!(
                %timestamp,
                identifier,
                "the job of a cron item can't be added yet: another transaction has locked the job of its key, or its queue"
            ),
            CronEvent::Failed { error, pause } => {
                tracing::warn!(%error, pause_ms = pause.as_millis() as u64, "cron failed; retrying")
            }
        }
    }
}

/// Runs until `stop` is cancelled. Never panics and never gives up. It should not be dropped while it runs: that could
/// interrupt a statement. This does no harm, but the outcome of the statement would be unknown.
pub(crate) async fn run_schedule(
    pool: Pool,
    schema: Schema,
    items: CronItems,
    clock: CronClock,
    stop: CancellationToken,
    on_event: impl Fn(CronEvent) + Send + Sync,
) {
    let store = Store::new(pool, &schema, stop.clone());
    let mut schedule = Schedule {
        store,
        items,
        clock,
        stop,
        on_event,
        next: None,
        since: HashMap::new(),
        blocked: VecDeque::new(),
        rested: Instant::now(),
        failures: 0,
    };
    while let Err(error) = schedule.follow().await {
        if schedule.stop.is_cancelled() {
            return;
        }
        let pause = plan::back_off(schedule.failures, fastrand::f64());
        schedule.failures = schedule.failures.saturating_add(1);
        schedule.report(CronEvent::Failed { error, pause });
        schedule.rest(pause).await;
    }
}

/// How often the next blocked tick is tried again.
const BLOCKED_PAUSE: Duration = Duration::from_secs(1);

/// More ticks than this are not kept. The oldest is dropped.
const MOST_BLOCKED: usize = 1_000;

/// A tick whose job can't be added yet.
struct BlockedTick {
    minute: Minute,
    item: Arc<Cron>,
    backfilled: bool,
}

struct Schedule<OnEvent> {
    store: Store,
    items: CronItems,
    clock: CronClock,
    stop: CancellationToken,
    on_event: OnEvent,
    /// The next minute to schedule; none before the first start.
    next: Option<Minute>,
    /// The minute from which on this process has had each of its items. All of them are registered.
    since: HashMap<String, Minute>,
    /// Ticks whose jobs can't be added yet, since another transaction blocks them. The ticks of one item are in order.
    blocked: VecDeque<BlockedTick>,
    /// When there was last nothing to do. By a timer of this machine, which stands still while the machine sleeps.
    rested: Instant,
    /// How many failures in a row.
    failures: u32,
}

impl<OnEvent: Fn(CronEvent)> Schedule<OnEvent> {
    /// Returns `Ok` only when it was stopped.
    async fn follow(&mut self) -> Result<()> {
        let mut next = self.start().await?;
        while !self.stop.is_cancelled() {
            let mut now = self.clock.now();
            let mut step = plan::step(now, next, self.rested.elapsed());
            // This machine's clock may have been set since the database's time was read. Waiting a little longer does
            // no harm.
            if !matches!(step, Step::Wait(_)) || self.clock.is_stale() {
                now = self.ask_time().await?;
                step = plan::step(now, next, self.rested.elapsed());
            }
            match step {
                Step::Wait(pause) if self.blocked.is_empty() => self.rest(pause).await,
                Step::Wait(pause) => {
                    self.rest(pause.min(BLOCKED_PAUSE)).await;
                    self.retry_blocked().await?;
                }
                Step::Schedule(minute) => {
                    self.tick(minute, now).await?;
                    next = minute.next();
                    self.next = Some(next);
                    self.failures = 0;
                }
                Step::Resume => {
                    self.report(CronEvent::TimeJumped { expected: next.begin(), now });
                    next = self.start().await?;
                }
            }
        }
        Ok(())
    }

    /// Registers the items and backfills missed ticks. Returns the next minute to schedule.
    async fn start(&mut self) -> Result<Minute> {
        let start = self.ask_time().await?;
        let items = self.items.snapshot();
        let known = self.register(&items, start).await?;
        self.note(&items, start);
        self.report(CronEvent::Started { at: start, items: items.len() });
        for (identifier, last_execution) in plan::scheduled_ahead(&known, start) {
            self.report(CronEvent::ScheduledAhead { identifier, last_execution, now: start });
        }

        let unbroken = plan::unbroken(start, self.next);
        self.make_up(Missed::new(&items, &known, start, unbroken, &self.since)).await?;
        let next = Minute::not_before(start);
        self.next = Some(next);
        Ok(next)
    }

    /// The time by the clock that cron follows. Queries the database, if that is the clock.
    async fn ask_time(&mut self) -> Result<DateTime<Utc>> {
        if let Some(difference) = self.clock.difference() {
            let (database, local) = self.store.read_clock().await?;
            if let Some(ahead) = difference.note(database, local) {
                self.report(CronEvent::ClockDiffers { ahead });
            }
        }
        Ok(self.clock.now())
    }

    /// Schedules one minute that has become due. Items that were added meanwhile are first registered and backfilled,
    /// as at a start.
    async fn tick(&mut self, minute: Minute, now: DateTime<Utc>) -> Result<()> {
        let items = self.items.snapshot();
        let is_new = |item: &&Arc<Cron>| !self.since.contains_key(item.identifier());
        let new: Vec<Arc<Cron>> = items.iter().filter(is_new).cloned().collect();
        if !new.is_empty() {
            let known = self.register(&new, now).await?;
            self.make_up(Missed::new(&new, &known, minute.begin(), None, &self.since)).await?;
        }
        self.note(&items, now);
        let is_ours =
            |item: &&Arc<Cron>| self.since.get(item.identifier()).is_some_and(|since| *since <= minute);
        let due = plan::due(items.iter().filter(is_ours), minute);
        self.schedule(minute, &due, false).await
    }

    async fn register(&self, items: &[Arc<Cron>], now: DateTime<Utc>) -> Result<HashMap<String, Known>> {
        let identifiers = items.iter().map(|item| item.identifier()).collect();
        self.store.register_cron_items(identifiers, now).await
    }

    /// Minute after minute, starting with the oldest: the database accepts no minute before the last one of an item.
    async fn make_up(&mut self, mut missed: Missed) -> Result<()> {
        while !self.stop.is_cancelled()
            && let Some((minute, due)) = missed.next(MINUTES_AT_A_TIME)
        {
            self.schedule(minute, &due, true).await?;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Remembers since when each item is in the list, and forgets removed items.
    fn note(&mut self, items: &[Arc<Cron>], now: DateTime<Utc>) {
        let mut before = std::mem::take(&mut self.since);
        let since = |item: &Arc<Cron>| {
            let entry = before.remove_entry(item.identifier());
            entry.unwrap_or_else(|| (item.identifier().to_owned(), Minute::of(now)))
        };
        self.since = items.iter().map(since).collect();
    }

    async fn schedule(&mut self, minute: Minute, due: &[Arc<Cron>], backfilled: bool) -> Result<()> {
        // The database accepts no minute of an item before its last one, so its ticks are added in their order.
        let is_blocked =
            |item: &&Arc<Cron>| self.blocked.iter().any(|tick| tick.item.identifier() == item.identifier());
        let (blocked, due): (Vec<&Arc<Cron>>, Vec<&Arc<Cron>>) = due.iter().partition(is_blocked);
        let (blocked, due): (Vec<_>, Vec<_>) =
            (blocked.into_iter().cloned().collect(), due.into_iter().cloned().collect());
        self.keep_blocked(minute, blocked, backfilled);
        if due.is_empty() {
            return Ok(());
        }
        let scheduled = self.store.schedule(minute, &due, backfilled).await?;
        let blocked =
            due.into_iter().filter(|item| scheduled.blocked.iter().any(|it| it == item.identifier()));
        let blocked: Vec<Arc<Cron>> = blocked.collect();
        for item in &blocked {
            let identifier = item.identifier().to_owned();
            self.report(CronEvent::Blocked { timestamp: minute.begin(), identifier });
        }
        self.keep_blocked(minute, blocked, backfilled);
        self.report_scheduled(minute, scheduled, backfilled);
        Ok(())
    }

    fn keep_blocked(&mut self, minute: Minute, items: Vec<Arc<Cron>>, backfilled: bool) {
        self.blocked.extend(items.into_iter().map(|item| BlockedTick { minute, item, backfilled }));
        let too_many = self.blocked.len().saturating_sub(MOST_BLOCKED);
        self.blocked.drain(..too_many);
    }

    /// Tries the ticks that were blocked, from the first on, until one is still blocked. That one goes to the end of the
    /// list together with the later ticks of its item, so that it does not delay the others.
    async fn retry_blocked(&mut self) -> Result<()> {
        while !self.stop.is_cancelled()
            && let Some(tick) = self.blocked.front()
        {
            let (minute, item, backfilled) = (tick.minute, tick.item.clone(), tick.backfilled);
            let scheduled = self.store.schedule(minute, std::slice::from_ref(&item), backfilled).await?;
            if !scheduled.blocked.is_empty() {
                let (same, others): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.blocked)
                    .into_iter()
                    .partition(|tick| tick.item.identifier() == item.identifier());
                self.blocked = others;
                self.blocked.extend(same);
                return Ok(());
            }
            self.blocked.pop_front();
            self.report_scheduled(minute, scheduled, backfilled);
        }
        Ok(())
    }

    fn report_scheduled(&self, minute: Minute, scheduled: Scheduled, backfilled: bool) {
        let timestamp = minute.begin();
        for (identifier, error) in scheduled.refused {
            self.report(CronEvent::Refused { timestamp, identifier, error });
        }
        let identifiers = scheduled.identifiers;
        match (identifiers.is_empty(), backfilled) {
            (true, _) => {}
            (false, true) => self.report(CronEvent::Backfilled { timestamp, identifiers }),
            (false, false) => self.report(CronEvent::Scheduled { timestamp, identifiers }),
        }
    }

    fn report(&self, event: CronEvent) {
        event.log();
        (self.on_event)(event);
    }

    async fn rest(&mut self, pause: Duration) {
        // In both cases the caller checks the token and the clock again.
        let _ = self.stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        self.rested = Instant::now();
    }
}
