//! One run of a worker, from its registration to its last report: starts the tasks that a worker consists of, and ends
//! them in the opposite order.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::driver::Driver;
use super::plan::Plan;
use super::planner::Mode;
use super::{Shared, claim, hooks, listen, shutdown, wake};
use crate::event::WorkerEvent;
use crate::recovery::Heartbeats;
use crate::{Error, Result};

/// How many wake-ups may wait for the driver. More would carry no more information.
const WAKES_AHEAD: usize = 16;

/// How long a worker that could not start tries to deregister.
const TO_DEREGISTER: Duration = Duration::from_secs(2);

/// One run, on the worker's own thread.
pub(super) struct Run {
    pub(super) plan: Plan,
    pub(super) shared: Arc<Shared>,
    pub(super) mode: Mode,
    /// The application's runtime, on which tasks run.
    pub(super) app: Handle,
}

impl Run {
    pub(super) async fn run(self) -> Result<()> {
        let (shared, mode) = (&self.shared, self.mode);
        let mut heartbeats = Heartbeats::new(shared.clone());
        tokio::select! {
            ready = self.get_ready(&mut heartbeats) => ready?,
            // No job has been claimed yet.
            () = shared.stop.cancelled() => {
                // The worker may be registered. If the database does not answer, do not wait longer for it.
                let _ = tokio::time::timeout(TO_DEREGISTER, heartbeats.deregister()).await;
                return Ok(());
            }
        }
        report_start(shared, &self.plan);

        let (wake_sender, wakes) = mpsc::channel(WAKES_AHEAD);
        let poll_request = Arc::new(Notify::new());
        let mut background = JoinSet::new();
        // Heartbeats and polls continue until the last job is released, so the shutdown does not stop them.
        let is_released = CancellationToken::new();
        let heartbeats = AbortOnDropHandle::new(tokio::spawn(heartbeats.run(is_released.clone())));
        hooks::call_start(shared).await;
        let poll = wake::poll(shared.clone(), wake_sender.clone(), poll_request.clone());
        let poll = AbortOnDropHandle::new(tokio::spawn(poll));
        if mode == Mode::UntilShutdown {
            if let Some(config) = &self.plan.listen {
                let senders = listen::WakeSenders { wakes: wake_sender.clone(), poll: poll_request.clone() };
                background.spawn(listen::listen(shared.clone(), config.clone(), senders));
            }
            if self.plan.listen_os_shutdown_signals {
                // Signals are watched from here on, before the first job is claimed.
                background.spawn(shutdown::watch_signals(shared.clone())?);
            }
            self.plan.start_cron(shared, &mut background);
        }
        let driver = Driver::new(shared.clone(), &self.plan, mode, wakes, poll_request, &self.app);
        let (ended, is_clear) = driver.run().await;

        if mode == Mode::UntilShutdown {
            shared.stop.cancel();
            shared.ended.cancel();
        }
        while background.join_next().await.is_some() {}
        poll.abort();
        // The result does not matter: aborted or panicked, the task has ended.
        let _ = poll.await;
        shutdown::finish_hooks(shared).await;
        is_released.cancel();
        // A worker that exits with unreleased locks stays registered, so that others recover them.
        let heartbeats = heartbeats.await;
        if is_clear {
            let mut heartbeats = match heartbeats {
                Ok(heartbeats) => heartbeats,
                // The task panicked. Deregister on a new connection.
                Err(_) => Heartbeats::new(shared.clone()),
            };
            heartbeats.deregister().await;
        } else {
            shutdown::report_failure(
                shared,
                "not all jobs are released; other workers will recover the rest",
            );
        }
        hooks::call_stop(shared, ended.as_ref().err()).await;
        ended
    }

    /// Registers the worker, and opens its connections.
    async fn get_ready(&self, heartbeats: &mut Heartbeats) -> Result<()> {
        let (shared, patience) = (&self.shared, self.plan.patience);
        let open_lanes = async {
            match self.plan.has_own_lanes {
                true => patience.ask(|| claim::warm_up(shared)).await,
                false => Ok(()),
            }
        };
        let mut may_be_registered = true;
        let register = async {
            let heartbeats = &tokio::sync::Mutex::new(&mut *heartbeats);
            let registered = patience.ask(|| async move { heartbeats.lock().await.register().await }).await;
            may_be_registered = registered.is_ok();
            registered
        };
        let ready = tokio::try_join!(register, open_lanes);
        if ready.is_err() && may_be_registered {
            let _ = tokio::time::timeout(TO_DEREGISTER, heartbeats.deregister()).await;
        }
        ready.map(drop)
    }
}

pub(super) fn report_start(shared: &Shared, plan: &Plan) {
    let worker = &*shared.worker_id;
    tracing::info!(
        worker,
        database = plan.database.as_deref(),
        schema = shared.utils.schema().name(),
        slots = shared.slots,
        tasks = shared.task_identifiers.len(),
        cron_items = plan.cron.list().len(),
        "worker started"
    );
    tracing::debug!(worker, tasks = ?shared.task_identifiers, "the tasks of the worker");
    shared.events.send(|| WorkerEvent::Started { worker_id: shared.worker_id.clone() });
}

pub(super) fn report_end(shared: &Shared, error: Option<&Error>) {
    tracing::info!(worker = &*shared.worker_id, "worker stopped");
    let error: Option<Arc<str>> = error.map(|error| error.to_string().into());
    if let Some(error) = &error {
        shared.events.send(|| WorkerEvent::FatalError { error: error.clone() });
    }
    shared.events.send(|| WorkerEvent::Stopped { error });
}
