//! Paused tasks: tasks whose jobs a worker does not claim for now.
//!
//! The application changes the set while the worker runs. The driver receives each change, and the planner claims by
//! the new set. A job that was claimed before and has not begun is returned.

use std::collections::BTreeSet;

use tokio::sync::watch;

/// Tasks whose jobs a worker does not claim for now, because what runs them is not ready, for example. Cheap to clone: all
/// clones are one set, which may change while the worker runs.
///
/// A job that runs already is not affected. A job that the worker has claimed and not begun is returned, and its attempt
/// does not count. Jobs of paused tasks stay in the database, where other workers find them.
///
/// ```
/// use atta::{PausedTasks, WorkerOptions};
///
/// let paused = PausedTasks::default();
/// paused.pause(["send_email"]);
/// let options = WorkerOptions::default().paused_tasks(paused.clone());
/// // Later, when the mail server answers:
/// paused.resume(["send_email"]);
/// # drop(options);
/// ```
#[derive(Clone, Debug, Default)]
pub struct PausedTasks {
    identifiers: watch::Sender<BTreeSet<String>>,
}

impl PausedTasks {
    /// Stops claims of jobs of these tasks. A claim that is under way may still bring some, which are returned.
    pub fn pause(&self, identifiers: impl IntoIterator<Item = impl Into<String>>) {
        let mut more: BTreeSet<String> = identifiers.into_iter().map(Into::into).collect();
        self.identifiers.send_if_modified(|paused| {
            let before = paused.len();
            paused.append(&mut more);
            paused.len() != before
        });
    }

    /// Claims jobs of these tasks again.
    pub fn resume(&self, identifiers: impl IntoIterator<Item = impl AsRef<str>>) {
        self.identifiers.send_if_modified(|paused| {
            let before = paused.len();
            identifiers.into_iter().for_each(|identifier| drop(paused.take(identifier.as_ref())));
            paused.len() != before
        });
    }

    /// Whether jobs of this task are not claimed now.
    pub fn contains(&self, identifier: &str) -> bool {
        let paused = self.identifiers.borrow();
        !paused.is_empty() && paused.contains(identifier)
    }

    /// Receives changes from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<BTreeSet<String>> {
        self.identifiers.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_is_received() {
        let paused = PausedTasks::default();
        let changes = paused.changes();
        paused.resume(["a"]);
        paused.pause(Vec::<String>::new());
        assert!(!changes.has_changed().unwrap());
        paused.clone().pause(["a", "b"]);
        assert!(changes.has_changed().unwrap() && paused.contains("a") && !paused.contains("c"));
        paused.resume(["a", "c"]);
        assert!(!paused.contains("a") && paused.contains("b"));
    }
}
