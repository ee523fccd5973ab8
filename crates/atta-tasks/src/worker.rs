//! A worker together with the open folder whose tasks it runs.

use std::future::Future;
use std::ops::Deref;

use atta::{Result, Worker};

use crate::folder::{TasksFolder, refuse};

/// A [`Worker`] that runs the tasks of a folder, besides those in Rust.
///
/// Everything that does not run jobs is a method of the worker: `handle`, `create_utils`, `events`. Dropping this value
/// ends the processes of the tasks.
#[derive(Debug)]
pub struct TaskWorker {
    worker: Worker,
    folder: TasksFolder,
}

impl TaskWorker {
    pub(crate) fn new(worker: Worker, folder: TasksFolder) -> TaskWorker {
        TaskWorker { worker, folder }
    }

    /// Runs jobs until a shutdown is requested, then drains, and ends the processes of the tasks.
    ///
    /// If a host took long to load its tasks, and one of them can't be loaded, the worker shuts down, and this is an
    /// error, unless broken tasks are allowed. If the future is dropped, the worker aborts, as [`Worker::run`] does, and
    /// the processes are ended.
    pub async fn run(self) -> Result<()> {
        let ended = self.run_unless_broken(self.worker.run()).await;
        self.close().await;
        ended
    }

    /// Runs due jobs, and jobs that become due as a result, until none are left. Does not use cron or LISTEN. Can be
    /// called again.
    ///
    /// The jobs of a host that takes long to load its tasks run after the others. If a host dies meanwhile, its jobs wait
    /// until it is ready again. If the future is dropped, the worker aborts, as [`Worker::run`] does.
    pub async fn run_once(&self) -> Result<()> {
        self.run_unless_broken(self.folder.run_once(&self.worker)).await
    }

    /// Ends the processes of the tasks, and waits for the end of the hosts. Without this call they end when this value is
    /// dropped, but are not waited for. Cancel safe.
    pub async fn close(self) {
        self.folder.close().await;
    }

    async fn run_unless_broken(&self, run: impl Future<Output = Result<()>>) -> Result<()> {
        tokio::pin!(run);
        tokio::select! {
            ended = &mut run => ended,
            broken = self.folder.broken_late(), if !self.folder.allows_broken() => {
                tracing::error!("not all tasks can be loaded, so the worker shuts down");
                self.worker.request_shutdown();
                run.await.and(Err(refuse(&broken)))
            }
        }
    }
}

impl Deref for TaskWorker {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}
