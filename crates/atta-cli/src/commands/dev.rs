//! `atta dev`: the worker with its own PostgreSQL server.

use std::path::Path;
use std::process::ExitCode;

use crate::args::{Dev, Run};
use crate::commands::run::{self, Signals};
use crate::dev::{Home, Server, be_guard, keep_up, reset};
use crate::logging;
use crate::output::ask::confirm;
use crate::output::{Failure, note};
use crate::settings::{Origin, Settings};

pub(crate) async fn run(settings: Settings, args: Dev) -> Result<ExitCode, Failure> {
    if args.guard {
        let home = Home::open(Path::new("."))?;
        be_guard(&home)?;
        return Ok(ExitCode::SUCCESS);
    }
    logging::start(&settings.log, settings.log_format)?;
    refuse_connection(&settings)?;
    run::existing(&settings)?;
    let home = Home::open(Path::new("."))?;
    if args.reset {
        start_afresh(&home, args.yes)?;
    }
    let signals = Signals::watch()?;
    let entering = home.clone();
    let server = blocking(move || Server::enter(&entering)).await?;
    note(&greeting(&server, &settings));
    // Tasks that can't be loaded are allowed, since somebody may be editing them.
    let settings = Settings { connection: Some(server.url.clone()), allow_broken_tasks: true, ..settings };
    let worked = tokio::select! {
        worked = run::work(settings, Run { watch: true, ..args.run }, signals) => worked,
        failure = keep_up(&home, &server.url) => Err(failure),
    };
    // However that ended, the server is left properly.
    let has_stopped = blocking(move || server.leave(&home)).await?;
    if !has_stopped {
        note("PostgreSQL keeps running for the other `atta dev` in this folder.");
    }
    worked
}

/// `-c` with `dev` is a mistake, so it is rejected. A variable or the settings file may be meant for other commands.
fn refuse_connection(settings: &Settings) -> Result<(), Failure> {
    let origin = settings.entries.iter().find(|entry| entry.key == "connection").map(|entry| &entry.origin);
    match origin {
        Some(Origin::Flag(_)) => {
            Err(Failure::new("`atta dev` uses its own database, and does not accept --connection")
                .with_hint("to use another database, run: atta run --watch -c postgres://user@host/database"))
        }
        Some(origin @ (Origin::Environment(_) | Origin::File(_))) => {
            tracing::info!("ignoring the database of {origin}: `atta dev` uses its own");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn start_afresh(home: &Home, is_sure: bool) -> Result<(), Failure> {
    confirm("delete the PostgreSQL server in .atta, with all data and jobs in it", is_sure)?;
    reset(home)
}

fn greeting(server: &Server, settings: &Settings) -> String {
    let state = if server.is_joined { "was already running" } else { "is up" };
    let schema = match settings.schema.as_str() {
        "graphile_worker" => String::new(),
        name => format!(" (schema {name:?})"),
    };
    format!(
        "PostgreSQL {state}, with its data in .atta{schema}. Connect to it with\n\n  {}\n\n\
         Other commands of atta that run in this folder connect to it by default.\nPress Ctrl-C to stop.\n",
        server.url
    )
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Failure::new(format!("the task that supervises the server panicked: {error}")))?
}
