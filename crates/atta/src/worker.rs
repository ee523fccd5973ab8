//! The worker: a planner that decides, and a driver that acts.
//!
//! The modules of this folder follow the life of a job: [`wake`] learns that there may be jobs, [`planner`] decides what is
//! claimed when, [`driver`] is the loop that carries this out, [`claim`] claims jobs, [`list`], [`slots`] and [`run`] run
//! them, [`release`] writes their outcomes, and [`shutdown`] ends the worker. `recovery.rs` handles workers that end without
//! releasing their jobs.

mod options;
mod plan;
mod core;
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
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub(crate) use backoff::Backoff;
pub use flags::ForbiddenFlags;
pub use options::{Claims, IntoCron, WorkerOptions};
pub use pause::PausedTasks;
pub use plan::{LocalQueueConfig, RefetchDelay};
pub(crate) use shared::Shared;
pub use shutdown::WorkerHandle;

use self::core::Core;
use crate::event::{WorkerEvent, WorkerEvents};
use crate::recovery::Heartbeats;
use crate::{Error, Result, Schema, WorkerUtils};
use driver::Driver;
use plan::Plan;
use planner::Mode;

/// How many wake-ups may wait for the driver. More would carry no more information.
const WAKES_AHEAD: usize = 16;

/// How long an ending worker waits for its own tasks, and how long a worker that never started tries to deregister.
const GOODBYE: Duration = Duration::from_secs(2);

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

/// One run, on the worker's own thread.
struct Run {
    plan: Plan,
    shared: Arc<Shared>,
    mode: Mode,
    /// The application's runtime, on which tasks run.
    app: Handle,
}

impl Run {
    async fn run(self) -> Result<()> {
        let (shared, mode) = (&self.shared, self.mode);
        let mut heartbeats = Heartbeats::new(shared.clone());
        tokio::select! {
            ready = self.get_ready(&mut heartbeats) => ready?,
            // No job has been claimed yet.
            () = shared.stop.cancelled() => {
                // The worker may be registered. If the database does not answer, do not wait longer for it.
                let _ = tokio::time::timeout(GOODBYE, heartbeats.deregister()).await;
                return Ok(());
            }
        }
        report_start(shared, &self.plan);

        let (wake_sender, wakes) = mpsc::channel(WAKES_AHEAD);
        let look = Arc::new(Notify::new());
        let mut company = JoinSet::new();
        // Heartbeats and polls continue until the last job is released, so the shutdown does not stop them.
        let is_released = CancellationToken::new();
        let heartbeats = AbortOnDropHandle::new(tokio::spawn(heartbeats.run(is_released.clone())));
        hooks::call_start(shared).await;
        let poll = wake::poll(shared.clone(), wake_sender.clone(), look.clone());
        let poll = AbortOnDropHandle::new(tokio::spawn(poll));
        if mode == Mode::UntilShutdown {
            if let Some(config) = &self.plan.listen {
                let ears = listen::Ears { wakes: wake_sender.clone(), poll: look.clone() };
                company.spawn(listen::listen(shared.clone(), config.clone(), ears));
            }
            if self.plan.listen_os_shutdown_signals {
                // Signals are watched from here on, before the first job is claimed.
                company.spawn(shutdown::watch_signals(shared.clone())?);
            }
            self.plan.start_cron(shared, &mut company);
        }
        let driver = Driver::new(shared.clone(), &self.plan, mode, wakes, look, &self.app);
        let (ended, is_clear) = driver.run().await;

        if mode == Mode::UntilShutdown {
            shared.stop.cancel();
            shared.ended.cancel();
        }
        while company.join_next().await.is_some() {}
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
            let _ = tokio::time::timeout(GOODBYE, heartbeats.deregister()).await;
        }
        ready.map(drop)
    }
}

fn report_start(shared: &Shared, plan: &Plan) {
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

fn report_end(shared: &Shared, error: Option<&Error>) {
    tracing::info!(worker = &*shared.worker_id, "worker stopped");
    let error: Option<Arc<str>> = error.map(|error| error.to_string().into());
    if let Some(error) = &error {
        shared.events.send(|| WorkerEvent::FatalError { error: error.clone() });
    }
    shared.events.send(|| WorkerEvent::Stopped { error });
}
