//! Cron in a simulated worker. The items and the decisions are the real ones (`cron/plan.rs`). The loop around them,
//! `cron/schedule.rs`, is imitated by [`Schedule`].

mod ticks;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::cron::moment::Minute;
use crate::cron::plan::{self, Known, Missed};
pub(super) use ticks::Ticks;

use crate::{Cron, CrontabFill};

/// See `cron/schedule.rs` and `cron/clock.rs`.
const MINUTES_AT_A_TIME: usize = 500;
const LIFETIME: Duration = Duration::from_secs(70);

/// Items with and without backfill.
const WITHOUT_FILL: [(&str, &str); 2] = [("each", "* * * * *"), ("second", "*/2 * * * *")];
const WITH_FILL: [(&str, &str); 2] = [("each_with_fill", "* * * * *"), ("third_with_fill", "*/3 * * * *")];

/// The items of all workers.
fn items() -> Vec<Arc<Cron>> {
    let item = |(identifier, pattern)| Cron::task(identifier, pattern).expect("a valid pattern");
    let filled = WITH_FILL.into_iter().map(|it| item(it).fill(CrontabFill::hours(12)));
    WITHOUT_FILL.into_iter().map(item).chain(filled).map(Arc::new).collect()
}

fn has_fill(item: &Cron) -> bool {
    WITH_FILL.iter().any(|(identifier, _)| *identifier == item.identifier())
}

/// A statement of cron.
#[derive(Clone, Debug)]
pub(super) enum CronStatement {
    ReadClock,
    Register { identifiers: Vec<String>, now: DateTime<Utc> },
    Schedule { minute: DateTime<Utc>, identifiers: Vec<String> },
}

/// What comes back.
pub(super) enum CronAnswer {
    Clock(DateTime<Utc>),
    /// Since when each item is known, and its last minute.
    Registered(Vec<(String, DateTime<Utc>, Option<DateTime<Utc>>)>),
    Scheduled,
}

/// What the schedule does next.
enum Act {
    Send(CronStatement),
    Rest(Duration),
}

/// What the schedule waits for.
enum Stage {
    /// The database's time, before the items are registered.
    Starting,
    /// The rows of the items.
    Registering { start: DateTime<Utc> },
    /// The jobs of a minute that was missed.
    Backfilling { start: DateTime<Utc>, missed: Missed },
    /// A timer.
    Resting,
    /// The database's time, before a minute is scheduled.
    Asking,
    /// The jobs of this minute.
    Ticking(Minute),
    /// The end of a pause after an error.
    Pausing,
}

/// The loop of cron of one worker. Times are given in virtual time.
pub(super) struct Schedule {
    items: Vec<Arc<Cron>>,
    stage: Stage,
    next: Option<Minute>,
    since: HashMap<String, Minute>,
    rested: Duration,
    failures: u32,
    /// By how much this machine's clock differs from virtual time.
    machine: TimeDelta,
    correction: TimeDelta,
    found_at: Option<Duration>,
    asked_at: Duration,
    /// Since when it has scheduled minute after minute without an interruption.
    follows_since: Option<Duration>,
}

impl Schedule {
    fn new(now: Duration, machine: TimeDelta) -> Schedule {
        Schedule {
            items: items(),
            stage: Stage::Pausing,
            next: None,
            since: HashMap::new(),
            rested: now,
            failures: 0,
            machine,
            correction: TimeDelta::zero(),
            found_at: None,
            asked_at: now,
            follows_since: None,
        }
    }

    fn follows_since(&self) -> Option<Duration> {
        self.follows_since
    }

    /// The clock of this machine.
    fn local(&self, now: Duration) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + now + self.machine
    }

    /// The database's time, by the last measurement.
    fn clock(&self, now: Duration) -> DateTime<Utc> {
        self.local(now) + self.correction
    }

    /// Registers the items and backfills missed ticks.
    fn start(&mut self, now: Duration) -> Act {
        self.follows_since = None;
        self.stage = Stage::Starting;
        self.ask(now)
    }

    fn ask(&mut self, now: Duration) -> Act {
        self.asked_at = now;
        Act::Send(CronStatement::ReadClock)
    }

    /// A rest or a pause is over.
    fn on_timer(&mut self, now: Duration) -> Act {
        self.rested = now;
        match self.stage {
            Stage::Resting => self.follow(now),
            _ => self.start(now),
        }
    }

    /// A statement has failed.
    fn on_error(&mut self, random: f64) -> Act {
        let pause = plan::back_off(self.failures, random);
        self.failures = self.failures.saturating_add(1);
        self.follows_since = None;
        self.stage = Stage::Pausing;
        Act::Rest(pause)
    }

    fn on_answer(&mut self, now: Duration, answer: CronAnswer) -> Act {
        match (std::mem::replace(&mut self.stage, Stage::Pausing), answer) {
            (Stage::Starting, CronAnswer::Clock(time)) => {
                let start = self.note_clock(now, time);
                self.stage = Stage::Registering { start };
                let identifiers = self.items.iter().map(|item| item.identifier().to_owned()).collect();
                Act::Send(CronStatement::Register { identifiers, now: start })
            }
            (Stage::Registering { start }, CronAnswer::Registered(rows)) => {
                let known = rows.into_iter().map(|(identifier, known_since, last_execution)| {
                    (identifier, Known { known_since, last_execution })
                });
                let known: HashMap<String, Known> = known.collect();
                for item in &self.items {
                    self.since.entry(item.identifier().to_owned()).or_insert_with(|| Minute::of(start));
                }
                let unbroken = plan::unbroken(start, self.next);
                let missed = Missed::new(&self.items, &known, start, unbroken, &self.since);
                self.backfill(now, start, missed)
            }
            (Stage::Backfilling { start, missed }, _) => self.backfill(now, start, missed),
            (Stage::Asking, CronAnswer::Clock(time)) => {
                let time = self.note_clock(now, time);
                self.act(now, time)
            }
            (Stage::Ticking(minute), _) => {
                self.next = Some(minute.next());
                self.failures = 0;
                self.follow(now)
            }
            _ => self.start(now),
        }
    }

    fn note_clock(&mut self, now: Duration, database: DateTime<Utc>) -> DateTime<Utc> {
        let asked_at = self.local(self.asked_at);
        self.correction = database - (asked_at + (now - self.asked_at) / 2);
        self.found_at = Some(now);
        self.clock(now)
    }

    fn backfill(&mut self, now: Duration, start: DateTime<Utc>, mut missed: Missed) -> Act {
        while let Some((minute, due)) = missed.next(MINUTES_AT_A_TIME) {
            if !due.is_empty() {
                self.stage = Stage::Backfilling { start, missed };
                return schedule(minute, &due);
            }
        }
        self.next = Some(Minute::not_before(start));
        self.follows_since = Some(now);
        self.follow(now)
    }

    fn follow(&mut self, now: Duration) -> Act {
        let is_stale = self.found_at.is_none_or(|found_at| now - found_at > LIFETIME);
        let time = self.clock(now);
        match self.step(now, time) {
            plan::Step::Wait(pause) if !is_stale => {
                self.stage = Stage::Resting;
                Act::Rest(pause)
            }
            _ => {
                self.stage = Stage::Asking;
                self.ask(now)
            }
        }
    }

    fn step(&self, now: Duration, time: DateTime<Utc>) -> plan::Step {
        let next = self.next.unwrap_or_else(|| Minute::not_before(time));
        plan::step(time, next, now - self.rested)
    }

    /// The database's time was read.
    fn act(&mut self, now: Duration, time: DateTime<Utc>) -> Act {
        match self.step(now, time) {
            plan::Step::Wait(pause) => {
                self.stage = Stage::Resting;
                Act::Rest(pause)
            }
            plan::Step::Resume => self.start(now),
            plan::Step::Schedule(minute) => {
                let is_ours =
                    |item: &&Arc<Cron>| self.since.get(item.identifier()).is_some_and(|it| *it <= minute);
                let due = plan::due(self.items.iter().filter(is_ours), minute);
                if due.is_empty() {
                    self.next = Some(minute.next());
                    self.failures = 0;
                    return self.follow(now);
                }
                self.stage = Stage::Ticking(minute);
                schedule(minute, &due)
            }
        }
    }
}

fn schedule(minute: Minute, due: &[Arc<Cron>]) -> Act {
    let identifiers = due.iter().map(|item| item.identifier().to_owned()).collect();
    Act::Send(CronStatement::Schedule { minute: minute.begin(), identifiers })
}
