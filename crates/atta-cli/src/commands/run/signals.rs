//! Signals of the system, watched from the start of the process to its end.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::output::Failure;

pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    /// From here on, signals no longer end the process by themselves.
    pub(crate) fn watch() -> Result<Signals, Failure> {
        let watch =
            |kind| signal(kind).map_err(|error| Failure::new(format!("can't listen for signals: {error}")));
        Ok(Signals {
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
            hang_up: watch(SignalKind::hangup())?,
        })
    }

    /// The name of the next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hang_up.recv() => "SIGHUP",
        }
    }
}
