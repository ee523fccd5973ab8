//! The interface for applications: a folder of tasks as the last option of a worker.

use std::path::PathBuf;
use std::time::Duration;

use atta::{Result, WorkerOptions};

use crate::folder::TasksFolder;
use crate::settings::TasksSettings;
use crate::worker::TaskWorker;

/// Adds a folder of tasks to the options of a worker.
pub trait WorkerOptionsExt {
    /// Runs the tasks of this folder, besides those that were defined before.
    ///
    /// This is the last option of the worker. It returns the options of the folder, whose [`TaskDirectory::init`] sets
    /// up both. Hosted tasks get the worker's connection string, schema and concurrency.
    ///
    /// While a host is not ready, its tasks are paused. If the application has called [`WorkerOptions::paused_tasks`],
    /// they are in that set, and a hosted task that the application itself has paused is resumed when its host becomes
    /// ready.
    fn task_directory(self, folder: impl Into<PathBuf>) -> TaskDirectory;
}

impl WorkerOptionsExt for WorkerOptions {
    fn task_directory(self, folder: impl Into<PathBuf>) -> TaskDirectory {
        TaskDirectory { options: self, settings: TasksSettings::new(folder) }
    }
}

/// The options of a worker together with a folder of tasks. Made by [`WorkerOptionsExt::task_directory`].
#[derive(Debug)]
#[must_use]
pub struct TaskDirectory {
    options: WorkerOptions,
    settings: TasksSettings,
}

impl TaskDirectory {
    /// How long a job of any task of the folder may run. Default: no limit. Tasks in Rust are not affected.
    pub fn time_limit(mut self, limit: Duration) -> TaskDirectory {
        self.settings.time_limit = Some(limit);
        self
    }

    /// How long a job of this task may run; overrides [`TaskDirectory::time_limit`].
    pub fn time_limit_of(mut self, identifier: impl Into<String>, limit: Duration) -> TaskDirectory {
        self.settings.time_limits.insert(identifier.into(), limit);
        self
    }

    /// How long a process may take to end after it was asked to (SIGTERM, an abort signal), before it is killed.
    /// Default: 5 s.
    pub fn kill_after(mut self, period: Duration) -> TaskDirectory {
        self.settings.kill_after = period;
        self
    }

    /// Whether the worker starts although some tasks can't be loaded. They are logged, and their jobs are not claimed.
    /// Default: false, and a broken task is an error.
    pub fn allow_broken_tasks(mut self, is_allowed: bool) -> TaskDirectory {
        self.settings.allows_broken = is_allowed;
        self
    }

    /// Whether the worker starts although a language of some tasks is not installed. This is logged, and their jobs are
    /// not claimed. Default: false, and a missing language is an error.
    pub fn allow_missing_languages(mut self, is_allowed: bool) -> TaskDirectory {
        self.settings.leaves_out = is_allowed;
        self
    }

    /// Reads the folder, starts the hosts, and sets up the worker, as [`WorkerOptions::init`] does.
    ///
    /// Waits until the hosts have loaded their tasks, at most for 5 s. A host that takes longer does not delay the other
    /// tasks: its jobs are claimed when it is ready, and if it then can't load a task, [`TaskWorker::run`] ends with an
    /// error. It is an error if the folder can't be read or contains no task, if a task can't be loaded or has the
    /// identifier of a task in Rust, or if a language is not installed. Then nothing has changed in the database.
    ///
    /// Cancel safe, as [`WorkerOptions::init`]; the hosts end.
    pub async fn init(self) -> Result<TaskWorker> {
        let TaskDirectory { mut options, mut settings } = self;
        // Read only once, since reading it may log warnings.
        if let Some(connection) = options.connection_settings()? {
            settings.connection = connection.to_string_with_password();
            options = options.database_url(settings.connection.as_str());
        }
        settings.schema = options.schema_name().to_owned();
        settings.concurrency = options.slots();
        settings.paused = options.shared_paused_tasks();
        TasksFolder::open(settings).await?.init(options).await
    }
}
