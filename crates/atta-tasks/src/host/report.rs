//! What is logged about a host, and for it.

use serde_json::value::RawValue;

use super::event::{BrokenTask, Report, RunningJob};
use super::machine::LONGEST_PAUSE;
use super::process::Stream;
use crate::wire::{LogEntry, LogLevel};

/// The host that is logged about.
pub(super) struct Subject<'a> {
    pub(super) host: &'a str,
    /// The id of the worker, if it is known.
    pub(super) worker: Option<&'a str>,
    /// What tasks log and print is logged only for debugging: this is another start after one that failed, and the same
    /// was logged before.
    pub(super) is_repeating: bool,
}

impl Subject<'_> {
    pub(super) fn report(&self, report: Report) {
        let host = self.host;
        match report {
            Report::Logged { entry, job } => self.log(&entry, job.as_ref()),
            Report::Broken(BrokenTask { identifier: task, error }) => {
                tracing::error!(task, "the task can't be loaded, so its jobs are not claimed: {error}");
            }
            Report::Ready { version, is_expected: true } => {
                tracing::debug!(host, version, "the host is ready");
            }
            Report::Ready { version, is_expected: false } => {
                tracing::info!(host, version, "the host is ready; its jobs are claimed");
            }
            Report::StillLoading => tracing::warn!(
                host,
                "the host is still loading its tasks: its jobs are not claimed until it is ready; jobs of other tasks run \
                 meanwhile"
            ),
            Report::Died { how, pause } => tracing::error!(
                host,
                how,
                "the host died; it is restarted in {pause:?}, and its jobs are not claimed until it is ready"
            ),
            Report::NotReady { how, is_repeated: true } => {
                tracing::debug!(host, how, "the host ended again before it was ready");
            }
            Report::NotReady { how, is_repeated: false } => tracing::error!(
                host,
                how,
                "the host ended before it was ready; its jobs are not claimed until it is; it is restarted at \
                 intervals of up to {LONGEST_PAUSE:?}"
            ),
            Report::LateEnd { run } => {
                // Its time limit was over, or the worker stopped.
                tracing::debug!(host, run, "a run ended that had been given up");
            }
        }
    }

    /// Logs lines of the process's standard output or error.
    pub(super) fn log_output(&self, stream: Stream, lines: &[String]) {
        let host = self.host;
        for line in lines {
            match stream {
                Stream::Stdout if self.is_repeating => {
                    tracing::debug!(parent: None, host, stream = "stdout", "{line}");
                }
                Stream::Stdout => tracing::info!(parent: None, host, stream = "stdout", "{line}"),
                Stream::Stderr if self.is_repeating => {
                    tracing::debug!(parent: None, host, stream = "stderr", "{line}");
                }
                Stream::Stderr => tracing::warn!(parent: None, host, stream = "stderr", "{line}"),
            }
        }
    }

    /// Logs a message of a task with its job, or a message of the host itself.
    fn log(&self, entry: &LogEntry, run: Option<&RunningJob>) {
        let (job, attempt) = (run.map(|run| run.id), run.map(|run| run.attempt));
        let task = run.map(|run| &*run.task);
        let worker = self.worker.filter(|_| run.is_some());
        let host = run.is_none().then_some(self.host);
        let message = entry.message.as_str();
        let meta = entry.meta.as_deref().map(RawValue::get);
        let level = if self.is_repeating { LogLevel::Debug } else { entry.level };
        match level {
            LogLevel::Error => {
                tracing::error!(parent: None, worker, job, task, attempt, host, meta, "{message}")
            }
            LogLevel::Warn => {
                tracing::warn!(parent: None, worker, job, task, attempt, host, meta, "{message}")
            }
            LogLevel::Info => {
                tracing::info!(parent: None, worker, job, task, attempt, host, meta, "{message}")
            }
            LogLevel::Debug => {
                tracing::debug!(parent: None, worker, job, task, attempt, host, meta, "{message}")
            }
        }
    }
}
