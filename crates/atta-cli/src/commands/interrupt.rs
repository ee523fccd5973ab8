//! Signals for commands that change jobs, so that they can report what was done.
//!
//! A command that works in batches finishes its current batch after the first signal. A second signal ends the command
//! at once.

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::output::{Failure, note};

/// A second signal within this time counts as a repetition of the first: `timeout` and supervisors signal a process and
/// its group.
const REPETITION: Duration = Duration::from_secs(1);

/// SIGHUP is not watched: watching it would undo `nohup`.
pub(super) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    first: Option<(&'static str, Instant)>,
}

impl Interrupts {
    /// From here on, signals no longer end the process by themselves.
    pub(super) fn watch() -> Result<Interrupts, Failure> {
        let watch =
            |kind| signal(kind).map_err(|error| Failure::new(format!("can't listen for signals: {error}")));
        let (interrupt, terminate) = (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
        Ok(Interrupts { interrupt, terminate, first: None })
    }

    /// The name of the next signal. Cancel safe.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }

    /// Waits for the first signal, unless it has arrived already. Cancel safe.
    pub(super) async fn requested(&mut self) -> &'static str {
        match self.first {
            Some((name, _)) => name,
            None => {
                let name = self.next().await;
                self.first = Some((name, Instant::now()));
                name
            }
        }
    }

    /// Waits for a second signal, which is not a repetition of the first. Cancel safe.
    pub(super) async fn repeated(&mut self) {
        loop {
            self.next().await;
            if self.first.is_none_or(|(_, at)| at.elapsed() > REPETITION) {
                return;
            }
        }
    }

    /// The first signal, if it has arrived.
    pub(super) async fn check(&mut self) -> Option<&'static str> {
        tokio::select! {
            biased;
            name = self.requested() => Some(name),
            () = std::future::ready(()) => None,
        }
    }

    /// Runs a batch to its end. Returns an error if a second signal arrives before that.
    pub(super) async fn finish<T>(&mut self, batch: impl Future<Output = T>) -> Result<T, &'static str> {
        let mut batch = pin!(batch);
        loop {
            let name = tokio::select! {
                biased;
                done = &mut batch => return Ok(done),
                name = self.next() => name,
            };
            match self.first {
                None => {
                    self.first = Some((name, Instant::now()));
                    note(&format!(
                        "{name}: the command ends after the current batch; send the signal again to end at once"
                    ));
                }
                Some((_, at)) if at.elapsed() > REPETITION => return Err(name),
                Some(_) => {}
            }
        }
    }
}
