//! Keeps the process of a host alive, and publishes its phase: starting, ready, failed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Shared, life};

/// The pause before a host is started again grows from the first to the second value.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A host that was ready and lived this long counts as stable.
const STEADY: Duration = Duration::from_secs(10);

/// How long loading may take before that is logged, and before a worker starts without the tasks of the host.
pub(crate) const SLOW_LOAD: Duration = Duration::from_secs(5);

/// How far the host has come with loading its tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) phase: Phase,
    /// How many processes were ready and died.
    pub(super) deaths: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// The process is being started, or waits for that.
    #[default]
    Starting,
    /// It runs jobs. Has the tasks that could not be loaded, and why.
    Ready(Vec<(String, String)>),
    /// The process ended before it was ready, in this way, and is started again later.
    Failed(String),
}

/// Keeps a process alive until the host is closed.
pub(super) async fn supervise(shared: Arc<Shared>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        let how = life::live(&shared).await;
        if shared.closing.is_cancelled() {
            break;
        }
        let was_ready = shared.on_end(&how);
        if was_ready && began.elapsed() >= STEADY {
            pause = FIRST_PAUSE;
        }
        shared.log_end(&how, was_ready, pause);
        if !was_ready {
            shared.is_repeating.store(true, Ordering::Relaxed);
            shared.load.send_modify(|load| load.phase = Phase::Failed(how));
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shared.closing.cancelled() => break,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    shared.lock().end_process(&format!("the {} host of the task was closed", shared.program.name));
}

impl Shared {
    /// The process has loaded its tasks.
    pub(super) fn on_ready(&self, version: &str, reports_start: bool) {
        let name = self.program.name.as_str();
        let Some(broken) = self.lock().become_ready(reports_start) else { return };
        let is_first = *self.load.borrow() == Load::default();
        if !is_first || self.logs_first_load {
            for (task, error) in &broken {
                tracing::error!(task, "the task can't be loaded, so its jobs are not claimed: {error}");
            }
        }
        let was_slow = self.is_slow.swap(false, Ordering::Relaxed);
        match is_first && !was_slow {
            true => tracing::debug!(host = name, version, "the host is ready"),
            false => {
                tracing::info!(host = name, version, "the host is ready; its jobs are claimed")
            }
        }
        self.is_repeating.store(false, Ordering::Relaxed);
        let is_broken = |task: &str| broken.iter().any(|(known, _)| known == task);
        let sound = self.tasks.iter().map(|(task, _)| task.as_str()).filter(|task| !is_broken(task));
        self.paused.resume(sound);
        self.load.send_modify(|load| load.phase = Phase::Ready(broken.clone()));
    }

    /// Logs a warning if the host is still loading: a host that never reports that it is ready gets no jobs.
    pub(super) fn warn_if_loading(&self) {
        if !self.lock().is_ready() {
            self.is_slow.store(true, Ordering::Relaxed);
            let host = self.program.name.as_str();
            tracing::warn!(
                host,
                "the host is still loading its tasks: its jobs are not claimed until it is ready; jobs of other tasks run \
                 meanwhile"
            );
        }
    }

    /// The process has ended. Returns whether it was ready.
    fn on_end(&self, how: &str) -> bool {
        // First, so that jobs that are returned here are not claimed again.
        self.pause_tasks();
        let was_ready = self.lock().is_ready();
        if was_ready {
            // Before any run can end because of the results below: their callers must already see this.
            self.load.send_modify(|load| (load.phase, load.deaths) = (Phase::Starting, load.deaths + 1));
        }
        let name = &self.program.name;
        self.lock().end_process(&format!("the {name} host died while it ran the task: {how}"));
        was_ready
    }

    /// Logs the end, once per change of state.
    fn log_end(&self, how: &str, was_ready: bool, pause: Duration) {
        let host = self.program.name.as_str();
        if was_ready {
            return tracing::error!(
                host,
                how,
                "the host died; it is restarted in {pause:?}, and its jobs are not claimed until it is ready"
            );
        }
        // Only the first line is compared: its output may contain a time or a number.
        let kind = |how: &str| how.lines().next().unwrap_or_default().to_owned();
        let last = match &self.load.borrow().phase {
            Phase::Failed(last) => Some(kind(last)),
            _ => None,
        };
        let is_first = *self.load.borrow() == Load::default();
        if last.is_some_and(|last| last == kind(how)) || (is_first && !self.logs_first_load) {
            return tracing::debug!(host, how, "the host ended again before it was ready");
        }
        tracing::error!(
            host,
            how,
            "the host ended before it was ready; its jobs are not claimed until it is; it is restarted at \
             intervals of up to {LONGEST_PAUSE:?}"
        );
    }
}
