//! Cron: items that add a job of their task at certain minutes. Each item is scheduled exactly once per due minute,
//! however many workers have it.
//!
//! Items come from text ([`parse_crontab`]) or from code ([`Cron`]); [`CronItems`] is the list that a worker has.
//! `plan` decides, without a database or a clock, what is due; `store` contains the statements; `schedule` is the loop
//! that uses both. The loop and the running of jobs do not depend on each other.

mod clock;
mod problem;
mod fill;
mod items;
pub(crate) mod moment;
mod options;
mod parse;
mod pattern;
mod payload;
pub(crate) mod plan;
mod schedule;
mod store;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc, Weekday};
use chrono_tz::Tz;
use serde::Serialize;
use serde_json::Value;

pub(crate) use clock::CronClock;
pub use fill::CrontabFill;
pub use items::CronItems;
pub use moment::CronDigest;
use moment::{Minute, Moment};
use options::Options;
pub use parse::parse_crontab;
use pattern::Pattern;
pub use problem::{CrontabError, CrontabErrors};
pub use schedule::CronEvent;
pub(crate) use schedule::run_schedule;

use crate::{Error, JobKeyMode, Result, TaskHandler};

/// How many days [`Cron::next_after`] searches ahead: from one 29 February to the next can take eight years.
const DAYS_AHEAD: i64 = 8 * 366;
/// The same for a custom match function, which has to be called for every minute.
const DAYS_AHEAD_OF_FUNCTION: i64 = 366;
const MINUTES_A_DAY: i64 = 24 * 60;

/// One crontab item: its task, when it is due, its options and its payload.
///
/// Times are in UTC, unless [`Cron::time_zone`] sets another time zone. An item is displayed as a crontab line that
/// parses to the same item, if a crontab can express its task, id and queue, its payload is an object, and it has a
/// pattern.
///
/// ```
/// use atta::{Cron, CrontabFill};
///
/// let item = Cron::task("send_report", "30 4 * * mon")?.fill(CrontabFill::days(2)).max_attempts(10);
/// assert_eq!(item.to_string(), "30 4 * * mon send_report ?fill=2d&max=10");
/// # Ok::<(), atta::Error>(())
/// ```
#[derive(Clone, PartialEq)]
#[must_use]
pub struct Cron {
    task_identifier: String,
    when: When,
    options: Options,
    payload: Option<Value>,
    /// Why the payload can't be converted; reported when the item is used.
    payload_fault: Option<String>,
}

#[derive(Clone)]
enum When {
    Pattern(Pattern),
    Function(Arc<dyn Fn(&CronDigest) -> bool + Send + Sync>),
}

/// When the item is due.
impl Cron {
    /// Every minute.
    pub fn every_minute<T: TaskHandler>() -> Result<Cron> {
        Cron::pattern::<T>("* * * * *")
    }

    /// Every `n` minutes of each hour, starting at minute 0; `n` from 1 to 59. The count restarts with each hour, even
    /// if `n` does not divide 60.
    pub fn every_n_minutes<T: TaskHandler>(n: u32) -> Result<Cron> {
        if n > 59 {
            return Err(Error::config(format!(
                "a cron item can't run every {n} minutes: it must be 1 to 59"
            )));
        }
        Cron::pattern::<T>(&format!("*/{n} * * * *"))
    }

    /// Every hour at `minute`.
    pub fn hourly_at<T: TaskHandler>(minute: u32) -> Result<Cron> {
        Cron::pattern::<T>(&format!("{minute} * * * *"))
    }

    /// Every day at `hour` and `minute`.
    pub fn daily_at<T: TaskHandler>(hour: u32, minute: u32) -> Result<Cron> {
        Cron::pattern::<T>(&format!("{minute} {hour} * * *"))
    }

    /// Every week on `day`, at `hour` and `minute`.
    pub fn weekly_on<T: TaskHandler>(day: Weekday, hour: u32, minute: u32) -> Result<Cron> {
        Cron::pattern::<T>(&format!("{minute} {hour} * * {}", day.num_days_from_sunday()))
    }

    /// Every month on `day`, 1 to 31, at `hour` and `minute`. Months without such a day are skipped.
    pub fn monthly_on<T: TaskHandler>(day: u32, hour: u32, minute: u32) -> Result<Cron> {
        Cron::pattern::<T>(&format!("{minute} {hour} {day} * *"))
    }

    /// Every year in `month`, 1 to 12, on `day`, 1 to 31, at `hour` and `minute`. Years without such a day are skipped.
    pub fn yearly_on<T: TaskHandler>(month: u32, day: u32, hour: u32, minute: u32) -> Result<Cron> {
        Cron::pattern::<T>(&format!("{minute} {hour} {day} {month} *"))
    }

    /// Due when a pattern matches: five fields, or a word such as `@daily`.
    pub fn pattern<T: TaskHandler>(pattern: &str) -> Result<Cron> {
        Cron::task(T::IDENTIFIER, pattern)
    }

    /// As [`Cron::pattern`], for a task that this program does not know.
    pub fn task(identifier: impl Into<String>, pattern: &str) -> Result<Cron> {
        Ok(Cron::new(identifier.into(), When::Pattern(parse::read_pattern(pattern)?)))
    }

    /// Due when `matches` returns true. The function is called once per minute, and must return the same result on all
    /// workers. A panic counts as false.
    pub fn matching<T: TaskHandler>(matches: impl Fn(&CronDigest) -> bool + Send + Sync + 'static) -> Cron {
        Cron::task_matching(T::IDENTIFIER, matches)
    }

    /// As [`Cron::matching`], for a task that this program does not know.
    pub fn task_matching(
        identifier: impl Into<String>,
        matches: impl Fn(&CronDigest) -> bool + Send + Sync + 'static,
    ) -> Cron {
        Cron::new(identifier.into(), When::Function(Arc::new(matches)))
    }

    fn new(task_identifier: String, when: When) -> Cron {
        Cron { task_identifier, when, options: Options::default(), payload: None, payload_fault: None }
    }

    fn read(task: &str, pattern: Pattern, options: Options, payload: Option<Value>) -> Cron {
        Cron { options, payload, ..Cron::new(task.to_owned(), When::Pattern(pattern)) }
    }
}

/// The options of the item.
impl Cron {
    /// The identifier by which all workers recognize the item. Default: the task identifier, so if two items have the
    /// same task, at least one needs an id. An item whose identifier is changed is a new item.
    pub fn id(mut self, id: impl Into<String>) -> Cron {
        self.options.id = Some(id.into());
        self
    }

    /// How far back missed ticks are backfilled. Default: not at all.
    pub fn fill(mut self, fill: CrontabFill) -> Cron {
        self.options.fill = fill;
        self
    }

    /// How many attempts of each job may be started, at least 1. Default: 25.
    pub fn max_attempts(mut self, max_attempts: i16) -> Cron {
        self.options.max_attempts = Some(max_attempts);
        self
    }

    /// The queue of the jobs: jobs of one queue run one after the other. Default: none.
    pub fn queue(mut self, queue: impl Into<String>) -> Cron {
        self.options.queue = Some(queue.into());
        self
    }

    /// Lower numbers run first. Default: 0.
    pub fn priority(mut self, priority: i16) -> Cron {
        self.options.priority = Some(priority);
        self
    }

    /// The key of each job, 1 to 512 characters: a new job replaces a job that still waits. Default: none.
    pub fn job_key(mut self, job_key: impl Into<String>) -> Cron {
        self.options.job_key = Some(job_key.into());
        self
    }

    /// What happens if a job with the key already exists. Default: [`JobKeyMode::Replace`].
    pub fn job_key_mode(mut self, job_key_mode: JobKeyMode) -> Cron {
        self.options.job_key_mode = Some(job_key_mode);
        self
    }

    /// The payload of each job. An object gets one more member, `_cron`, with `ts`, the minute, and `backfilled`,
    /// whether the job was added by a backfill. Default: an object with only that member.
    pub fn payload(mut self, payload: impl Serialize) -> Cron {
        (self.payload, self.payload_fault) = match serde_json::to_value(payload) {
            Ok(payload) => (Some(payload), None),
            Err(error) => (None, Some(format!("its payload can't be written as JSON: {error}"))),
        };
        self
    }

    /// The time zone in which the pattern is evaluated; `tz=` in a crontab. Default: UTC, as in Graphile Worker, which
    /// supports no other.
    ///
    /// When the local clock changes:
    ///
    /// - A local time that does not exist, because the clock is set forward over it, runs once, at the first minute
    ///   after the change: `30 2 * * *` in Paris runs at 03:00 on the last Sunday of March. Several such times of one
    ///   item become one.
    /// - A local time that occurs twice, because the clock is set back, runs once, the first time.
    /// - A pattern for all 24 hours (`*/10 * * * *`, `@hourly`) follows elapsed time: it keeps running through the hour
    ///   that occurs twice, and nothing is added for a skipped hour. The same is true of a custom match function, which
    ///   gets the local time.
    pub fn time_zone(mut self, time_zone: Tz) -> Cron {
        self.options.time_zone = Some(time_zone);
        self
    }
}

/// Reading an item.
impl Cron {
    /// The identifier by which all workers recognize it: its id, or else its task identifier.
    pub fn identifier(&self) -> &str {
        self.options.id.as_deref().unwrap_or(&self.task_identifier)
    }

    /// The task of its jobs.
    pub fn task_identifier(&self) -> &str {
        &self.task_identifier
    }

    /// Whether it is due in the minute of `time`.
    pub fn matches(&self, time: DateTime<Utc>) -> bool {
        self.matches_moment(&Moment::at(Minute::of(time), self.options.time_zone))
    }

    /// The next minute after that of `time` in which it is due. None if there is none within eight years, or within one
    /// year for a custom match function.
    pub fn next_after(&self, time: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let first = Minute::of(time).next();
        let today = first.0.div_euclid(MINUTES_A_DAY);
        let days = match self.when {
            When::Pattern(_) => DAYS_AHEAD,
            When::Function(_) => DAYS_AHEAD_OF_FUNCTION,
        };
        (today..=today.saturating_add(days))
            .filter(|day| self.may_match_on(*day))
            .flat_map(|day| (day * MINUTES_A_DAY..(day + 1) * MINUTES_A_DAY).map(Minute))
            .filter(|minute| *minute >= first)
            .find(|minute| self.matches(minute.begin()))
            .map(Minute::begin)
    }

    /// Why Node's Graphile Worker would reject this item in a crontab; empty if it would accept it.
    pub fn graphile_objections(&self) -> Vec<String> {
        let mut objections = match &self.when {
            When::Pattern(pattern) => pattern.objections(),
            When::Function(_) => vec!["a custom match function".to_owned()],
        };
        if parse::invalid_in_task(&self.task_identifier).is_some() {
            objections.push(format!("the task {:?}", self.task_identifier));
        }
        objections.extend(self.options.objections());
        if self.payload.as_ref().is_some_and(|payload| !payload.is_object()) {
            objections.push("a payload that is not an object".to_owned());
        }
        objections
    }

    /// Rejects values that the database would refuse, before anything is sent.
    pub(crate) fn check(&self) -> Result<()> {
        let task = &self.task_identifier;
        let checked = match &self.payload_fault {
            Some(problem) => Err(problem.clone()),
            None if !(1..=128).contains(&task.chars().count()) || task.contains('\0') => {
                Err("its task must have 1 to 128 characters and no NUL".to_owned())
            }
            None => self.options.check(),
        };
        checked
            .map_err(|problem| Error::config(format!("invalid cron item {:?}: {problem}", self.identifier())))
    }

    fn matches_moment(&self, moment: &Moment) -> bool {
        match &self.when {
            When::Pattern(pattern) => pattern.matches(moment),
            When::Function(matches) => ask(&**matches, moment),
        }
    }

    /// Whether a minute of that day in UTC can match: its local date is that day, the one before or the one after.
    fn may_match_on(&self, day: i64) -> bool {
        let When::Pattern(pattern) = &self.when else {
            return true;
        };
        let around = if self.options.time_zone.is_some() { -1..=1 } else { 0..=0 };
        around
            .map(|shift| {
                CronDigest::of(&Minute(day.saturating_add(shift).saturating_mul(MINUTES_A_DAY)).begin())
            })
            .any(|digest| pattern.matches_day(&digest))
    }
}

/// Calls a custom match function. If it panics, the schedule goes on.
fn ask(matches: &(dyn Fn(&CronDigest) -> bool + Send + Sync), moment: &Moment) -> bool {
    let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| matches(&moment.digest)));
    answer.unwrap_or_else(|_| {
        tracing::error!(digest = ?moment.digest, "a match function of a cron item panicked");
        false
    })
}

impl PartialEq for When {
    fn eq(&self, other: &When) -> bool {
        match (self, other) {
            (When::Pattern(one), When::Pattern(other)) => one == other,
            (When::Function(one), When::Function(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.when {
            When::Pattern(pattern) => write!(f, "{pattern} {}{}", self.task_identifier, self.options)?,
            When::Function(_) => {
                write!(f, "# (custom match function) {}{}", self.task_identifier, self.options)?
            }
        }
        match &self.payload {
            Some(payload) => write!(f, " {payload}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({self})")
    }
}
