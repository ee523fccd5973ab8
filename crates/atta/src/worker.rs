//! The worker: a planner that decides, and a driver that acts.
//!
//! The modules of this folder follow the life of a job: [`wake`] learns that there may be jobs, [`planner`] decides what is
//! claimed when, [`driver`] is the loop that carries this out, [`claim`] claims jobs, [`list`], [`slots`] and [`run`] run
//! them, [`release`] writes their outcomes, and [`shutdown`] ends the worker. `recovery.rs` handles workers that end without
//! releasing their jobs.

mod options;
mod plan;
mod core;
mod lifecycle;
mod wake;
mod listen;
mod notice;
mod fleet;
mod standing;
mod driver;
mod planner;
mod claim;
mod list;
mod slots;
mod run;
mod release;
mod shutdown;
mod flags;
mod pause;
mod hooks;
mod shared;
pub(crate) mod queries;
mod backoff;
#[cfg(test)]
mod simulation;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;

pub(crate) use backoff::Backoff;
pub use flags::ForbiddenFlags;
pub use options::{Claims, IntoCron, WorkerOptions};
pub use pause::PausedTasks;
pub use plan::{LocalQueueConfig, RefetchDelay};
pub(crate) use shared::Shared;
pub use shutdown::WorkerHandle;

use self::core::Core;
use crate::event::{WorkerEvent, WorkerEvents};
use crate::{Error, Result, Schema, WorkerUtils};
use lifecycle::{Run, report_end, report_start};
use plan::Plan;
use planner::Mode;

/// A worker, ready to run.
///
/// Its own work (claims, releases, heartbeats, LISTEN, cron) runs on its own thread. Tasks, hooks and flags functions
/// run on the runtime that calls [`Worker::run`] or has called [`WorkerOptions::init`]. They may block the threads of
/// that runtime without stopping the worker.
#[derive(Debug)]
pub struct Worker {
    plan: Plan,
    shared: Arc<Shared>,
    core: Core,
    is_running: Arc<AtomicBool>,
}

impl Worker {
    fn new(plan: Plan, shared: Shared) -> Result<Worker> {
        let worker =
            Worker { plan, shared: Arc::new(shared), core: Core::start()?, is_running: Arc::default() };
        let worker_id = &worker.shared.worker_id;
        worker.shared.events.send(|| WorkerEvent::Initialized { worker_id: worker_id.clone() });
        Ok(worker)
    }

    /// Runs jobs until a shutdown is requested, then drains and ends.
    ///
    /// Errors of the database do not end the worker. If the future is dropped, as `tokio::select!` does, the worker
    /// aborts: running tasks are dropped, their jobs are returned, and heartbeats stop. The abort happens in the
    /// background. If the process exits before it is finished, other workers recover the remaining jobs. To let running
    /// jobs finish, request a shutdown by the [`WorkerHandle`] instead. A worker runs only once: after a shutdown or an
    /// abort, `run` returns at once.
    ///
    /// Calling `run` or `run_once` while the worker is running is an error. To run more jobs at a time, set
    /// [`WorkerOptions::concurrency`], or create another worker.
    pub async fn run(&self) -> Result<()> {
        self.run_mode(Mode::UntilShutdown).await
    }

    /// Runs due jobs, and jobs that become due as a result, until none are left. Does not use cron or LISTEN.
    ///
    /// If the future is dropped, the worker aborts, as [`Worker::run`] does.
    pub async fn run_once(&self) -> Result<()> {
        self.run_mode(Mode::UntilEmpty).await
    }

    /// Adds and manages jobs, on the worker's pool.
    pub fn create_utils(&self) -> WorkerUtils {
        self.shared.utils.clone()
    }

    /// Shuts the worker down from another place in the program.
    pub fn handle(&self) -> WorkerHandle {
        WorkerHandle::new(self.shared.clone())
    }

    /// Requests a shutdown, as [`WorkerHandle::request_shutdown`] does.
    pub fn request_shutdown(&self) {
        self.handle().request_shutdown();
    }

    /// The schema that contains the jobs.
    pub fn schema(&self) -> &Schema {
        self.shared.utils.schema()
    }

    /// The events of the worker from now on.
    pub fn events(&self) -> WorkerEvents {
        self.shared.events.subscribe()
    }

    /// The id under which the worker locks jobs.
    pub fn id(&self) -> &str {
        &self.shared.worker_id
    }

    async fn run_mode(&self, mode: Mode) -> Result<()> {
        let Some(running) = Running::begin(&self.is_running) else {
            return match self.shared.stop.is_cancelled() {
                // The current run is about to end, and no other run starts.
                true => Ok(()),
                false => {
                    Err(Error::invalid_input(format!("worker {} is already running", self.shared.worker_id))
                        .with_hint(
                            "to run more jobs at a time, increase concurrency or create another worker",
                        ))
                }
            };
        };
        if mode == Mode::UntilEmpty && self.has_nothing_to_do().await {
            report_start(&self.shared, &self.plan);
            hooks::call_start(&self.shared).await;
            hooks::call_stop(&self.shared, None).await;
            report_end(&self.shared, None);
            return Ok(());
        }
        let run = Run { plan: self.plan.clone(), shared: self.shared.clone(), mode, app: Handle::current() };
        let aborts = AbortOnDrop { shared: &self.shared, is_armed: true };
        let run = async {
            let shared = run.shared.clone();
            let ended = run.run().await;
            report_end(&shared, ended.as_ref().err());
            drop(running);
            ended
        };
        let ended = self.core.spawn(run).await;
        aborts.disarm();
        ended.unwrap_or_else(|error| {
            let error = Error::internal(format!("running the worker: its thread panicked: {error}"));
            report_end(&self.shared, Some(&error));
            Err(error)
        })
    }

    /// Whether no job is due. Then the run needs no connections of its own and no registration. If this query fails,
    /// the run itself goes on and reports the error.
    async fn has_nothing_to_do(&self) -> bool {
        wake::find_nothing(&self.shared).await.unwrap_or(false)
    }
}

/// A run that has started. Two runs at a time would use one worker id, and each would return the jobs of the other.
struct Running(Arc<AtomicBool>);

impl Running {
    /// None if a run has already started.
    fn begin(is_running: &Arc<AtomicBool>) -> Option<Running> {
        (!is_running.swap(true, Ordering::SeqCst)).then(|| Running(is_running.clone()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Aborts the worker if the future of its run is dropped before it has ended.
struct AbortOnDrop<'a> {
    shared: &'a Shared,
    is_armed: bool,
}

impl AbortOnDrop<'_> {
    fn disarm(mut self) {
        self.is_armed = false;
    }
}

impl Drop for AbortOnDrop<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            shutdown::abort(self.shared, "running the worker: the future of run was dropped");
        }
    }
}
