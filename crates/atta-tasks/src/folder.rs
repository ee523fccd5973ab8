//! The folder of tasks: each file is a task, in any language.
//!
//! There are two ways to run a task. An *executable* is started for each job and uses Graphile Worker's protocol of
//! environment variables and standard input. A *hosted* task is a function in a `.js`, `.ts` or `.py` file, loaded once
//! by a host process of its language, which stays and runs many jobs at a time. `discover.rs` decides which file is
//! which.
//!
//! The folder is read once: to see a change, close it and open it again.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use atta::{Error, PausedTasks, Result, Worker, WorkerOptions};
use tokio::time::Instant;

use crate::discover::{self, Found, Kind};
use crate::executable::Executable;
use crate::guard::{self, Guard};
use crate::host::{Host, SLOW_LOAD};
use crate::runtime::Runtime;
use crate::settings::TasksSettings;
use crate::worker::TaskWorker;

/// An open folder of tasks: what [`TaskDirectory`](crate::TaskDirectory) is made of.
///
/// For programs that must know the tasks before there is a worker, or that open the folder again while they run, as the
/// command line does with `--watch`. Dropping it ends the hosts without waiting for them.
pub struct TasksFolder {
    folder: PathBuf,
    tasks: Vec<Task>,
    hosts: Vec<Arc<Host>>,
    guard: Arc<Guard>,
    /// The tasks whose hosts are not ready, or could not load them.
    paused: PausedTasks,
    allows_broken: bool,
}

/// How far the hosts have come with loading their tasks.
struct Loaded {
    /// What could not be loaded, and why.
    broken: Vec<String>,
    /// Whether no host is still loading.
    is_complete: bool,
}

struct Task {
    identifier: String,
    path: PathBuf,
    time_limit: Option<Duration>,
    way: Way,
}

enum Way {
    Executable(Arc<Executable>),
    Hosted(Arc<Host>),
}

impl fmt::Debug for TasksFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TasksFolder").field("tasks", &self.identifiers()).finish_non_exhaustive()
    }
}

impl TasksFolder {
    /// Reads the folder. [`TasksFolder::define`] starts the hosts that its tasks need.
    pub async fn open(settings: TasksSettings) -> Result<TasksFolder> {
        let mut limits = settings.time_limit.iter().chain(settings.time_limits.values());
        if limits.any(Duration::is_zero) {
            return Err(Error::config("a time limit is 0, and must be more: every job would fail"));
        }
        let mut found = discover::discover(&settings.folder)?;
        let connection = settings.connection_data()?;
        let guard = Arc::new(Guard::new(settings.kill_after));
        let paused = settings.paused.clone();
        let mut opening = Opening { settings: &settings, guard, hosts: Vec::new() };
        // All required programs must exist before the first is started.
        for (runtime, tasks) in by_runtime(&found) {
            let program = match runtime.program() {
                Ok(program) => program,
                Err(error) if settings.leaves_out => {
                    found.retain(|task| task.kind != Kind::Hosted(runtime.clone()));
                    let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
                    tracing::warn!("{}{hint}; their jobs are not claimed", error.message());
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (guard, connection) = (opening.guard.clone(), connection.clone());
            let host = Host::new(program, tasks, &settings, connection, guard, paused.clone());
            opening.hosts.push((runtime, Arc::new(host)));
        }
        let tasks = found.into_iter().map(|found| opening.task(found)).collect();
        let hosts: Vec<Arc<Host>> = opening.hosts.into_iter().map(|(_, host)| host).collect();
        let guard = opening.guard;
        Ok(TasksFolder {
            folder: settings.folder,
            tasks,
            hosts,
            guard,
            paused,
            allows_broken: settings.allows_broken,
        })
    }

    /// The tasks that were found, in alphabetical order.
    pub fn identifiers(&self) -> Vec<String> {
        self.tasks.iter().map(|task| task.identifier.clone()).collect()
    }

    /// Registers all tasks of the folder with a worker, and starts the hosts. The worker claims no job of a task whose
    /// host is not ready, or could not load it.
    pub fn define(&self, options: WorkerOptions) -> WorkerOptions {
        self.warn_without_guard();
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

    /// Registers all tasks of the folder with a worker, starts the hosts, and sets up the worker.
    ///
    /// Waits until the hosts have loaded their tasks, at most for 5 s. A task that can't be loaded is an error, and then
    /// nothing has changed in the database, unless the settings allow broken tasks. So is a folder without tasks, and a
    /// task that was also defined in the options. After an error, the hosts have ended.
    ///
    /// Cancel safe, as [`WorkerOptions::init`]; the hosts end.
    pub async fn init(self, options: WorkerOptions) -> Result<TaskWorker> {
        self.refuse_empty()?;
        self.refuse_duplicates(&options)?;
        let options = self.define(options);
        // Before anything changes in the database, so that a deployment of broken tasks ends here. A host that takes long
        // does not delay the others any further: if it can't load its tasks, the worker ends then.
        let broken = if self.allows_broken { Vec::new() } else { self.loaded_soon().await.broken };
        let started = match broken.is_empty() {
            true => options.init().await,
            false => Err(refuse(&broken)),
        };
        match started {
            Ok(worker) => Ok(TaskWorker::new(worker, self)),
            Err(error) => {
                self.close().await;
                Err(error)
            }
        }
    }

    fn refuse_empty(&self) -> Result<()> {
        if !self.tasks.is_empty() {
            return Ok(());
        }
        Err(Error::config(format!("no tasks in the folder {}", self.folder.display()))
            .with_hint("a task is a file: hello.js, hello.py, or an executable hello.sh (chmod +x)"))
    }

    fn refuse_duplicates(&self, options: &WorkerOptions) -> Result<()> {
        let defined: HashSet<String> = options.task_identifiers().into_iter().collect();
        match self.tasks.iter().find(|task| defined.contains(&task.identifier)) {
            None => Ok(()),
            Some(Task { identifier, path, .. }) => {
                let message = format!(
                    "task {identifier} is defined twice: in Rust, and by the file {}",
                    path.display()
                );
                Err(Error::config(message).with_hint("rename one of them"))
            }
        }
    }

    /// Hosts end by themselves if this process is killed.
    fn warn_without_guard(&self) {
        let has_executables = self.tasks.iter().any(|task| matches!(task.way, Way::Executable(_)));
        if has_executables && !guard::is_possible() {
            tracing::warn!(
                "if this process is killed, executables that run for tasks keep running: call \
                 atta_tasks::run_guard_if_requested at the start of main"
            );
        }
    }

    /// Whether the worker starts although some tasks can't be loaded.
    pub(crate) fn allows_broken(&self) -> bool {
        self.allows_broken
    }

    /// Waits until all hosts have loaded their tasks, but not for hosts that take long. Cancel safe.
    async fn loaded_soon(&self) -> Loaded {
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
    pub async fn run_once(&self, worker: &Worker) -> Result<()> {
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
                    Error::config(error)
                        .with_hint("jobs of its tasks were returned without losing an attempt")
                })?;
            }
        }
    }

    fn deaths(&self) -> u64 {
        self.hosts.iter().map(|host| host.deaths()).sum()
    }

    /// Ends the hosts, and all other processes that were started and still run. Call it when the worker has ended. Then
    /// jobs of hosted tasks are returned. Cancel safe: the hosts end without being waited for.
    pub async fn close(&self) {
        for host in &self.hosts {
            host.close().await;
        }
        self.guard.end_all();
    }
}

/// A handle of the worker may keep the tasks, and with them the hosts, for longer.
impl Drop for TasksFolder {
    fn drop(&mut self) {
        self.hosts.iter().for_each(|host| host.request_close());
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
            Way::Executable(Arc::new(Executable { path: found.path.clone(), kill_after, guard }))
        });
        Task { identifier: found.identifier, path: found.path, time_limit, way }
    }
}

/// The error for tasks that can't be loaded.
pub(crate) fn refuse(broken: &[String]) -> Error {
    Error::config(format!("some tasks can't be loaded:\n{}", broken.join("\n")))
        .with_hint("fix them, or run only the other tasks: allow_broken_tasks, or --allow-broken-tasks")
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
