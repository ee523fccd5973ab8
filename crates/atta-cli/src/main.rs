//! The command line: `atta`.
//!
//! Data go to standard output, everything else to standard error. Exit codes: 0 done, 1 the queried condition is false
//! or the target was not found, 2 error or bad usage.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod settings;
mod commands;
mod dev;
mod watch;
mod logging;
mod connect;
mod output;
#[cfg(test)]
mod book_reference;

use std::process::ExitCode;

use args::{Command, Said};
use output::Failure;
use settings::Settings;

fn main() -> ExitCode {
    atta_tasks::run_guard_if_requested();
    let code = begin().unwrap_or_else(|failure| output::fail(&failure));
    logging::flush();
    code
}

fn begin() -> Result<ExitCode, Failure> {
    let said = args::read()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("can't start the runtime: {error}")))?;
    let done = runtime.block_on(run(said));
    // Only connections are left, and they end with the process, so there is no need to wait for the runtime to shut
    // down.
    std::mem::forget(runtime);
    let code = done?;
    output::check_written()?;
    Ok(code)
}

async fn run(said: Said) -> Result<ExitCode, Failure> {
    let Said { args, file, sources } = said;
    let connection = &args.connection;
    let settings = |run| Settings::resolve(&args.connection, &run, &file, &sources);
    match args.command {
        None => return commands::run::run(settings(args.run.clone())?, args.run).await,
        Some(Command::Run(run)) => {
            let run = run.or(args.run);
            return commands::run::run(settings(run.clone())?, run).await;
        }
        Some(Command::Dev(mut dev)) => {
            dev.run = dev.run.or(args.run);
            return commands::dev::run(settings(dev.run.clone())?, dev).await;
        }
        Some(Command::Config(mut config)) => {
            config.run = config.run.or(args.run);
            commands::config::run(&settings(config.run.clone())?, &config)?;
        }
        Some(Command::Init(init)) => commands::init::run(&init)?,
        Some(Command::Add(args)) => commands::add::run(args, connection).await?,
        Some(Command::Jobs(args)) => commands::jobs::run(args, connection).await?,
        Some(Command::Show(args)) => commands::show::run(args, connection).await?,
        Some(Command::Complete(args)) => commands::manage::complete(args, connection).await?,
        Some(Command::Fail(args)) => commands::manage::fail(args, connection).await?,
        Some(Command::Reschedule(args)) => commands::manage::reschedule(args, connection).await?,
        Some(Command::Retry(args)) => commands::manage::retry(args, connection).await?,
        Some(Command::Remove(args)) => commands::manage::remove(args, connection).await?,
        Some(Command::Unlock(args)) => commands::manage::unlock(args, connection).await?,
        Some(Command::Queues(args)) => commands::queues::run(args, connection).await?,
        Some(Command::Tasks(args)) => commands::tasks::run(args, connection).await?,
        Some(Command::Workers(args)) => commands::workers::run(args, connection).await?,
        Some(Command::Stats(args)) => commands::stats::run(args, connection).await?,
        Some(Command::Cleanup(args)) => commands::cleanup::run(args, connection).await?,
        Some(Command::Cron(args)) => commands::cron::run(args, connection).await?,
        Some(Command::Completions(args)) => commands::completions::run(&args)?,
        Some(Command::Man(args)) => commands::man::run(&args)?,
        Some(Command::Migrate(migrate)) => commands::migrate::run(migrate).await?,
        Some(Command::Bench(bench)) => commands::bench::run(bench).await?,
    }
    Ok(ExitCode::SUCCESS)
}
