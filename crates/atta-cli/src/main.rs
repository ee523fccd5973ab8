//! The command line: `atta`.
//!
//! Data go to standard output, everything else to standard error. Exit codes: 0 done, 1 the asked-for thing is not
//! so, 2 error or bad usage.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod commands;
mod connect;
mod output;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return output::fail(&output::Failure::new(format!("can't start the runtime: {error}")));
        }
    };
    let done = runtime.block_on(async {
        let connection = &args.connection;
        match args.command {
            Command::Add(args) => commands::add::run(args, connection).await,
            Command::Jobs(args) => commands::jobs::run(args, connection).await,
            Command::Show(args) => commands::show::run(args, connection).await,
            Command::Complete(args) => commands::steer::complete(args, connection).await,
            Command::Fail(args) => commands::steer::fail(args, connection).await,
            Command::Reschedule(args) => commands::steer::reschedule(args, connection).await,
            Command::Retry(args) => commands::steer::retry(args, connection).await,
            Command::Remove(args) => commands::steer::remove(args, connection).await,
            Command::Unlock(args) => commands::steer::unlock(args, connection).await,
            Command::Queues(args) => commands::queues::run(args, connection).await,
            Command::Tasks(args) => commands::tasks::run(args, connection).await,
            Command::Workers(args) => commands::workers::run(args, connection).await,
            Command::Stats(args) => commands::stats::run(args, connection).await,
            Command::Cleanup(args) => commands::cleanup::run(args, connection).await,
            Command::Cron(args) => commands::cron::run(args, connection).await,
            Command::Completions(args) => commands::completions::run(&args),
            Command::Man(args) => commands::man::run(&args),
            Command::Migrate(migrate) => commands::migrate::run(migrate).await,
            Command::Bench(bench) => commands::bench::run(bench).await,
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output::fail(&failure),
    }
}
