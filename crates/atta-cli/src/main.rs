//! The command line: `atta`.
//!
//! Data go to standard output, everything else to standard error. Exit codes: 0 done, 1 the asked-for thing is not
//! so, 2 error or bad usage.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod commands;
mod connect;
mod output;
#[allow(dead_code, reason = "called by the commands that run a worker")]
mod tasks;

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
        match args.command {
            Command::Migrate(migrate) => commands::migrate::run(migrate).await,
            Command::Bench(bench) => commands::bench::run(bench).await,
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output::fail(&failure),
    }
}
