//! Ending: stop claiming, let jobs finish, tell them, abort them, give back what is left, leave no lock.
//!
//! Steps, each only if the one before was not enough: jobs may finish for the grace period; then the token in their
//! context fires; after the abort period they are dropped; those that do not even yield are given back over their
//! heads; and if the database does not answer by then, the worker leaves without it.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::plan::Plan;
use crate::event::WorkerEvent;
use crate::{Error, Result};

/// How long a task that was dropped may take to yield.
const TO_YIELD: Duration = Duration::from_secs(1);

/// How long the last releases may take.
const TO_RELEASE: Duration = Duration::from_secs(30);

/// How long hooks may take to end.
const FOR_HOOKS: Duration = Duration::from_secs(1);

/// Supervisors and `timeout` send a signal to a process and to its group, so that it arrives twice. Signals that follow the
/// first one within this time are ignored.
const REPEATS: Duration = Duration::from_secs(5);

/// Ends a worker from elsewhere. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    shared: Arc<Shared>,
}

impl WorkerHandle {
    pub(super) fn new(shared: Arc<Shared>) -> WorkerHandle {
        WorkerHandle { shared }
    }

    /// Asks the worker to end in good order. Returns at once; `run` returns when it is done.
    pub fn request_shutdown(&self) {
        request(&self.shared, "requested by the application");
    }

    /// The same, with a reason for the log, the event `ShutdownStarted` and the hook `on_shutdown`.
    pub fn request_shutdown_with_reason(&self, reason: &str) {
        request(&self.shared, reason);
    }

    /// Asks the worker to end now: jobs that run are dropped and given back.
    pub fn abort(&self) {
        abort(&self.shared, "abort requested by the application");
    }

    /// Fires when the worker is asked to end. To cancel it ends nothing.
    pub fn shutdown_token(&self) -> CancellationToken {
        self.shared.stop.child_token()
    }

    /// The worker's name.
    pub fn worker_id(&self) -> &str {
        &self.shared.worker_id
    }
}

/// Ends the worker now.
pub(super) fn abort(shared: &Shared, reason: &str) {
    request(shared, reason);
    shared.cancel.cancel();
    shared.abort.cancel();
}

fn request(shared: &Shared, reason: &str) {
    if shared.stop.is_cancelled() {
        return;
    }
    tracing::info!(reason, "shutting down");
    shared.events.send(|| WorkerEvent::ShutdownStarted { reason: reason.into() });
    super::hooks::call_shutdown(shared, reason);
    shared.stop.cancel();
}

/// The first signal asks for an orderly end. Further signals are ignored for 5 s; after that, one asks for an immediate end.
/// Signals are caught from this call on.
pub(super) fn watch_signals(shared: Arc<Shared>) -> Result<impl Future<Output = ()> + Send + use<>> {
    use tokio::signal::unix::{SignalKind, signal};
    let watch =
        |kind| signal(kind).map_err(|error| Error::internal(format!("listening for signals: {error}")));
    let mut interrupt = watch(SignalKind::interrupt())?;
    let mut terminate = watch(SignalKind::terminate())?;
    let mut hangup = watch(SignalKind::hangup())?;
    Ok(async move {
        let mut first_at: Option<Instant> = None;
        loop {
            let name = tokio::select! {
                _ = interrupt.recv() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
                _ = hangup.recv() => "SIGHUP",
                () = shared.ended.cancelled() => return,
            };
            match first_at {
                None => {
                    first_at = Some(Instant::now());
                    request(&shared, name);
                }
                Some(first_at) if first_at.elapsed() < REPEATS => {
                    tracing::info!(signal = name, "already shutting down; a signal after 5 s aborts");
                }
                Some(_) => {
                    tracing::warn!(signal = name, "second signal: aborting");
                    shared.cancel.cancel();
                    shared.abort.cancel();
                    return;
                }
            }
        }
    })
}

/// Hooks of the last jobs.
pub(super) async fn finish_hooks(shared: &Shared) {
    shared.hook_tasks.close();
    if tokio::time::timeout(FOR_HOOKS, shared.hook_tasks.wait()).await.is_err() {
        report_failure(shared, "hooks did not return in time and were abandoned");
    }
    // `run_once` may be called again.
    shared.hook_tasks.reopen();
}

/// Logs and sends the event that the shutdown left something undone.
pub(super) fn report_failure(shared: &Shared, error: &str) {
    tracing::error!("{error}");
    shared.events.send(|| WorkerEvent::ShutdownFailed { error: error.into() });
}

/// What is to do now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait,
    Tell,
    Abort,
    Abandon,
    Leave,
}

/// How far the ending has come.
#[derive(Debug)]
pub(super) struct Shutdown {
    grace_period: Duration,
    abort_period: Duration,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Grace { until: Instant },
    Told { until: Instant },
    Aborting { until: Instant },
    Abandoned { until: Instant },
    Left,
}

impl Shutdown {
    pub(super) fn new(plan: &Plan) -> Shutdown {
        let (grace_period, abort_period) = (plan.shutdown_grace_period, plan.shutdown_abort_period);
        Shutdown { grace_period, abort_period, phase: Phase::Running }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.phase != Phase::Running
    }

    pub(super) fn is_in_grace(&self) -> bool {
        matches!(self.phase, Phase::Grace { until } if Instant::now() < until)
    }

    pub(super) fn is_aborting(&self) -> bool {
        matches!(self.phase, Phase::Aborting { .. } | Phase::Abandoned { .. } | Phase::Left)
    }

    pub(super) fn begin(&mut self) {
        if self.phase == Phase::Running {
            self.phase = Phase::Grace { until: Instant::now() + self.grace_period };
        }
    }

    /// Somebody has no patience: the jobs are being dropped already.
    pub(super) fn abort_now(&mut self) {
        self.phase = Phase::Aborting { until: Instant::now() + TO_YIELD };
    }

    pub(super) fn next_step(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running | Phase::Left => None,
            Phase::Grace { until }
            | Phase::Told { until }
            | Phase::Aborting { until }
            | Phase::Abandoned { until } => Some(until),
        }
    }

    /// Goes on to the next phase when the time of this one is over.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        if self.next_step().is_none_or(|until| now < until) {
            return Step::Wait;
        }
        let (phase, step) = match self.phase {
            Phase::Grace { .. } => (Phase::Told { until: now + self.abort_period }, Step::Tell),
            Phase::Told { .. } => (Phase::Aborting { until: now + TO_YIELD }, Step::Abort),
            Phase::Aborting { .. } => (Phase::Abandoned { until: now + TO_RELEASE }, Step::Abandon),
            Phase::Abandoned { .. } | Phase::Left | Phase::Running => (Phase::Left, Step::Leave),
        };
        self.phase = phase;
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_follows_when_the_one_before_was_not_enough() {
        let second = Duration::from_secs(1);
        let mut shutdown = Shutdown { grace_period: second, abort_period: second, phase: Phase::Running };
        assert_eq!(shutdown.step(Instant::now()), Step::Wait);
        shutdown.begin();
        let start = Instant::now();
        assert_eq!(shutdown.step(start), Step::Wait);
        let mut steps = Vec::new();
        for seconds in [2, 3, 4, 9, 14, 60, 120] {
            steps.push(shutdown.step(start + Duration::from_secs(seconds)));
        }
        assert_eq!(
            steps,
            [Step::Tell, Step::Abort, Step::Abandon, Step::Wait, Step::Wait, Step::Leave, Step::Wait]
        );
    }
}
