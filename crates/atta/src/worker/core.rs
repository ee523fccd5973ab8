//! The thread of a worker's own work: its loop, its connections, its heartbeats, LISTEN and cron.
//!
//! Tasks run on the application's runtime. A task that computes for a minute without yielding, or calls
//! `std::thread::sleep`, blocks a thread of that runtime, and several such tasks block all threads. The worker's own
//! work must not be delayed by that: heartbeats would be missed and claims lost while the job runs. So the worker has a
//! separate runtime with one thread, on which no code of the application runs.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Error, Result};

/// A running thread. It ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Core {
    handle: Handle,
    _until_dropped: Arc<DropGuard>,
}

impl Core {
    /// Starts the thread. It uses the caller's `tracing` subscriber.
    pub(super) fn start() -> Result<Core> {
        let failed =
            |error: std::io::Error| Error::internal(format!("starting the worker's thread: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (handle, ended) = (runtime.handle().clone(), CancellationToken::new());
        let (until, dispatch) = (ended.clone(), tracing::dispatcher::get_default(Clone::clone));
        let run = move || {
            let _logs = tracing::dispatcher::set_default(&dispatch);
            runtime.block_on(until.cancelled());
            // The runtime drops the remaining tasks: connections that are no longer used.
        };
        std::thread::Builder::new().name("atta-worker".into()).spawn(run).map_err(failed)?;
        Ok(Core { handle, _until_dropped: Arc::new(ended.drop_guard()) })
    }

    /// Runs a future on the thread. The thread runs until the future has ended, even if all clones are dropped before.
    pub(super) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let core = self.clone();
        self.handle.spawn(async move {
            let output = future.await;
            drop(core);
            output
        })
    }
}
