//! The settings of a folder of tasks.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use atta::{ConnectionSettings, Error, PausedTasks, Result, Schema};
use serde_json::value::RawValue;

/// The settings of a folder of tasks.
#[derive(Clone)]
#[non_exhaustive]
pub struct TasksSettings {
    /// Where the tasks are.
    pub folder: PathBuf,
    /// How long a job of any task may run. Default: `None`, no limit.
    pub time_limit: Option<Duration>,
    /// The same for single tasks, by identifier; it overrides the limit for all. Default: empty.
    pub time_limits: HashMap<String, Duration>,
    /// The time between the request to end (SIGTERM, an abort signal) and SIGKILL. Default: 5 s.
    pub kill_after: Duration,
    /// The connection string for the database connections of hosted tasks. Default: empty, and the environment decides.
    pub connection: String,
    /// The schema that contains the jobs. Default: `graphile_worker`.
    pub schema: String,
    /// How many jobs run at a time, so that a host can prepare for as many. Default: 1.
    pub concurrency: usize,
    /// Whether tasks of a language that is not installed are skipped with a warning instead of an error. Default: false.
    pub leaves_out: bool,
    /// Whether tasks that can't be loaded are logged and not claimed, instead of an error. Default: false.
    pub allows_broken: bool,
    /// The set in which the folder pauses tasks whose host is not ready. Default: a new set.
    pub paused: PausedTasks,
}

impl TasksSettings {
    /// The default settings for this folder.
    pub fn new(folder: impl Into<PathBuf>) -> TasksSettings {
        TasksSettings {
            folder: folder.into(),
            time_limit: None,
            time_limits: HashMap::new(),
            kill_after: Duration::from_secs(5),
            connection: String::new(),
            schema: Schema::default().name().to_owned(),
            concurrency: 1,
            leaves_out: false,
            allows_broken: false,
            paused: PausedTasks::default(),
        }
    }
}

/// Without the connection string, which may contain a password.
impl fmt::Debug for TasksSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TasksSettings").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl TasksSettings {
    /// The settings for the database connections of hosted tasks, complete and encoded: hosts parse no connection
    /// strings and read no environment variables. None: the environment is not valid, and nobody has given a connection
    /// string; that is logged, since most tasks need no connection.
    pub(crate) fn connection_data(&self) -> Result<Option<Box<RawValue>>> {
        let settings = match self.connection.as_str() {
            "" => match from_environment() {
                Ok(settings) => settings,
                Err(error) => {
                    tracing::warn!(
                        "tasks can't connect to the database by their helpers: {}",
                        error.message()
                    );
                    return Ok(None);
                }
            },
            text => ConnectionSettings::new(text)?,
        };
        let data = serde_json::value::to_raw_value(&settings.to_data_with_password());
        data.map(Some).map_err(|error| Error::config(format!("the settings of the connection: {error}")))
    }
}

/// As libpq's clients do it if no database is named: the variables that are set, and defaults for the others.
fn from_environment() -> Result<ConnectionSettings> {
    match ConnectionSettings::from_environment()? {
        Some(settings) => Ok(settings),
        None => ConnectionSettings::new(""),
    }
}
