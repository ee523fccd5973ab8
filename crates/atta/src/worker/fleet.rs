//! Which worker of a fleet asks for an announced job first, and how workers that drain the same jobs stay out of each other's
//! way.
//!
//! Every worker receives the notification of every job. If all of them asked for it, a fleet would cost as many statements
//! per job as it has workers. So the workers take turns, by the id of the job, among those that have its task: the first
//! one asks at once. The others wait a little, each according to its rank, and then check whether nobody has claimed the
//! job (`listen/unanswered.rs`). So a worker that is busy, or that has died, delays a job by a few milliseconds.
//!
//! What a worker knows of the fleet may be some seconds old, and two workers may know different fleets. Then two workers ask
//! at once, or none does before the check. Both are harmless.
//!
//! In a drain, the held picks of all workers would begin at the same jobs, and would try to lock what others hold. So they
//! take turns for the few milliseconds of a pick (`take_scan_turn.sql`), and begin where the last pick of any of them has
//! ended. A turn that does not come soon, because a session is stopped or was leaked by a pooler, is not waited for.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the second worker waits before it checks. The first one has claimed the job by then, unless it is busy.
pub(super) const SECOND: Duration = Duration::from_millis(6);

/// The same for all others. They check together, in one statement for all jobs of that time.
pub(super) const OTHERS: Duration = Duration::from_millis(15);

/// How long a pick waits for its turn.
pub(super) const LONGEST_TURN: Duration = Duration::from_millis(20);

/// How long a worker picks without turns if its turn did not come.
pub(super) const WITHOUT_TURN: Duration = Duration::from_secs(1);

/// The same after an error, for example because its role may not use the sequences.
pub(super) const AFTER_ERROR: Duration = Duration::from_secs(60);

/// Whether this worker takes turns.
#[derive(Debug, Default)]
pub(crate) struct ScanTurns {
    paused_until: Mutex<Option<Instant>>,
}

impl ScanTurns {
    pub(super) fn are_taken(&self, now: Instant) -> bool {
        let until = self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_none_or(|until| until <= now)
    }

    pub(super) fn pause(&self, now: Instant, length: Duration) {
        let mut until = self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = (*until).max(Some(now + length));
    }
}

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

    /// How many workers have this task, and how many of them come before this one.
    fn count(&self, task_identifier: &str) -> (usize, usize) {
        let has_task = |group: &&Group| group.task_identifiers.iter().any(|task| task == task_identifier);
        let groups = self.groups.iter().filter(has_task);
        groups.fold((0, 0), |(workers, before), group| (workers + group.workers, before + group.before))
    }

    /// Whether others have this task too.
    pub(super) fn has_others(&self, task_identifier: &str) -> bool {
        self.count(task_identifier).0 > 1
    }

    /// What this worker does about a job of one of the tasks that it has.
    fn answer_own(&self, id: i64, task_identifier: &str) -> Answer {
        let (workers, before) = self.count(task_identifier);
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
    fn turns_are_taken_again_after_the_longest_pause() {
        let (now, second, turns) = (Instant::now(), Duration::from_secs(1), ScanTurns::default());
        assert!(turns.are_taken(now));
        turns.pause(now, 60 * second);
        turns.pause(now, second);
        assert!(!turns.are_taken(now + 59 * second) && turns.are_taken(now + 60 * second));
    }

    #[test]
    fn a_worker_that_knows_no_other_asks_at_once() {
        let tasks = ["t".to_owned()];
        for fleet in [Fleet::default(), Fleet::new(vec![group(&["t"], 1, 0)])] {
            assert_eq!(fleet.answer(&tasks, -3, "t"), Answer::Now);
        }
    }
}
