//! Which worker of a fleet asks for an announced job first.
//!
//! Every worker receives the notification of every job. If all of them asked for it, a fleet would cost as many statements
//! per job as it has workers. So the workers take turns, by the id of the job, among those that have its task: the first
//! one asks at once. The others wait a little, each according to its rank, and then check whether nobody has claimed the
//! job (`listen/unanswered.rs`). So a worker that is busy, or that has died, delays a job by a few milliseconds.
//!
//! What a worker knows of the fleet may be some seconds old, and two workers may know different fleets. Then two workers ask
//! at once, or none does before the check. Both are harmless.

use std::time::Duration;

/// How long the second worker waits before it checks. The first one has claimed the job by then, unless it is busy.
pub(super) const SECOND: Duration = Duration::from_millis(6);

/// The same for all others. They check together, in one statement for all jobs of that time.
pub(super) const OTHERS: Duration = Duration::from_millis(15);

/// Workers with the same tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) task_identifiers: Vec<String>,
    pub(crate) workers: usize,
    /// How many of them come before this worker, in the order of their ids.
    pub(crate) before: usize,
}

/// What a worker does about an announced job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It asks for the job.
    Now,
    /// It checks after this time whether nobody has claimed the job.
    After(Duration),
    /// It does not have the task.
    Never,
}

/// The workers, as they were when they were last read.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    groups: Vec<Group>,
}

impl Fleet {
    pub(crate) fn new(groups: Vec<Group>) -> Fleet {
        Fleet { groups }
    }

    /// What this worker does about a job of one of the tasks that it has.
    fn answer_own(&self, id: i64, task_identifier: &str) -> Answer {
        let has_task = |group: &&Group| group.task_identifiers.iter().any(|task| task == task_identifier);
        let (mut workers, mut before) = (0, 0);
        for group in self.groups.iter().filter(has_task) {
            workers += group.workers;
            before += group.before;
        }
        if workers <= 1 {
            return Answer::Now;
        }
        let first = usize::try_from(id.unsigned_abs() % workers as u64).unwrap_or(0);
        match (before + workers - first) % workers {
            0 => Answer::Now,
            1 => Answer::After(SECOND),
            _ => Answer::After(OTHERS),
        }
    }

    /// What a worker with these tasks does about a job.
    pub(super) fn answer(&self, tasks: &[String], id: i64, task_identifier: &str) -> Answer {
        match tasks.iter().any(|task| task == task_identifier) {
            true => self.answer_own(id, task_identifier),
            false => Answer::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(tasks: &[&str], workers: usize, before: usize) -> Group {
        let task_identifiers = tasks.iter().map(|task| (*task).to_owned()).collect();
        Group { task_identifiers, workers, before }
    }

    #[test]
    fn each_job_has_one_first_worker_and_one_second() {
        let tasks = ["t".to_owned()];
        for id in 0..20 {
            let answers: Vec<Answer> =
                (0..5).map(|n| Fleet::new(vec![group(&["t"], 5, n)]).answer(&tasks, id, "t")).collect();
            let count = |wanted| answers.iter().filter(|answer| **answer == wanted).count();
            assert_eq!((count(Answer::Now), count(Answer::After(SECOND))), (1, 1), "{id} {answers:?}");
            assert_eq!(count(Answer::After(OTHERS)), 3, "{id} {answers:?}");
        }
    }

    #[test]
    fn only_workers_that_have_the_task_take_turns() {
        // This worker is the second of the two that have "a", and the third of the three that have "b".
        let fleet = Fleet::new(vec![group(&["b"], 1, 1), group(&["a", "b"], 2, 1), group(&["c"], 9, 9)]);
        let tasks = ["a".to_owned(), "b".to_owned()];
        assert_eq!(fleet.answer(&tasks, 0, "a"), Answer::After(SECOND));
        assert_eq!(fleet.answer(&tasks, 1, "a"), Answer::Now);
        assert_eq!(fleet.answer(&tasks, 2, "b"), Answer::Now);
        assert_eq!(fleet.answer(&tasks, 1, "b"), Answer::After(SECOND));
        assert_eq!(fleet.answer(&tasks, 3, "b"), Answer::After(OTHERS));
        assert_eq!(fleet.answer(&tasks, 0, "c"), Answer::Never);
    }

    #[test]
    fn a_worker_that_knows_no_other_asks_at_once() {
        let tasks = ["t".to_owned()];
        for fleet in [Fleet::default(), Fleet::new(vec![group(&["t"], 1, 0)])] {
            assert_eq!(fleet.answer(&tasks, -3, "t"), Answer::Now);
        }
    }
}
