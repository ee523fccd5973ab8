//! The settings of a worker: flags override the environment, which overrides the settings file, which overrides the
//! defaults.
//!
//! [`Settings::resolve`] picks every setting and records its source, for `atta config`. Each key of the settings file
//! has a variable of the same name: `poll_interval` is `ATTA_POLL_INTERVAL`.

mod file;
mod pick;
mod secrets;
mod span;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::parser::ValueSource;

pub(crate) use file::File;
pub(crate) use pick::{Entry, Origin};
pub(crate) use secrets::without_secrets;
pub(crate) use span::{Span, parse_duration};

use crate::args::{ClaimsChoice, Connection, LogFormat, Run};
use crate::output::Failure;
use pick::{Given, Picker};

/// The effective settings of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// As the user wrote it. None: the `PG*` variables of the environment name the database.
    pub(crate) connection: Option<String>,
    pub(crate) schema: String,
    pub(crate) tasks: PathBuf,
    pub(crate) crontab: PathBuf,
    /// Whether the user named the crontab, so that it must exist.
    pub(crate) crontab_is_named: bool,
    pub(crate) jobs: usize,
    pub(crate) max_pool_size: usize,
    pub(crate) poll_interval: Duration,
    pub(crate) prepared_statements: bool,
    pub(crate) forbidden_flags: Vec<String>,
    pub(crate) claims: ClaimsChoice,
    pub(crate) hold_budget: Duration,
    pub(crate) local_queue: Option<LocalQueue>,
    pub(crate) complete_job_batch_delay: Duration,
    pub(crate) fail_job_batch_delay: Duration,
    pub(crate) shutdown_grace_period: Duration,
    pub(crate) shutdown_abort_period: Duration,
    pub(crate) interrupted_job_retry_delay: Duration,
    pub(crate) recovery_threshold: Duration,
    pub(crate) crash_limit: u32,
    pub(crate) max_claim_bytes: usize,
    pub(crate) use_local_time: bool,
    pub(crate) allow_breaking_migration: bool,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) time_limits: BTreeMap<String, Duration>,
    pub(crate) kill_after: Duration,
    pub(crate) allow_broken_tasks: bool,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    /// All settings once more, for display.
    pub(crate) entries: Vec<Entry>,
}

/// Settings for jobs that are claimed ahead.
#[derive(Clone, Debug)]
pub(crate) struct LocalQueue {
    pub(crate) size: usize,
    pub(crate) ttl: Duration,
    pub(crate) refetch_delay: Option<Duration>,
    pub(crate) refetch_threshold: usize,
}

/// The sources of the connection and the schema, as the command line was parsed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    pub(crate) connection: Option<ValueSource>,
    pub(crate) schema: Option<ValueSource>,
    pub(crate) schema_is_from_file: bool,
    /// The connection is that of an `atta dev` in this folder.
    pub(crate) is_dev: bool,
}

impl Settings {
    /// Combines the command line, the environment and the file.
    pub(crate) fn resolve(
        connection: &Connection,
        run: &Run,
        file: &File,
        sources: &Sources,
    ) -> Result<Settings, Failure> {
        let mut picker = Picker::new(file.path.clone());
        picker.note_connection(connection, sources);
        let tasks = picker.path("tasks", "--tasks", &run.tasks, &file.tasks)?;
        let crontab = picker.path("crontab", "--crontab", &run.crontab, &file.crontab)?;
        let crontab_is_named = picker.last_is_given();
        let jobs = picker.at_least_one("jobs", Given::flag("--jobs", run.jobs).file(file.jobs), 1)?;
        let max_pool_size = picker.at_least_one(
            "max_pool_size",
            Given::flag("--max-pool-size", run.max_pool_size).file(file.max_pool_size),
            10,
        )?;
        let poll_interval = Given::flag("--poll-interval", run.poll_interval).file(file.poll_interval);
        let poll_interval = picker.span("poll_interval", poll_interval, Duration::from_secs(2))?;
        let prepared = Given::flag("--no-prepared-statements", run.no_prepared_statements.then_some(false));
        let prepared_statements =
            picker.pick("prepared_statements", prepared.file(file.prepared_statements), true)?;
        let forbidden_flags = picker.list(
            "forbidden_flags",
            Given::flag(
                "--forbidden-flag",
                Some(run.forbidden_flag.clone()).filter(|flags| !flags.is_empty()),
            )
            .file(file.forbidden_flags.clone()),
        )?;
        let claims = picker.choice(
            "claims",
            Given::flag("--claims", run.claims).file(file.claims),
            ClaimsChoice::Held,
        )?;
        let only_file = |value: Option<Span>| Given::file_only(value);
        let hold_budget =
            picker.span("hold_budget", only_file(file.hold_budget), Duration::from_millis(50))?;
        let local_queue = resolve_local_queue(&mut picker, file)?;
        let complete_job_batch_delay = picker.span(
            "complete_job_batch_delay",
            only_file(file.complete_job_batch_delay),
            Duration::ZERO,
        )?;
        let fail_job_batch_delay =
            picker.span("fail_job_batch_delay", only_file(file.fail_job_batch_delay), Duration::ZERO)?;
        let five = Duration::from_secs(5);
        let shutdown_grace_period =
            picker.span("shutdown_grace_period", only_file(file.shutdown_grace_period), five)?;
        let shutdown_abort_period =
            picker.span("shutdown_abort_period", only_file(file.shutdown_abort_period), five)?;
        let interrupted_job_retry_delay = picker.span(
            "interrupted_job_retry_delay",
            only_file(file.interrupted_job_retry_delay),
            Duration::ZERO,
        )?;
        let recovery_threshold =
            picker.span("recovery_threshold", only_file(file.recovery_threshold), Duration::from_secs(30))?;
        let max_claim_bytes =
            picker.pick("max_claim_bytes", Given::file_only(file.max_claim_bytes), 16 * 1024 * 1024)?;
        let crash_limit = picker.pick("crash_limit", Given::file_only(file.crash_limit), 3)?;
        let use_local_time = picker.pick("use_local_time", Given::file_only(file.use_local_time), false)?;
        let allowed = Given::flag("--allow-breaking-migration", run.allow_breaking_migration.then_some(true));
        let allow_breaking_migration =
            picker.pick("allow_breaking_migration", allowed.file(file.allow_breaking_migration), false)?;
        let time_limit = picker.optional("time_limit", file.time_limit)?;
        let time_limits = picker.time_limits(file.time_limits.clone());
        let kill_after = picker.span("kill_after", only_file(file.kill_after), five)?;
        let allowed = Given::flag("--allow-broken-tasks", run.allow_broken_tasks.then_some(true));
        let allow_broken_tasks =
            picker.pick("allow_broken_tasks", allowed.file(file.allow_broken_tasks), false)?;
        let log = picker.log(file.log.clone());
        let log_format = picker.choice(
            "log_format",
            Given::flag("--log-format", run.log_format).file(file.log_format),
            LogFormat::Text,
        )?;
        Ok(Settings {
            connection: connection.connection.clone(),
            schema: connection.schema.clone(),
            tasks,
            crontab,
            crontab_is_named,
            jobs,
            max_pool_size,
            poll_interval,
            prepared_statements,
            forbidden_flags,
            claims,
            hold_budget,
            local_queue,
            complete_job_batch_delay,
            fail_job_batch_delay,
            shutdown_grace_period,
            shutdown_abort_period,
            interrupted_job_retry_delay,
            recovery_threshold,
            crash_limit,
            max_claim_bytes,
            use_local_time,
            allow_breaking_migration,
            time_limit,
            time_limits,
            kill_after,
            allow_broken_tasks,
            log,
            log_format,
            entries: picker.entries,
        })
    }
}

fn resolve_local_queue(picker: &mut Picker, file: &File) -> Result<Option<LocalQueue>, Failure> {
    let size = picker.pick("local_queue_size", Given::file_only(file.local_queue_size), 0)?;
    let ttl =
        picker.span("local_queue_ttl", Given::file_only(file.local_queue_ttl), Duration::from_secs(300))?;
    let refetch_delay = picker.optional("local_queue_refetch_delay", file.local_queue_refetch_delay)?;
    let refetch_threshold = picker.pick(
        "local_queue_refetch_threshold",
        Given::file_only(file.local_queue_refetch_threshold),
        0,
    )?;
    Ok((size > 0).then_some(LocalQueue { size, ttl, refetch_delay, refetch_threshold }))
}

/// The connection and the schema to use if neither flag nor environment set them.
#[derive(Debug, Default)]
pub(crate) struct Fallback {
    pub(crate) connection: Option<String>,
    pub(crate) schema: Option<String>,
    pub(crate) is_dev: bool,
}

impl Fallback {
    /// Reads them from the file; the connection also from an `atta dev` that runs in this folder.
    pub(crate) fn find(file: &File) -> Fallback {
        let schema = file.schema.clone();
        // The environment names a database by variables other than DATABASE_URL, which override both.
        if ["PGDATABASE", "PGHOST", "PGHOSTADDR", "PGSERVICE"]
            .iter()
            .any(|name| std::env::var_os(name).is_some())
        {
            return Fallback { connection: None, schema, is_dev: false };
        }
        if file.connection.is_some() {
            return Fallback { connection: file.connection.clone(), schema, is_dev: false };
        }
        let connection = crate::dev::running_connection(Path::new("."));
        Fallback { is_dev: connection.is_some(), connection, schema }
    }
}
