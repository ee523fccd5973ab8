//! The workers of this process, one per generation of tasks.
//!
//! A generation is a folder of tasks as it was when it was opened, and the worker that runs them. A change starts the
//! next generation; the one before claims no more jobs, finishes its running jobs, and closes its folder. Errors in the
//! new tasks or the new crontab are logged, and the old ones stay in use.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use atta::{
    Claims, Cron, HookFuture, Hooks, Job, LocalQueueConfig, RefetchDelay, WorkerHandle, WorkerOptions,
};
use atta_tasks::{TaskWorker, TasksFolder, TasksSettings};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Database;
use crate::args::ClaimsChoice;
use crate::output::Failure;
use crate::settings::Settings;

/// Why the worker of an old generation shuts down.
const RELOADED: &str = "the tasks were loaded again";

/// How long the jobs of an old generation may continue beside the new one.
const OLD_AGE: Duration = Duration::from_secs(4 * 3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Once,
    UntilShutdown,
    Watching,
}

pub(super) struct Generations {
    settings: Settings,
    database: Database,
    mode: Mode,
    cron: Vec<Cron>,
    generations: JoinSet<(String, Result<(), Failure>)>,
    /// The handles of workers that still run. A handle keeps the connections of its worker open.
    handles: Vec<WorkerHandle>,
    /// There is nothing to run yet, but somebody may still write tasks.
    is_waiting: bool,
    /// Set if failed attempts are counted.
    failures: Option<Failures>,
}

/// Counts the attempts that failed. Hooks are called for all of them, whereas events may be lost.
#[derive(Clone, Debug, Default)]
struct Failures(Arc<AtomicU64>);

impl Failures {
    fn count(&self) -> HookFuture<'static> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(()))
    }
}

impl Hooks for Failures {
    fn on_fail<'a>(&'a self, _: &'a Job, _: &'a str) -> HookFuture<'a> {
        self.count()
    }

    fn on_permanent_failure<'a>(&'a self, _: &'a Job, _: &'a str) -> HookFuture<'a> {
        self.count()
    }
}

impl Generations {
    pub(super) fn new(settings: Settings, database: Database, mode: Mode) -> Generations {
        Generations {
            settings,
            database,
            mode,
            cron: Vec::new(),
            generations: JoinSet::new(),
            handles: Vec::new(),
            is_waiting: false,
            failures: None,
        }
    }

    /// Counts the attempts that fail from here on.
    pub(super) fn count_failures(&mut self) {
        self.failures = Some(Failures::default());
    }

    /// How many attempts have failed; zero if they are not counted.
    pub(super) fn failed(&self) -> u64 {
        self.failures.as_ref().map_or(0, |failures| failures.0.load(Ordering::Relaxed))
    }

    /// Starts the first generation.
    pub(super) async fn start(&mut self) -> Result<(), Failure> {
        // `--once` does not use cron, so an invalid crontab does not matter to it.
        if self.mode != Mode::Once {
            self.cron = read_crontab(&self.settings)?;
        }
        self.begin().await
    }

    /// Starts the next generation, if that is possible, and shuts the others down. Cancel safe.
    pub(super) async fn reload(&mut self) {
        tracing::info!("the tasks or the crontab have changed: loading them again");
        match read_crontab(&self.settings) {
            Ok(cron) => self.cron = cron,
            Err(failure) => tracing::error!("the crontab was not reloaded: {}", failure.message()),
        }
        let old = self.handles.len();
        match self.begin().await {
            // They stay in the list: a second signal must reach them as well.
            Ok(()) => self.handles[..old].iter().for_each(|old| old.request_shutdown_with_reason(RELOADED)),
            Err(failure) => tracing::error!("the tasks were not reloaded: {}", failure.message()),
        }
    }

    /// Returns when the last worker has ended. Cancel safe.
    pub(super) async fn ended(&mut self) -> Result<(), Failure> {
        loop {
            match self.generations.join_next().await {
                Some(Ok((worker_id, ended))) => {
                    self.handles.retain(|handle| handle.worker_id() != worker_id);
                    ended?;
                }
                Some(Err(error)) => return Err(Failure::new(format!("the worker panicked: {error}"))),
                None if self.is_waiting => std::future::pending().await,
                None => return Ok(()),
            }
        }
    }

    /// Shuts all workers down in an orderly way. Returns when to abort them, unless the workers do that by themselves:
    /// while watching, they would let the jobs of an old generation continue for long.
    pub(super) fn stop(&mut self, reason: &str) -> Option<Instant> {
        tracing::info!("{reason}: waiting for running jobs to finish; another signal after 5 s aborts them");
        self.is_waiting = false;
        self.handles.iter().for_each(|handle| handle.request_shutdown_with_reason(reason));
        let patience = self.settings.shutdown_grace_period + self.settings.shutdown_abort_period;
        (self.mode == Mode::Watching).then(|| Instant::now() + patience)
    }

    /// Ends all workers at once.
    pub(super) fn abort(&mut self, reason: &str) {
        tracing::warn!("{reason}: aborting");
        self.handles.iter().for_each(WorkerHandle::abort);
    }

    /// Whether the worker starts although some tasks can't be loaded: while watching, somebody may be editing them.
    fn allows_broken(&self) -> bool {
        self.mode == Mode::Watching || self.settings.allow_broken_tasks
    }

    async fn begin(&mut self) -> Result<(), Failure> {
        let mut settings = tasks_settings(&self.settings, &self.database)?;
        settings.leaves_out = self.mode == Mode::Watching;
        settings.allows_broken = self.allows_broken();
        let folder = TasksFolder::open(settings).await?;
        let identifiers = folder.identifiers();
        if identifiers.is_empty() && self.mode == Mode::Watching {
            self.wait_for_tasks();
            return Ok(());
        }
        self.warn_of_unknown_tasks(&identifiers);
        let worker = folder.init(self.options()).await?;
        self.is_waiting = false;
        self.handles.push(worker.handle());
        self.generations.spawn(live(worker, self.mode));
        Ok(())
    }

    fn wait_for_tasks(&mut self) {
        tracing::warn!("no tasks in the folder {} yet", self.settings.tasks.display());
        self.is_waiting = true;
        self.handles.iter().for_each(|handle| handle.request_shutdown_with_reason(RELOADED));
    }

    fn warn_of_unknown_tasks(&self, identifiers: &[String]) {
        let known: HashSet<&str> = identifiers.iter().map(String::as_str).collect();
        for item in self.cron.iter().filter(|item| !known.contains(item.task_identifier())) {
            tracing::warn!(
                "the crontab adds jobs of task {:?}, which does not exist in {}",
                item.task_identifier(),
                self.settings.tasks.display()
            );
        }
        for task in self.settings.time_limits.keys().filter(|task| !known.contains(task.as_str())) {
            tracing::warn!(
                "time_limits has a limit for task {task:?}, which does not exist in {}",
                self.settings.tasks.display()
            );
        }
    }

    fn options(&self) -> WorkerOptions {
        let settings = &self.settings;
        let grace_period = match self.mode {
            Mode::Watching => OLD_AGE,
            Mode::Once | Mode::UntilShutdown => settings.shutdown_grace_period,
        };
        let mut options = WorkerOptions::default()
            .database_url(self.database.text())
            .schema(settings.schema.as_str())
            .concurrency(settings.jobs)
            // Graphile works with a pool of one connection; ours needs two.
            .max_pg_conn(settings.max_pool_size.max(2))
            .poll_interval(settings.poll_interval)
            .claims(match settings.claims {
                ClaimsChoice::Held => Claims::Held,
                ClaimsChoice::Durable => Claims::Durable,
            })
            .hold_budget(settings.hold_budget)
            .complete_job_batch_delay(settings.complete_job_batch_delay)
            .fail_job_batch_delay(settings.fail_job_batch_delay)
            .shutdown_grace_period(grace_period)
            .shutdown_abort_period(settings.shutdown_abort_period)
            .interrupted_job_retry_delay(settings.interrupted_job_retry_delay)
            .recovery_threshold(settings.recovery_threshold)
            .crash_limit(settings.crash_limit)
            .max_claim_bytes(settings.max_claim_bytes)
            .use_local_time(settings.use_local_time)
            .allow_breaking_migration(settings.allow_breaking_migration)
            // With `--once`, the user wants an error if the database does not answer.
            .wait_for_database(self.mode != Mode::Once)
            .with_cron(self.cron.clone());
        if let Some(failures) = &self.failures {
            options = options.add_hooks(failures.clone());
        }
        if !settings.prepared_statements {
            options = options.use_prepared_statements(false);
        }
        for flag in &settings.forbidden_flags {
            options = options.add_forbidden_flag(flag);
        }
        if let Some(queue) = &settings.local_queue {
            let mut config = LocalQueueConfig::new(queue.size).with_ttl(queue.ttl);
            if let Some(duration) = queue.refetch_delay {
                let delay = RefetchDelay::new(duration).with_threshold(queue.refetch_threshold);
                config = config.with_refetch_delay(delay);
            }
            options = options.local_queue(config);
        }
        options
    }
}

/// Runs a generation to its end.
async fn live(worker: TaskWorker, mode: Mode) -> (String, Result<(), Failure>) {
    let id = worker.id().to_owned();
    let ended = match mode {
        Mode::Once => {
            let ended = worker.run_once().await;
            worker.close().await;
            ended
        }
        Mode::UntilShutdown | Mode::Watching => worker.run().await,
    };
    (id, ended.map_err(Failure::from))
}

/// The crontab, if there is one. A crontab that was named explicitly must exist.
fn read_crontab(settings: &Settings) -> Result<Vec<Cron>, Failure> {
    let path = settings.crontab.display();
    let text = match fs::read_to_string(&settings.crontab) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound && !settings.crontab_is_named => {
            return Ok(Vec::new());
        }
        Err(error) => {
            return Err(Failure::new(format!("can't read the crontab {path}: {error}"))
                .with_hint("use --crontab to read another file; by default ./crontab is read if it exists"));
        }
    };
    atta::parse_crontab(&text).map_err(|error| {
        Failure::new(format!("the crontab {path} is invalid: {error}"))
            .with_hint(format!("to check it, run: atta cron check {path}"))
    })
}

pub(super) fn tasks_settings(settings: &Settings, database: &Database) -> Result<TasksSettings, Failure> {
    super::existing(settings)?;
    let mut tasks = TasksSettings::new(&settings.tasks);
    tasks.time_limit = settings.time_limit;
    tasks.time_limits = settings.time_limits.clone().into_iter().collect();
    tasks.kill_after = settings.kill_after;
    tasks.connection = database.text();
    tasks.schema.clone_from(&settings.schema);
    tasks.concurrency = settings.jobs;
    tasks.allows_broken = settings.allow_broken_tasks;
    Ok(tasks)
}
