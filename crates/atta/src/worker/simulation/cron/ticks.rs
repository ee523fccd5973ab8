//! Cron in the world: the schedules of the workers, their statements, and the invariants of ticks.
//!
//! No tick is added twice, and none before its minute. All ticks of an item with backfill are added. A tick of an item
//! without backfill is added soon if a worker has scheduled minute after minute since before, and nothing has gone wrong for
//! that worker since.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::TimeDelta;

use super::super::model::WorkerNumber;
use super::super::setup::TASKS;
use super::super::statement::Statement;
use super::super::world::{Step, World};
use super::{Act, CronAnswer, CronStatement, Minute, Schedule, has_fill, items};

/// A tick is added within this time after its minute has begun.
const LONGEST_LATE: Duration = Duration::from_secs(15);

/// So long before its minute nothing may have gone wrong for the worker that is expected to add a tick. The longest pause
/// after an error is a little longer than this, but only after many errors.
const QUIET_BEFORE: Duration = Duration::from_secs(20);

/// A worker notices within this time that the server's clock was set: see `LIFETIME` in `cron/clock.rs`.
const STEP_NOTICED: Duration = Duration::from_secs(75);

/// The ticks of a run.
#[derive(Default)]
pub(in super::super) struct Ticks {
    added: BTreeSet<(String, Minute)>,
    /// The latest minute that the server's clock has shown.
    latest: Option<Minute>,
    /// Minutes that began when the clock was not set, and when that was. Their ticks are not checked yet.
    begun: Vec<(Minute, Duration)>,
}

impl Ticks {
    pub(in super::super) fn count(&self) -> usize {
        self.added.len()
    }
}

impl World {
    pub(in super::super) fn has_cron(&self) -> bool {
        !self.setup.cron_for.is_zero()
    }

    /// The worker is registered: its schedule starts.
    pub(in super::super) fn start_cron(&mut self, number: WorkerNumber) {
        if !self.has_cron() {
            return;
        }
        let now = self.now();
        // The clocks of machines differ.
        let machine = TimeDelta::seconds(self.random.cron.i64(-7200..7200));
        let mut schedule = Schedule::new(now, machine);
        let act = schedule.start(now);
        if let Some(worker) = self.workers.get_mut(&number) {
            worker.cron = Some(schedule);
        }
        self.do_cron(number, act);
    }

    pub(in super::super) fn on_cron_timer(&mut self, number: WorkerNumber) {
        let now = self.now();
        if let Some(schedule) = self.schedule_of(number) {
            let act = schedule.on_timer(now);
            self.do_cron(number, act);
        }
    }

    pub(in super::super) fn on_cron_answer(&mut self, number: WorkerNumber, answer: CronAnswer) {
        let now = self.now();
        if let Some(schedule) = self.schedule_of(number) {
            let act = schedule.on_answer(now, answer);
            self.do_cron(number, act);
        }
    }

    pub(in super::super) fn on_cron_error(&mut self, number: WorkerNumber) {
        let random = self.random.cron.f64();
        if let Some(schedule) = self.schedule_of(number) {
            let act = schedule.on_error(random);
            self.do_cron(number, act);
        }
    }

    /// None if the worker is gone, or stops: then its schedule has ended.
    fn schedule_of(&mut self, number: WorkerNumber) -> Option<&mut Schedule> {
        self.workers.get_mut(&number).filter(|worker| !worker.is_stopping)?.cron.as_mut()
    }

    fn do_cron(&mut self, number: WorkerNumber, act: Act) {
        match act {
            Act::Send(statement) => self.send(number, Statement::Cron(statement)),
            Act::Rest(pause) => self.plan(self.now() + pause, number, Step::CronTimer),
        }
    }

    /// A statement of cron takes effect.
    pub(in super::super) fn execute_cron(
        &mut self,
        worker: WorkerNumber,
        statement: &CronStatement,
    ) -> Result<CronAnswer, String> {
        let now = self.now();
        let clock = self.database.clock(now);
        match statement {
            CronStatement::ReadClock => Ok(CronAnswer::Clock(clock)),
            CronStatement::Register { identifiers, now } => {
                let known = self.database.register_cron_items(identifiers, *now);
                self.note(|_| format!("worker {worker} registers cron items at {now}"));
                let known = known.into_iter().map(|(name, row)| (name, row.known_since, row.last_execution));
                Ok(CronAnswer::Registered(known.collect()))
            }
            CronStatement::Schedule { minute, identifiers } => {
                let (begin, minute) = (*minute, Minute::of(*minute));
                let added = self.database.schedule_cron_jobs(now, identifiers, begin, TASKS[1]);
                self.note(|_| {
                    format!("worker {worker} schedules {begin}: adds {added:?} of {identifiers:?}")
                });
                let is_early = begin - clock > TimeDelta::seconds(1) && !self.is_stepped_since(STEP_NOTICED);
                if is_early && !added.is_empty() {
                    return Err(format!("the ticks of {begin} are added at {clock}, before their minute"));
                }
                for (identifier, id) in &added {
                    self.statistics.on_added(*id, now);
                    if !self.ticks.added.insert((identifier.clone(), minute)) {
                        return Err(format!("the tick {begin} of {identifier:?} is added twice"));
                    }
                }
                if !added.is_empty() {
                    self.notify(added.len());
                }
                Ok(CronAnswer::Scheduled)
            }
        }
    }

    fn is_stepped_since(&self, age: Duration) -> bool {
        self.stepped_at.is_some_and(|at| at + age >= self.now())
    }

    /// Now and then: whether ticks of minutes that have begun were added soon.
    pub(in super::super) fn check_ticks(&mut self) -> Result<(), String> {
        if !self.has_cron() {
            return Ok(());
        }
        let now = self.now();
        let minute = Minute::of(self.database.clock(now));
        // The clock may have been set before the first check.
        let first = Minute::of(self.database.clock(now) - self.database.offset);
        let latest = self.ticks.latest.unwrap_or(first);
        self.ticks.latest = Some(latest.max(minute));
        if latest.next() == minute && !self.is_stepped_since(STEP_NOTICED) {
            self.ticks.begun.push((minute, now));
        }
        let is_time = |(_, begun): &mut (Minute, Duration)| *begun + LONGEST_LATE <= now;
        let due: Vec<(Minute, Duration)> = self.ticks.begun.extract_if(.., is_time).collect();
        due.into_iter().try_for_each(|(minute, begun)| self.check_minute(minute, begun))
    }

    fn check_minute(&self, minute: Minute, begun: Duration) -> Result<(), String> {
        let is_quiet = |at: Duration| at + QUIET_BEFORE < begun;
        let expected = self.workers.iter().find(|(_, worker)| {
            let follows_since = worker.cron.as_ref().and_then(Schedule::follows_since);
            follows_since.is_some_and(is_quiet) && is_quiet(worker.disturbed_at) && !worker.is_stopping
        });
        let Some((number, _)) = expected.filter(|_| self.stepped_at.is_none_or(is_quiet)) else {
            return Ok(());
        };
        for item in items().iter().filter(|item| item.matches(minute.begin())) {
            let is_added = self.ticks.added.contains(&(item.identifier().to_owned(), minute));
            // After the clock was set back, the database has a later minute.
            let row = self.database.crontabs.get(item.identifier());
            let is_ahead = row.and_then(|row| row.last_execution).is_some_and(|last| last >= minute.begin());
            if !is_added && !is_ahead {
                let (identifier, begin) = (item.identifier(), minute.begin());
                return Err(format!(
                    "the tick {begin} of {identifier:?} is missing, and worker {number} was there"
                ));
            }
        }
        Ok(())
    }

    /// At the end: all ticks of items with backfill are there.
    pub(in super::super) fn check_all_ticks(&self) -> Result<(), String> {
        if !self.has_cron() {
            return Ok(());
        }
        let end = Minute::of(self.database.clock(self.now()) - TimeDelta::minutes(1));
        for item in items().iter().filter(|item| has_fill(item)) {
            let identifier = item.identifier();
            let Some(row) = self.database.crontabs.get(identifier) else {
                return Err(format!("cron item {identifier:?} was never registered"));
            };
            let mut minute = Minute::not_before(row.known_since);
            while minute < end {
                if item.matches(minute.begin())
                    && !self.ticks.added.contains(&(identifier.to_owned(), minute))
                {
                    let begin = minute.begin();
                    return Err(format!("the tick {begin} of {identifier:?} was never added"));
                }
                minute = minute.next();
            }
        }
        Ok(())
    }
}
