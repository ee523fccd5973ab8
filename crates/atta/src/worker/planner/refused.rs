//! Jobs that the database refuses to let this worker claim, for example because a trigger of the application raises an
//! error. They are left out of the next claims for a while, twice as long each time, so that other jobs are claimed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::claim::Refusal;
use crate::Error;

/// How long a job is left out after its first refusal.
const FIRST: Duration = Duration::from_secs(1);

/// A job whose refusal took long is left out for at least this many times as long: other jobs wait for each attempt.
const REST: u32 = 30;

/// A refusal that took longer than this is slow.
const SLOW: Duration = Duration::from_millis(200);

/// The longest time for which a job is left out.
const LONGEST: Duration = Duration::from_secs(60);

/// If more jobs than this are left out, the task with the most of them is left out instead, with all of its jobs. A
/// claim compares every job that it reads with the list.
const MANY: usize = 10_000;

/// How many refusals are logged per minute.
const LOGGED: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct RefusedJobs {
    jobs: HashMap<i64, (Arc<str>, Pause)>,
    tasks: HashMap<Arc<str>, Pause>,
    /// When [`RefusedJobs::take_due`] was last called.
    checked_at: Option<Instant>,
    /// The first refusal of the run.
    error: Option<Error>,
    /// When a refusal last took long.
    slow_at: Option<Instant>,
    /// Since when, and how many, refusals were logged.
    logged: Option<(Instant, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    tries: u32,
}

impl Pause {
    fn after(now: Instant, before: Option<Pause>, took: Duration) -> Pause {
        let tries = before.map_or(0, |pause| pause.tries + 1);
        let pause = FIRST.saturating_mul(1 << tries.min(10)).max(took.saturating_mul(REST)).min(LONGEST);
        Pause { until: now + pause, tries }
    }
}

/// What is logged after a refusal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RefusalLog {
    /// The job was refused before, and is left out again, or others were logged in the same minute.
    None,
    /// The job is left out for the first time.
    Job,
    /// The same, and further refusals of this minute are not logged.
    LastJob,
    /// All jobs of this task are left out.
    Task(Arc<str>),
}

impl RefusedJobs {
    /// A job was refused.
    pub(super) fn on_refused(&mut self, now: Instant, refusal: Refusal) -> RefusalLog {
        let Refusal { id, task_identifier, error, took } = refusal;
        self.error.get_or_insert(error);
        if took > SLOW {
            self.slow_at = Some(now);
        }
        let before = self.jobs.get(&id).map(|(_, pause)| *pause);
        self.jobs.insert(id, (task_identifier, Pause::after(now, before, took)));
        if self.jobs.len() > MANY {
            return RefusalLog::Task(self.leave_out_a_task(now));
        }
        if before.is_none() { self.log(now) } else { RefusalLog::None }
    }

    fn log(&mut self, now: Instant) -> RefusalLog {
        let (since, count) = self.logged.filter(|(since, _)| now < *since + MINUTE).unwrap_or((now, 0));
        self.logged = Some((since, count + 1));
        match count + 1 {
            ..LOGGED => RefusalLog::Job,
            LOGGED => RefusalLog::LastJob,
            _ => RefusalLog::None,
        }
    }

    fn leave_out_a_task(&mut self, now: Instant) -> Arc<str> {
        let mut counts: HashMap<&Arc<str>, usize> = HashMap::new();
        self.jobs.values().for_each(|(task, _)| *counts.entry(task).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let task = most.map_or_else(|| Arc::from(""), |(task, _)| task.clone());
        self.jobs.retain(|_, (other, _)| *other != task);
        let pause = Pause::after(now, self.tasks.get(&task).copied(), Duration::ZERO);
        self.tasks.insert(task.clone(), pause);
        task
    }

    /// A claim that was sent at this time, without these jobs, has tried all jobs that it found. The job that was due
    /// for another attempt was claimed, refused again, or is gone.
    pub(super) fn on_claimed(&mut self, sent_at: Instant, left_out: &[i64]) {
        let left_out: HashSet<&i64> = left_out.iter().collect();
        self.jobs.retain(|id, (_, pause)| pause.until > sent_at || left_out.contains(id));
    }

    /// The jobs that the next claim leaves out: all but the one that is due for another attempt and has waited for the
    /// longest. Each attempt may take long, and other jobs wait for it.
    pub(super) fn left_out(&self, now: Instant) -> Vec<i64> {
        let due = self.jobs.iter().filter(|(_, (_, pause))| pause.until <= now);
        let next = due.min_by_key(|(id, (_, pause))| (pause.until, **id)).map(|(id, _)| *id);
        self.jobs.keys().copied().filter(|id| Some(*id) != next).collect()
    }

    /// Of these tasks, those whose jobs the next claim may claim.
    pub(super) fn without_left_out(&self, now: Instant, tasks: &[String]) -> Vec<String> {
        let is_left_out = |task: &&String| self.tasks.get(&***task).is_some_and(|pause| pause.until > now);
        tasks.iter().filter(|task| !is_left_out(task)).cloned().collect()
    }

    /// Whether the next claim may contain jobs that are refused again, or others that take as long: a claim of several
    /// jobs at a time would take longer, and bring nothing.
    pub(super) fn is_retry(&self, now: Instant) -> bool {
        let is_slow = self.slow_at.is_some_and(|at| now < at + LONGEST);
        is_slow || self.jobs.values().any(|(_, pause)| pause.until <= now)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.tasks.is_empty()
    }

    /// When something is next to be tried again.
    pub(super) fn next_timer(&self, now: Instant) -> Option<Instant> {
        let jobs = self.jobs.values().map(|(_, pause)| pause);
        jobs.chain(self.tasks.values()).map(|pause| pause.until).filter(|until| *until > now).min()
    }

    /// Whether something has become due for another attempt since the last call.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        let before = self.checked_at.replace(now);
        let is_new = |until: Instant| until <= now && before.is_none_or(|before| until > before);
        let jobs = self.jobs.values().map(|(_, pause)| pause);
        jobs.chain(self.tasks.values()).any(|pause| is_new(pause.until))
    }

    /// Whether another job is due for an attempt, after one was tried.
    pub(super) fn has_due(&self, now: Instant) -> bool {
        self.jobs.values().any(|(_, pause)| pause.until <= now)
    }

    /// The first refusal of the run.
    pub(super) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(id: i64, task: &str) -> Refusal {
        Refusal {
            id,
            task_identifier: task.into(),
            error: Error::unavailable("refused"),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn a_refused_job_is_left_out_for_longer_each_time() {
        let (mut refused, mut now) = (RefusedJobs::default(), Instant::now());
        assert_eq!(refused.on_refused(now, refusal(1, "t")), RefusalLog::Job);
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            let due = now + Duration::from_secs(pause);
            assert_eq!(refused.next_timer(now), Some(due));
            assert_eq!(refused.left_out(due - Duration::from_millis(1)), [1]);
            assert!(refused.left_out(due).is_empty() && refused.is_retry(due));
            now = due;
            assert_eq!(refused.on_refused(now, refusal(1, "t")), RefusalLog::None);
            refused.on_claimed(now, &[]);
        }
        assert!(!refused.is_empty());
    }

    #[test]
    fn a_job_that_is_claimed_or_gone_is_forgotten() {
        let (mut refused, now) = (RefusedJobs::default(), Instant::now());
        refused.on_refused(now, refusal(1, "t"));
        refused.on_claimed(now, &[]);
        assert_eq!(refused.left_out(now), [1], "the claim that was refused does not end the pause");
        refused.on_claimed(now + FIRST, &[1]);
        assert!(!refused.is_empty(), "the claim has not tried it");
        refused.on_claimed(now + FIRST, &[]);
        assert!(refused.is_empty() && !refused.is_retry(now + LONGEST));
    }

    #[test]
    fn one_job_at_a_time_is_tried_again() {
        let (mut refused, now) = (RefusedJobs::default(), Instant::now());
        for id in [3, 1, 2] {
            refused.on_refused(now, refusal(id, "t"));
        }
        let mut tried = Vec::new();
        while refused.has_due(now + FIRST) {
            let left_out = refused.left_out(now + FIRST);
            tried.extend(
                [1, 2, 3].into_iter().filter(|id| refused.jobs.contains_key(id) && !left_out.contains(id)),
            );
            refused.on_claimed(now + FIRST, &left_out);
        }
        assert_eq!(tried, [1, 2, 3]);
    }

    #[test]
    fn a_job_whose_refusal_takes_long_is_left_out_for_longer() {
        let (mut refused, now) = (RefusedJobs::default(), Instant::now());
        let slow = Duration::from_secs(1);
        refused.on_refused(now, Refusal { took: slow, ..refusal(1, "t") });
        assert_eq!(refused.next_timer(now), Some(now + slow * REST));
        assert!(refused.is_retry(now) && !refused.has_due(now), "others may take as long");
        assert!(!refused.is_retry(now + LONGEST) || refused.has_due(now + LONGEST));
    }

    #[test]
    fn a_few_refusals_per_minute_are_logged() {
        let (mut refused, now) = (RefusedJobs::default(), Instant::now());
        let news: Vec<RefusalLog> = (0..100).map(|id| refused.on_refused(now, refusal(id, "t"))).collect();
        assert_eq!(news.iter().filter(|it| **it == RefusalLog::Job).count(), 19);
        assert_eq!(news.iter().position(|it| *it == RefusalLog::LastJob), Some(19));
        assert_eq!(refused.on_refused(now + MINUTE, refusal(100, "t")), RefusalLog::Job);
    }

    #[test]
    fn a_task_with_many_refused_jobs_is_left_out_as_a_whole() {
        let (mut refused, now) = (RefusedJobs::default(), Instant::now());
        refused.on_refused(now, refusal(0, "other"));
        let many = i64::try_from(MANY).unwrap();
        let news: Vec<RefusalLog> =
            (1..=many).map(|id| refused.on_refused(now, refusal(id, "bad"))).collect();
        assert_eq!(news.last(), Some(&RefusalLog::Task("bad".into())));
        let tasks = ["bad".to_owned(), "other".to_owned()];
        assert_eq!(refused.without_left_out(now, &tasks), ["other"]);
        assert_eq!(refused.left_out(now), [0], "the jobs of other tasks stay in the list");
        assert_eq!(refused.without_left_out(now + FIRST, &tasks), tasks);
        assert!(!refused.take_due(now) && refused.take_due(now + FIRST));
        assert!(!refused.take_due(now + LONGEST), "once");
    }
}
