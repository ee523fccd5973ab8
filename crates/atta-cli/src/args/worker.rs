//! The arguments of the worker: `atta`, `atta run`, `atta dev`, and of the commands that prepare for it.
//!
//! No option has a default here: a value that is missing may be in the environment or in the settings file, and
//! `settings.rs` decides. Long options are also accepted in camel case, as in Graphile Worker's command line.

use std::path::PathBuf;

use clap::{ArgAction, Args as ClapArgs, ValueEnum};
use serde::{Deserialize, Serialize};

use super::ClaimsChoice;
use crate::settings::Span;

/// Run the worker: it runs jobs with the tasks in a folder, and schedules a crontab
#[derive(Clone, Debug, Default, ClapArgs)]
#[command(next_help_heading = "Options of the worker")]
pub(crate) struct Run {
    /// Folder with the tasks [default: tasks]
    #[arg(long, value_name = "DIR")]
    pub(crate) tasks: Option<PathBuf>,

    /// Crontab [default: crontab, if there is such a file]
    #[arg(long, value_name = "FILE")]
    pub(crate) crontab: Option<PathBuf>,

    /// Number of jobs to run at the same time [default: 1]
    #[arg(short, long, value_name = "N", value_parser = super::at_least_one)]
    pub(crate) jobs: Option<usize>,

    /// Run all jobs that are due, then exit
    #[arg(long)]
    pub(crate) once: bool,

    /// With --once: exit with code 1 if a job failed during this run, even if it will be retried
    #[arg(long)]
    pub(crate) fail_on_error: bool,

    /// Reload the tasks and the crontab when they change
    #[arg(short, long)]
    pub(crate) watch: bool,

    /// Start even if some tasks can't be loaded: run the others, and claim no jobs of the broken ones
    #[arg(long)]
    pub(crate) allow_broken_tasks: bool,

    /// Install or upgrade the schema, then exit
    #[arg(long, alias = "schemaOnly", conflicts_with_all = ["once", "watch", "cleanup"])]
    pub(crate) schema_only: bool,

    /// Clean up, then exit: GC_TASK_IDENTIFIERS, GC_JOB_QUEUES, DELETE_PERMAFAILED_JOBS, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        num_args = 1,
        ignore_case = true,
        hide_possible_values = true,
        conflicts_with_all = ["once", "watch"]
    )]
    pub(crate) cleanup: Vec<CleanupChoice>,

    /// Maximum number of connections in the pool for tasks; the worker's own connections are extra [default: 10]
    #[arg(short, long, alias = "maxPoolSize", value_name = "N", value_parser = super::at_least_one)]
    pub(crate) max_pool_size: Option<usize>,

    /// How often to poll for jobs that NOTIFY did not announce, in milliseconds, or as in 2s [default: 2000]
    #[arg(long, alias = "pollInterval", value_name = "MS")]
    pub(crate) poll_interval: Option<Span>,

    /// Use no prepared statements, for poolers that don't support them (most are detected without this option)
    #[arg(long, alias = "noPreparedStatements")]
    pub(crate) no_prepared_statements: bool,

    /// Never claim jobs that have this flag; can be given several times
    #[arg(long, value_name = "FLAG", action = ArgAction::Append)]
    pub(crate) forbidden_flag: Vec<String>,

    /// How to claim jobs [default: held]
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) claims: Option<ClaimsChoice>,

    /// Upgrade the schema even if older releases of graphile-worker then stop working with it
    #[arg(long)]
    pub(crate) allow_breaking_migration: bool,

    /// Format of the log [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
}

impl Run {
    /// In `atta -j 2 run --once`, both parts set options of one worker: those after the command win.
    pub(crate) fn or(self, before: Run) -> Run {
        let first_of = |one: Vec<String>, other| if one.is_empty() { other } else { one };
        Run {
            tasks: self.tasks.or(before.tasks),
            crontab: self.crontab.or(before.crontab),
            jobs: self.jobs.or(before.jobs),
            once: self.once || before.once,
            fail_on_error: self.fail_on_error || before.fail_on_error,
            watch: self.watch || before.watch,
            allow_broken_tasks: self.allow_broken_tasks || before.allow_broken_tasks,
            schema_only: self.schema_only || before.schema_only,
            cleanup: if self.cleanup.is_empty() { before.cleanup } else { self.cleanup },
            max_pool_size: self.max_pool_size.or(before.max_pool_size),
            poll_interval: self.poll_interval.or(before.poll_interval),
            no_prepared_statements: self.no_prepared_statements || before.no_prepared_statements,
            forbidden_flag: first_of(self.forbidden_flag, before.forbidden_flag),
            claims: self.claims.or(before.claims),
            allow_breaking_migration: self.allow_breaking_migration || before.allow_breaking_migration,
            log_format: self.log_format.or(before.log_format),
        }
    }
}

/// Run the worker with a PostgreSQL server of its own, stored in .atta/: needs no configuration and no database
///
/// Starts the server, installs the schema, runs the tasks in ./tasks and the crontab in ./crontab, reloads both when
/// they change, and stops everything on Ctrl-C. Other commands find the server if they run in the same folder.
#[derive(Debug, ClapArgs)]
pub(crate) struct Dev {
    /// First delete the server with all its data; asks for confirmation
    #[arg(long)]
    pub(crate) reset: bool,

    /// Don't ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,

    #[command(flatten)]
    pub(crate) run: Run,

    /// Wait for the end of standard input, then stop the server if nobody else uses it: `atta dev` starts itself so.
    #[arg(long, hide = true)]
    pub(crate) guard: bool,
}

/// Create a folder of example tasks in shell, JavaScript and Python, and a crontab; never changes existing files
#[derive(Debug, ClapArgs)]
pub(crate) struct Init {
    /// Folder to create them in
    #[arg(default_value = ".")]
    pub(crate) folder: PathBuf,
}

/// Show the effective settings of the worker, and the source of each; without secrets
#[derive(Debug, ClapArgs)]
pub(crate) struct Config {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) run: Run,
}

/// What a line of the log looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Readable text
    Text,
    /// One JSON object per line
    Json,
}

/// See `atta::CleanupTask`; under Graphile Worker's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum CleanupChoice {
    /// Delete jobs that failed permanently
    DeletePermafailedJobs,
    /// Delete tasks that have no jobs
    GcTaskIdentifiers,
    /// Delete queues that have no jobs
    GcJobQueues,
}

impl From<CleanupChoice> for atta::CleanupTask {
    fn from(choice: CleanupChoice) -> atta::CleanupTask {
        match choice {
            CleanupChoice::DeletePermafailedJobs => atta::CleanupTask::DeletePermafailedJobs,
            CleanupChoice::GcTaskIdentifiers => atta::CleanupTask::GcTaskIdentifiers,
            CleanupChoice::GcJobQueues => atta::CleanupTask::GcJobQueues,
        }
    }
}
