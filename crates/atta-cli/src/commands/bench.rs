//! `atta bench`: measures the speed of this server, in a database that the benchmark creates.
//!
//! The measurements are in [`measure`], one function each, in the order in which they run. [`site`] creates and removes
//! the database; [`fleet`] has the workers; [`report`] prints the result.

mod site;
mod fleet;
mod measure;
mod report;

use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Bench;
use crate::connect::{open, settings};
use crate::output::{Failure, print};
use fleet::Fleet;
use report::Report;
use site::Site;

pub(crate) async fn run(args: Bench) -> Result<(), Failure> {
    if args.memory_probe {
        return measure::probe_memory(&args).await;
    }
    let settings = settings(&args.connection)?;
    let client = open(&settings).await?;
    // From here on there is something to clean up.
    let interrupted = interrupted()?;
    let site = Site::open(&args, settings, client).await?;
    let mut fleet = Fleet::default();
    let progress = Progress::new();
    let measured = tokio::select! {
        measured = measure::all(&args, &site, &mut fleet, &progress) => measured,
        () = interrupted => Err(Failure::new("interrupted")),
    };
    progress.clear();
    // However it ended: first stop the workers, then remove the database.
    let stopped = fleet.stop().await;
    site.close().await?;
    let report = measured?;
    stopped?;
    print(&show(&report, args.json)?);
    Ok(())
}

fn show(report: &Report, as_json: bool) -> Result<String, Failure> {
    if !as_json {
        return Ok(report.to_string());
    }
    let json = serde_json::to_string_pretty(report)
        .map_err(|error| Failure::new(format!("can't write the results as JSON: {error}")))?;
    Ok(json + "\n")
}

/// Completes with the first signal to stop. Signals are watched from the call on, so that none is missed.
#[cfg(unix)]
fn interrupted() -> Result<impl Future<Output = ()>, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let watch =
        |kind| signal(kind).map_err(|error| Failure::new(format!("can't listen for signals: {error}")));
    let (mut interrupt, mut terminate) = (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
    let mut hang_up = watch(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    })
}

#[cfg(not(unix))]
fn interrupted() -> Result<impl Future<Output = ()>, Failure> {
    Ok(async {
        // If Ctrl-C can't be watched, nothing interrupts.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

/// One line on a terminal that shows the current step; indicatif shows nothing if there is no terminal.
struct Progress(ProgressBar);

impl Progress {
    fn new() -> Progress {
        let style =
            ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
        Progress(ProgressBar::new_spinner().with_style(style))
    }

    fn say(&self, text: &str) {
        self.0.set_message(text.to_owned());
        self.0.tick();
    }

    fn clear(&self) {
        self.0.finish_and_clear();
    }
}
