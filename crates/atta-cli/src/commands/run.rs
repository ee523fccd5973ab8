//! `atta run`, or `atta` alone: the worker.
//!
//! A process has one worker at a time; with `--watch`, a second one while the first finishes its jobs, because a change
//! of the tasks starts a new generation of them. [`generations`] has the generations; signals and changes are handled here.

mod generations;
mod signals;

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::Instant;

use atta::{ConnectionSettings, Schema, WorkerUtils};
use atta_tasks::TasksFolder;

use crate::args::{Connection, Run};
use crate::connect;
use crate::logging;
use crate::output::Failure;
use crate::output::exit::Exit;
use crate::settings::Settings;
use crate::watch::Watch;
use generations::{Generations, Mode, tasks_settings};
pub(crate) use signals::Signals;

/// Supervisors and `timeout` send a signal to a process and to its group, so that it arrives twice. Signals that follow
/// the first one within this time are ignored.
const REPEATS: Duration = Duration::from_secs(5);

pub(crate) async fn run(settings: Settings, args: Run) -> Result<ExitCode, Failure> {
    logging::start(&settings.log, settings.log_format)?;
    let signals = Signals::watch()?;
    // Runs on one of the runtime's own threads: an answer of the database then wakes its reader without a change of
    // threads.
    let worked = tokio::spawn(work(settings, args, signals)).await;
    worked.map_err(|error| Failure::new(format!("the worker panicked: {error}")))?
}

/// The same, for callers that have already started the log and have something to do before.
pub(crate) async fn work(settings: Settings, args: Run, mut signals: Signals) -> Result<ExitCode, Failure> {
    if args.fail_on_error && !args.once {
        return Err(Failure::new("--fail-on-error can only be used with --once")
            .with_hint("a worker without --once runs until it is stopped, and logs the jobs that fail"));
    }
    let database = Database::find(&settings)?;
    if args.schema_only {
        migrate(&database).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.cleanup.is_empty() {
        clean_up(&settings, &database, &args).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut watch = match args.watch && !args.once {
        true => Some(Watch::start(&existing(&settings)?.tasks, &settings.crontab)?),
        false => None,
    };
    let mode = match (args.once, &watch) {
        (true, _) => Mode::Once,
        (false, None) => Mode::UntilShutdown,
        (false, Some(_)) => Mode::Watching,
    };
    let mut generations = Generations::new(settings, database, mode);
    if args.fail_on_error {
        generations.count_failures();
    }
    tokio::select! {
        started = generations.start() => started?,
        name = signals.next() => {
            tracing::info!("{name} before the worker had started");
            return Ok(ExitCode::from(Exit::CUT_SHORT));
        }
    }
    let mut first_signal_at: Option<Instant> = None;
    let mut is_aborted = false;
    let mut patience = None;
    loop {
        let mut received = None;
        tokio::select! {
            ended = generations.ended() => {
                ended?;
                break;
            }
            name = signals.next() => received = Some(name),
            () = changed(&mut watch), if first_signal_at.is_none() => {
                // A reload may have to wait for the database.
                tokio::select! {
                    () = generations.reload() => {}
                    name = signals.next() => received = Some(name),
                }
            }
            () = until(patience) => {
                patience = None;
                generations.abort("the grace period is over");
            }
        }
        let Some(name) = received else { continue };
        match first_signal_at {
            None => {
                first_signal_at = Some(Instant::now());
                patience = generations.stop(name);
            }
            Some(first) if first.elapsed() < REPEATS => {
                tracing::info!("{name}: already shutting down; a signal after 5 s ends everything at once");
            }
            Some(_) => {
                is_aborted = true;
                generations.abort(name);
            }
        }
    }
    let is_cut_short = is_aborted || (first_signal_at.is_some() && args.once);
    let failed = generations.failed();
    if failed > 0 {
        tracing::error!(failed, "attempts failed during this run, so the exit code is 1");
    }
    Ok(match (is_cut_short, failed) {
        (true, _) => ExitCode::from(Exit::CUT_SHORT),
        (false, 0) => ExitCode::SUCCESS,
        (false, _) => ExitCode::from(Exit::FAILED),
    })
}

async fn changed(watch: &mut Option<Watch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The folder of tasks must exist, also to be watched.
pub(crate) fn existing(settings: &Settings) -> Result<&Settings, Failure> {
    if settings.tasks.exists() {
        return Ok(settings);
    }
    Err(Failure::new(format!("there is no folder of tasks: {}", settings.tasks.display()))
        .with_hint("run `atta init` to get a first one, or name yours by --tasks"))
}

/// The database that has the jobs. Read only once, since reading it may log warnings.
#[derive(Clone, Debug)]
struct Database {
    settings: ConnectionSettings,
    schema: Schema,
}

impl Database {
    fn find(settings: &Settings) -> Result<Database, Failure> {
        let said = Connection { connection: settings.connection.clone(), schema: settings.schema.clone() };
        Ok(Database { settings: connect::settings(&said)?, schema: Schema::new(settings.schema.as_str())? })
    }

    /// The connection string for the library, and for the database clients of hosted tasks. It needs no environment.
    fn text(&self) -> String {
        self.settings.to_string_with_password()
    }
}

/// Migrates on explicit request. The library logs what was done, and which releases stop working.
async fn migrate(database: &Database) -> Result<(), Failure> {
    let mut client = connect::open(&database.settings).await?;
    let plan = atta::migrate(&mut client, &database.schema).await?;
    if plan.is_empty() {
        tracing::info!(schema = database.schema.name(), "the schema is up to date");
    }
    Ok(())
}

/// Migrates for commands that are not about migrations: these must not run a migration that would stop other workers.
async fn migrate_unless_breaking(settings: &Settings, database: &Database) -> Result<(), Failure> {
    let client = connect::open(&database.settings).await?;
    let plan = atta::plan_migration(&client, &database.schema).await?;
    let stops = plan.stops_working().filter(|_| !settings.allow_breaking_migration);
    if let Some(stops) = stops {
        let name = database.schema.quoted();
        return Err(Failure::new(format!("schema {name} has to be migrated first: after that, {stops}"))
            .with_hint("run: atta migrate; or say --allow-breaking-migration"));
    }
    migrate(database).await
}

/// Tasks in the folder are kept, even if they have no jobs.
async fn clean_up(settings: &Settings, database: &Database, args: &Run) -> Result<(), Failure> {
    migrate_unless_breaking(settings, database).await?;
    let mut keep = Vec::new();
    if settings.tasks.exists() {
        let folder = TasksFolder::open(tasks_settings(settings, database)?).await?;
        keep = folder.identifiers();
        folder.close().await;
    }
    let keep: Vec<&str> = keep.iter().map(String::as_str).collect();
    let pool = WorkerUtils::connect(&database.text())?.pool().clone();
    let utils = WorkerUtils::new(pool, database.schema.clone());
    let tasks: Vec<atta::CleanupTask> = args.cleanup.iter().map(|choice| (*choice).into()).collect();
    utils.cleanup(&tasks, &keep).await?;
    let names: Vec<&str> = tasks.iter().map(|task| task.as_str()).collect();
    tracing::info!("cleaned up: {}", names.join(", "));
    Ok(())
}
