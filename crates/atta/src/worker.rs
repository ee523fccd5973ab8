//! The worker: one task that owns the state, and selects over a closed set of events.
//!
//! The way of a job reads through this folder: [`wake`] hears that there may be jobs, [`claim`] takes them,
//! [`slots`] and [`run`] run them, [`release`] writes what became of them, [`shutdown`] brings it all to an end.
//! What happens when a worker can't do the last is in `recovery.rs`.
//!
//! [`owner`] is the one task that has the state and decides; everything else acts for it.

mod options;
mod plan;
mod wake;
mod notice;
mod owner;
mod lanes;
mod claim;
mod hold;
mod promote;
mod scan;
mod batches;
mod slots;
mod run;
mod release;
mod shutdown;
mod flags;
mod hooks;
mod shared;
mod backoff;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub(crate) use backoff::Backoff;
pub use flags::ForbiddenFlags;
pub use options::{Claims, IntoCron, WorkerOptions};
pub use plan::{LocalQueueConfig, RefetchDelay};
pub(crate) use shared::Shared;
pub use shutdown::WorkerHandle;

use crate::event::{WorkerEvent, WorkerEvents};
use crate::recovery::Heartbeats;
use crate::{Result, WorkerUtils};
use owner::{Mode, Owner};
use plan::Plan;

/// Hints that wait for the loop: more would not say more.
const WAKES_AHEAD: usize = 16;

/// How long a worker that ends waits for its own tasks, and one that never began tries to deregister.
const GOODBYE: Duration = Duration::from_secs(2);

/// A worker, ready to run.
#[derive(Debug)]
pub struct Worker {
    plan: Plan,
    shared: Arc<Shared>,
}

impl Worker {
    fn new(plan: Plan, shared: Shared) -> Worker {
        Worker { plan, shared: Arc::new(shared) }
    }

    /// Runs jobs until a shutdown is asked for, and then ends in good order.
    ///
    /// Errors of the database do not end it. Not cancel safe: ask for a shutdown by the [`WorkerHandle`] instead of
    /// dropping the future, or the jobs that it has stay locked until another worker finds it dead.
    pub async fn run(&self) -> Result<()> {
        self.run_mode(Mode::UntilShutdown).await
    }

    /// Runs the jobs that are due, and those that become due by it, until there are none left. No cron, no LISTEN.
    pub async fn run_once(&self) -> Result<()> {
        self.run_mode(Mode::UntilEmpty).await
    }

    /// Adds jobs and looks after them, on the worker's pool.
    pub fn create_utils(&self) -> WorkerUtils {
        self.shared.utils.clone()
    }

    /// Ends the worker from elsewhere.
    pub fn handle(&self) -> WorkerHandle {
        WorkerHandle::new(self.shared.clone())
    }

    /// What happens in the worker from now on.
    pub fn events(&self) -> WorkerEvents {
        self.shared.events.subscribe()
    }

    /// The name under which it locks jobs.
    pub fn id(&self) -> &str {
        &self.shared.worker_id
    }

    async fn run_mode(&self, mode: Mode) -> Result<()> {
        let shared = &self.shared;
        if mode == Mode::UntilEmpty && self.has_nothing_to_do().await {
            self.tell_start();
            self.tell_end();
            return Ok(());
        }
        let mut heartbeats = Heartbeats::new(shared.clone());
        tokio::select! {
            ready = self.get_ready(&mut heartbeats) => ready?,
            // Nothing was claimed yet.
            () = shared.stop.cancelled() => {
                // It may be registered. Where nobody answers, that is not worth waiting for.
                let _ = tokio::time::timeout(GOODBYE, heartbeats.deregister()).await;
                self.tell_end();
                return Ok(());
            }
        }
        self.tell_start();

        let (wake_sender, wakes) = mpsc::channel(WAKES_AHEAD);
        let look = Arc::new(Notify::new());
        let mut company = JoinSet::new();
        // Heartbeats and polls go on until the last job is released, so the shutdown does not stop them.
        let is_released = CancellationToken::new();
        let heartbeats = AbortOnDropHandle::new(tokio::spawn(heartbeats.run(is_released.clone())));
        let poll = wake::poll(shared.clone(), wake_sender.clone(), look.clone());
        let poll = AbortOnDropHandle::new(tokio::spawn(poll));
        if mode == Mode::UntilShutdown {
            if let Some(config) = &self.plan.listen {
                company.spawn(wake::listen(shared.clone(), config.clone(), wake_sender.clone()));
            }
            if self.plan.listen_os_shutdown_signals {
                // Watched from here on, before the first job is claimed.
                company.spawn(shutdown::watch_signals(shared.clone())?);
            }
            self.plan.start_cron(shared, &mut company);
        }
        let (ended, is_clear) = Owner::new(self, mode, wakes, look).run().await;

        if mode == Mode::UntilShutdown {
            shared.stop.cancel();
            shared.ended.cancel();
        }
        while company.join_next().await.is_some() {}
        poll.abort();
        // Aborted or panicked, it has ended. A task that blocks its thread may keep it from being told so.
        let _ = tokio::time::timeout(GOODBYE, poll).await;
        shutdown::finish_hooks(shared).await;
        is_released.cancel();
        // A worker that exits with unreleased locks stays registered, so that others recover them.
        let heartbeats = tokio::time::timeout(GOODBYE, heartbeats).await;
        if is_clear {
            let mut heartbeats = match heartbeats {
                Ok(Ok(heartbeats)) => heartbeats,
                // It is aborted, or has panicked. A new connection does as well.
                _ => Heartbeats::new(shared.clone()),
            };
            heartbeats.deregister().await;
        }
        self.tell_end();
        ended
    }

    /// Registers the worker, and opens its connections.
    async fn get_ready(&self, heartbeats: &mut Heartbeats) -> Result<()> {
        let (shared, patience) = (&self.shared, self.plan.patience);
        let open_lanes = async {
            match self.plan.has_own_lanes {
                true => patience.ask(|| lanes::warm_up(&shared.lane_pool)).await,
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
            let _ = tokio::time::timeout(GOODBYE, heartbeats.deregister()).await;
        }
        ready.map(drop)
    }

    /// A run that finds no job needs none of what running jobs takes: no connections of its own, no registration. If
    /// the question fails, the run itself tells why.
    async fn has_nothing_to_do(&self) -> bool {
        wake::find_nothing(&self.shared).await.unwrap_or(false)
    }

    fn tell_start(&self) {
        let shared = &self.shared;
        tracing::info!(worker = &*shared.worker_id, tasks = ?shared.task_identifiers, "worker started");
        shared.events.send(|| WorkerEvent::Started { worker_id: shared.worker_id.clone() });
    }

    fn tell_end(&self) {
        tracing::info!(worker = &*self.shared.worker_id, "worker stopped");
        self.shared.events.send(|| WorkerEvent::Stopped);
    }
}
