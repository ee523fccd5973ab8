//! The folder of tasks: each file is a task, in any language.
//!
//! There are two ways to run a task. An *executable* is started for each job and uses Graphile Worker's protocol of
//! environment variables and standard input. A *hosted* task is a function in a `.js`, `.ts` or `.py` file, loaded once
//! by a host process of its language, which stays and runs many jobs at a time. `discover.rs` decides which file is
//! which.
//!
//! The folder is read once: to see a change, close it and open it again.

mod discover;
mod executable;
mod guard;
mod host;
mod lines;
mod runtime;
mod wire;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use atta::{PausedTasks, Worker, WorkerOptions};
use tokio::time::Instant;

use crate::output::Failure;
use discover::{Found, Kind};
use executable::Executable;
use guard::Guard;
use host::{Host, SLOW_LOAD};
use runtime::Runtime;

/// If this process was started as the guard of task processes, acts as the guard until its end, and returns true. Call
/// this before anything else.
pub(crate) fn serve_as_guard() -> bool {
    guard::serve()
}

/// The settings of a folder of tasks.
#[derive(Clone, Debug)]
pub(crate) struct TasksSettings {
    /// Where the tasks are.
    pub(crate) folder: PathBuf,
    /// How long a job of any task may run. `None`: no limit.
    pub(crate) time_limit: Option<Duration>,
    /// The same for single tasks, by identifier; it overrides the limit for all.
    pub(crate) time_limits: HashMap<String, Duration>,
    /// The time between the request to end (SIGTERM, an abort signal) and SIGKILL.
    pub(crate) kill_after: Duration,
    /// The connection string for the database connections of hosted tasks. Empty: the environment decides.
    pub(crate) connection: String,
    /// The schema that contains the jobs.
    pub(crate) schema: String,
    /// How many jobs run at a time, so that a host can prepare for as many.
    pub(crate) concurrency: usize,
    /// Whether tasks of a language that is not installed are skipped with a warning instead of an error.
    pub(crate) leaves_out: bool,
    /// Whether tasks that can't be loaded are logged and not claimed, instead of an error.
    pub(crate) allows_broken: bool,
}

/// An open folder of tasks.
pub(crate) struct TasksFolder {
    tasks: Vec<Task>,
    hosts: Vec<Arc<Host>>,
    guard: Arc<Guard>,
    /// The tasks whose hosts are not ready, or could not load them.
    paused: PausedTasks,
}

/// How far the hosts have come with loading their tasks.
pub(crate) struct Loaded {
    /// What could not be loaded, and why.
    pub(crate) broken: Vec<String>,
    /// Whether no host is still loading.
    is_complete: bool,
}

struct Task {
    identifier: String,
    time_limit: Option<Duration>,
    way: Way,
}

enum Way {
    Executable(Arc<Executable>),
    Hosted(Arc<Host>),
}

impl TasksFolder {
    /// Reads the folder. [`TasksFolder::define`] starts the hosts that its tasks need.
    pub(crate) async fn open(settings: TasksSettings) -> Result<TasksFolder, Failure> {
        let mut found = discover::discover(&settings.folder)?;
        let guard = Arc::new(Guard::new(settings.kill_after));
        let paused = PausedTasks::default();
        let mut opening = Opening { settings: &settings, guard, hosts: Vec::new() };
        // All required programs must exist before the first is started.
        for (runtime, tasks) in by_runtime(&found) {
            let program = match runtime.program() {
                Ok(program) => program,
                Err(failure) if settings.leaves_out => {
                    found.retain(|task| task.kind != Kind::Hosted(runtime.clone()));
                    tracing::warn!("{}; their jobs are not claimed", failure.with_hint_in_line());
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let host = Host::new(program, tasks, &settings, opening.guard.clone(), paused.clone());
            opening.hosts.push((runtime, Arc::new(host)));
        }
        let tasks = found.into_iter().map(|found| opening.task(found)).collect();
        let hosts: Vec<Arc<Host>> = opening.hosts.into_iter().map(|(_, host)| host).collect();
        Ok(TasksFolder { tasks, hosts, guard: opening.guard, paused })
    }

    /// The tasks that were found, in alphabetical order.
    pub(crate) fn identifiers(&self) -> Vec<String> {
        self.tasks.iter().map(|task| task.identifier.clone()).collect()
    }

    /// Registers all tasks of the folder with a worker, and starts the hosts. The worker claims no job of a task whose
    /// host is not ready, or could not load it.
    pub(crate) fn define(&self, options: WorkerOptions) -> WorkerOptions {
        self.hosts.iter().for_each(|host| host.start());
        let mut options = options.paused_tasks(self.paused.clone());
        for task in &self.tasks {
            let limit = task.time_limit;
            options = match &task.way {
                Way::Executable(executable) => {
                    let executable = executable.clone();
                    options.define_raw_job(&task.identifier, move |ctx| executable.clone().run(ctx, limit))
                }
                Way::Hosted(host) => {
                    let host = host.clone();
                    options.define_raw_job(&task.identifier, move |ctx| host.clone().run(ctx, limit))
                }
            };
        }
        options
    }

    /// Waits until all hosts have loaded their tasks, but not for hosts that take long. Cancel safe.
    pub(crate) async fn loaded_soon(&self) -> Loaded {
        let deadline = Instant::now() + SLOW_LOAD;
        let mut loaded = Loaded { broken: Vec::new(), is_complete: true };
        for host in &self.hosts {
            match tokio::time::timeout_at(deadline, host.loaded()).await {
                Ok(broken) => loaded.broken.extend(broken),
                Err(_) => loaded.is_complete = false,
            }
        }
        loaded
    }

    /// Waits until all hosts have loaded their tasks. Cancel safe.
    async fn loaded(&self) {
        for host in &self.hosts {
            host.loaded().await;
        }
    }

    /// Returns when a host has failed to load its tasks at its first start. Never returns if none does. Cancel safe.
    pub(crate) async fn broken_late(&self) -> Vec<String> {
        let mut loads: Vec<_> = self.hosts.iter().map(|host| Box::pin(host.broken_at_first())).collect();
        std::future::poll_fn(|context| {
            for load in &mut loads {
                if let Poll::Ready(broken) = load.as_mut().poll(context) {
                    return Poll::Ready(broken);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Runs due jobs. The jobs of a host that takes long to load its tasks run after the others. If a host dies
    /// meanwhile, its jobs wait until it is ready again. A shutdown ends the wait.
    pub(crate) async fn run_once(&self, worker: &Worker) -> Result<(), Failure> {
        let shutdown = worker.handle().shutdown_token();
        let Some(loaded) = shutdown.run_until_cancelled(self.loaded_soon()).await else { return Ok(()) };
        if !loaded.is_complete {
            worker.run_once().await?;
            if shutdown.run_until_cancelled(self.loaded()).await.is_none() {
                return Ok(());
            }
        }
        loop {
            let before = self.deaths();
            worker.run_once().await?;
            if self.deaths() == before {
                return Ok(());
            }
            for host in &self.hosts {
                let Some(back) = shutdown.run_until_cancelled(host.come_back()).await else { return Ok(()) };
                back.map_err(|error| {
                    Failure::new(error).with_hint("jobs of its tasks were returned without losing an attempt")
                })?;
            }
        }
    }

    fn deaths(&self) -> u64 {
        self.hosts.iter().map(|host| host.deaths()).sum()
    }

    /// Ends the hosts, and all other processes that were started and still run. Call it when the worker has ended.
    pub(crate) async fn close(self) {
        for host in &self.hosts {
            host.close().await;
        }
        self.guard.end_all();
    }
}

/// The parts from which the tasks are created.
struct Opening<'a> {
    settings: &'a TasksSettings,
    guard: Arc<Guard>,
    hosts: Vec<(Runtime, Arc<Host>)>,
}

impl Opening<'_> {
    fn task(&self, found: Found) -> Task {
        let limits = &self.settings.time_limits;
        let time_limit = limits.get(&found.identifier).copied().or(self.settings.time_limit);
        let hosted = |runtime: &Runtime| self.hosts.iter().find(|(known, _)| known == runtime);
        let way = match &found.kind {
            Kind::Hosted(runtime) => hosted(runtime).map(|(_, host)| Way::Hosted(host.clone())),
            Kind::Executable => None,
        };
        let way = way.unwrap_or_else(|| {
            let (kill_after, guard) = (self.settings.kill_after, self.guard.clone());
            Way::Executable(Arc::new(Executable { path: found.path, kill_after, guard }))
        });
        Task { identifier: found.identifier, time_limit, way }
    }
}

/// The hosted tasks of each runtime: identifier and path.
fn by_runtime(found: &[Found]) -> Vec<(Runtime, Vec<(String, PathBuf)>)> {
    let mut runtimes: Vec<(Runtime, Vec<(String, PathBuf)>)> = Vec::new();
    for task in found {
        let Kind::Hosted(runtime) = &task.kind else { continue };
        let entry = (task.identifier.clone(), task.path.clone());
        match runtimes.iter_mut().find(|(known, _)| known == runtime) {
            Some((_, tasks)) => tasks.push(entry),
            None => runtimes.push((runtime.clone(), vec![entry])),
        }
    }
    runtimes
}
