//! Jobs that the database refuses to let this worker claim, for example because a trigger of the application raises an
//! error. They are left out of the next claims for a while, twice as long each time, so that other jobs are claimed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::claim::Refusal;
use crate::Error;

/// How long a job is left out after its first refusal.
const FIRST: Duration = Duration::from_secs(1);

/// The longest time for which a job is left out.
const LONGEST: Duration = Duration::from_secs(60);

/// If more jobs than this are left out, the task with the most of them is left out instead, with all of its jobs. A claim
/// compares every job that it reads with the list.
const MANY: usize = 1000;

#[derive(Debug, Default)]
pub(super) struct RefusedJobs {
    jobs: HashMap<i64, (Arc<str>, Pause)>,
    tasks: HashMap<Arc<str>, Pause>,
    /// When [`RefusedJobs::take_due`] was last called.
    checked_at: Option<Instant>,
    /// The first refusal of the run.
    error: Option<Error>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    tries: u32,
}

impl Pause {
    fn after(now: Instant, before: Option<Pause>) -> Pause {
        let tries = before.map_or(0, |pause| pause.tries + 1);
        Pause { until: now + FIRST.saturating_mul(1 << tries.min(10)).min(LONGEST), tries }
    }
}

/// What is new after a refusal, for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The job was refused before, and is left out again.
    None,
    /// The job is left out for the first time.
    Job,
    /// All jobs of this task are left out.
    Task(Arc<str>),
}

impl RefusedJobs {
    /// A job was refused.
    pub(super) fn on_refused(&mut self, now: Instant, refusal: Refusal) -> News {
        let Refusal { id, task_identifier, error } = refusal;
        self.error.get_or_insert(error);
        let before = self.jobs.get(&id).map(|(_, pause)| *pause);
        self.jobs.insert(id, (task_identifier, Pause::after(now, before)));
        if self.jobs.len() > MANY {
            return News::Task(self.leave_out_a_task(now));
        }
        if before.is_none() { News::Job } else { News::None }
    }

    fn leave_out_a_task(&mut self, now: Instant) -> Arc<str> {
        let mut counts: HashMap<&Arc<str>, usize> = HashMap::new();
        self.jobs.values().for_each(|(task, _)| *counts.entry(task).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let task = most.map_or_else(|| Arc::from(""), |(task, _)| task.clone());
        self.jobs.retain(|_, (other, _)| *other != task);
        let pause = Pause::after(now, self.tasks.get(&task).copied());
        self.tasks.insert(task.clone(), pause);
        task
    }

    /// A claim that was sent at this time has ended. What was due for another attempt by then was claimed, refused again,
    /// or is gone.
    pub(super) fn on_claimed(&mut self, sent_at: Instant) {
        self.jobs.retain(|_, (_, pause)| pause.until > sent_at);
    }

    /// The jobs that the next claim leaves out.
    pub(super) fn left_out(&self, now: Instant) -> Vec<i64> {
        self.jobs.iter().filter(|(_, (_, pause))| pause.until > now).map(|(id, _)| *id).collect()
    }

    /// Of these tasks, those whose jobs the next claim may claim.
    pub(super) fn without_left_out(&self, now: Instant, tasks: &[String]) -> Vec<String> {
        let is_left_out = |task: &&String| self.tasks.get(&***task).is_some_and(|pause| pause.until > now);
        tasks.iter().filter(|task| !is_left_out(task)).cloned().collect()
    }

    /// Whether the next claim may contain jobs that are refused again.
    pub(super) fn is_retry(&self, now: Instant) -> bool {
        self.jobs.values().any(|(_, pause)| pause.until <= now)
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

    /// The first refusal of the run.
    pub(super) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(id: i64, task: &str) -> Refusal {
        Refusal { id, task_identifier: task.into(), error: Error::unavailable("refused") }
    }

    #[test]
    fn a_refused_job_is_left_out_for_longer_each_time() {
        let (mut refused, mut now) = (RefusedJobs::default(), Instant::now());
        assert_eq!(refused.on_refused(now, refusal(1, "t")), News::Job);
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            let due = now + Duration::from_secs(pause);
            assert_eq!(refused.next_timer(now), Some(due));
            assert_eq!(refused.left_out(due - Duration::from_millis(1)), [1]);
            assert!(refused.left_out(due).is_empty() && refused.is_retry(due));
            now = due;
            assert_eq!(refused.on_refused(now, refusal(1, "t")), News::None);
            refused.on_claimed(now);
        }
        assert!(!refused.is_empty());
    }

    #[test]
    fn a_job_that_is_claimed_or_gone_is_forgotten() {
        let (mut refused, now) = (RefusedJobs::default(), Instant::now());
        refused.on_refused(now, refusal(1, "t"));
        refused.on_claimed(now);
        assert_eq!(refused.left_out(now), [1], "the claim that was refused does not end the pause");
        refused.on_claimed(now + FIRST);
        assert!(refused.is_empty() && !refused.is_retry(now + LONGEST));
    }

    #[test]
    fn a_task_with_many_refused_jobs_is_left_out_as_a_whole() {
        let (mut refused, now) = (RefusedJobs::default(), Instant::now());
        refused.on_refused(now, refusal(0, "other"));
        let many = i64::try_from(MANY).unwrap();
        let news: Vec<News> = (1..=many).map(|id| refused.on_refused(now, refusal(id, "bad"))).collect();
        assert_eq!(news.last(), Some(&News::Task("bad".into())));
        let tasks = ["bad".to_owned(), "other".to_owned()];
        assert_eq!(refused.without_left_out(now, &tasks), ["other"]);
        assert_eq!(refused.left_out(now), [0], "the jobs of other tasks stay in the list");
        assert_eq!(refused.without_left_out(now + FIRST, &tasks), tasks);
        assert!(!refused.take_due(now) && refused.take_due(now + FIRST));
        assert!(!refused.take_due(now + LONGEST), "once");
    }
}
