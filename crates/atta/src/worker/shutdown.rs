//! What ends a worker: its handle, signals, and the hooks that run at the end. `planner/shutdown.rs` has the phases of
//! the end.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::Shared;
use crate::event::WorkerEvent;
use crate::{Error, Result};

/// How long hooks may take to end.
const FOR_HOOKS: Duration = Duration::from_secs(1);

/// Supervisors and `timeout` send a signal to a process and to its group, so that it arrives twice. Signals that follow
/// the first one within this time are ignored.
const REPEATS: Duration = Duration::from_secs(5);

/// Shuts a worker down from another place in the program. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    shared: Arc<Shared>,
}

impl WorkerHandle {
    pub(super) fn new(shared: Arc<Shared>) -> WorkerHandle {
        WorkerHandle { shared }
    }

    /// Requests a shutdown: the worker claims no more jobs and lets running jobs finish. Returns at once; `run` returns
    /// when the shutdown is complete.
    pub fn request_shutdown(&self) {
        request(&self.shared, "requested by the application");
    }

    /// The same, with a reason for the log, the event `ShutdownStarted` and the hook `on_shutdown`.
    pub fn request_shutdown_with_reason(&self, reason: &str) {
        request(&self.shared, reason);
    }

    /// Requests an abort: running tasks are dropped, and their jobs are returned.
    pub fn abort(&self) {
        abort(&self.shared, "abort requested by the application");
    }

    /// Is cancelled when a shutdown is requested. Cancelling it yourself has no effect on the worker.
    pub fn shutdown_token(&self) -> CancellationToken {
        self.shared.stop.child_token()
    }

    /// The worker's id.
    pub fn worker_id(&self) -> &str {
        &self.shared.worker_id
    }
}

/// Aborts the worker.
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

/// The first signal requests a shutdown. Further signals are ignored for 5 s; after that, a signal aborts the worker.
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

/// Waits for the hooks of the last jobs.
pub(super) async fn finish_hooks(shared: &Shared) {
    shared.hook_tasks.close();
    if tokio::time::timeout(FOR_HOOKS, shared.hook_tasks.wait()).await.is_err() {
        report_failure(shared, "hooks did not return in time and were abandoned");
    }
    // `run_once` may be called again.
    shared.hook_tasks.reopen();
}

/// Logs that the shutdown is incomplete, and sends the event.
pub(super) fn report_failure(shared: &Shared, error: &str) {
    tracing::error!("{error}");
    shared.events.send(|| WorkerEvent::ShutdownFailed { error: error.into() });
}
