//! Which tasks' jobs are held, and which are claimed durably because the task is slow.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct TaskSplit {
    /// The tasks that are not paused.
    active: Vec<String>,
    /// Their jobs are claimed durably even without a queue.
    durable: Vec<String>,
    durations: Durations,
    /// The lists are out of date: a task has become slow or quick, was paused or resumed, or jobs are held no longer,
    /// or again.
    has_changed: bool,
    held_before: bool,
}

impl TaskSplit {
    pub(super) fn new(active: Vec<String>, hold_budget: Duration) -> TaskSplit {
        TaskSplit {
            active,
            durable: Vec::new(),
            durations: Durations::new(hold_budget),
            has_changed: true,
            held_before: false,
        }
    }

    /// The tasks whose jobs may be claimed.
    pub(super) fn active(&self) -> &[String] {
        &self.active
    }

    /// Those whose jobs are claimed durably even without a queue.
    pub(super) fn durable(&self) -> &[String] {
        &self.durable
    }

    pub(super) fn set_active(&mut self, active: Vec<String>) {
        (self.active, self.has_changed) = (active, true);
    }

    /// A job of the task has taken this time.
    pub(super) fn learn(&mut self, task_identifier: &str, took: Duration) {
        self.has_changed |= self.durations.learn(task_identifier, took);
    }

    /// Whether the lists are out of date. Then no durable claim is sent.
    pub(super) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Notes whether jobs are held at all now.
    pub(super) fn note_holds(&mut self, holds: bool) {
        self.has_changed |= self.held_before != holds;
    }

    /// Brings the lists up to date. Returns the tasks whose jobs are held.
    pub(super) fn split(&mut self, holds: bool) -> Vec<Arc<str>> {
        (self.has_changed, self.held_before) = (false, holds);
        let (durable, held): (Vec<&String>, Vec<&String>) =
            self.active.iter().partition(|task| !holds || self.durations.is_slow(task));
        let held = held.iter().map(|task| task.as_str().into()).collect();
        self.durable = durable.into_iter().cloned().collect();
        held
    }
}

/// The average duration of the jobs of each task.
#[derive(Debug)]
struct Durations {
    /// A task whose average is above this is slow.
    limit: f64,
    averages: HashMap<Arc<str>, f64>,
}

impl Durations {
    fn new(budget: Duration) -> Durations {
        Durations { limit: budget.as_secs_f64() / 2.0, averages: HashMap::new() }
    }

    /// Returns whether the task has become slow by it, or quick.
    fn learn(&mut self, task_identifier: &str, took: Duration) -> bool {
        let took = took.as_secs_f64();
        let Some(average) = self.averages.get_mut(task_identifier) else {
            self.averages.insert(task_identifier.into(), took);
            return took > self.limit;
        };
        let was_slow = *average > self.limit;
        *average += (took - *average) / 8.0;
        was_slow != (*average > self.limit)
    }

    fn is_slow(&self, task_identifier: &str) -> bool {
        self.averages.get(task_identifier).is_some_and(|average| *average > self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_slow_by_its_average() {
        let mut durations = Durations::new(Duration::from_millis(50));
        assert!(!durations.is_slow("t"));
        let changes = (0..20).filter(|_| durations.learn("t", Duration::from_millis(100))).count();
        assert!(durations.is_slow("t") && changes == 1);
        let changes = (0..20).filter(|_| durations.learn("t", Duration::from_millis(1))).count();
        assert!(!durations.is_slow("t") && changes == 1);
    }

    #[test]
    fn jobs_of_slow_tasks_are_claimed_durably_and_all_jobs_if_nothing_is_held() {
        let mut tasks = TaskSplit::new(vec!["quick".into(), "slow".into()], Duration::from_millis(50));
        assert!(tasks.has_changed());
        assert_eq!(tasks.split(true), ["quick".into(), "slow".into()], "an unknown task counts as quick");
        tasks.learn("quick", Duration::from_millis(1));
        assert!(!tasks.has_changed());
        tasks.learn("slow", Duration::from_millis(100));
        assert!(tasks.has_changed());
        assert_eq!(tasks.split(true), ["quick".into()]);
        assert_eq!(tasks.durable(), ["slow"]);
        tasks.note_holds(false);
        assert!(tasks.has_changed() && tasks.split(false).is_empty());
        assert_eq!(tasks.durable(), ["quick", "slow"]);
        tasks.set_active(vec!["slow".into()]);
        assert!(tasks.has_changed() && tasks.split(true).is_empty());
    }
}
