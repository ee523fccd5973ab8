//! Workers for tests: tasks that report what they did, and a worker that ends with its test.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use atta::{Claims, Job, Worker, WorkerContext, WorkerHandle, WorkerOptions, WorkerUtils};
use testkit::Database;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// A running worker, and the reports of its tasks.
pub(crate) struct Running {
    pub(crate) handle: WorkerHandle,
    pub(crate) utils: WorkerUtils,
    task: JoinHandle<atta::Result<()>>,
}

impl Running {
    pub(crate) async fn start(options: WorkerOptions) -> Running {
        let worker = options.init().await.expect("the worker starts");
        Running::with(worker)
    }

    pub(crate) fn with(worker: Worker) -> Running {
        let (handle, utils) = (worker.handle(), worker.create_utils());
        Running { handle, utils, task: tokio::spawn(async move { worker.run().await }) }
    }

    /// Requests a shutdown and waits for it.
    pub(crate) async fn stop(self) -> atta::Result<()> {
        self.handle.request_shutdown();
        self.join().await
    }

    pub(crate) async fn join(self) -> atta::Result<()> {
        tokio::time::timeout(testkit::DEADLINE, self.task)
            .await
            .expect("the worker ends")
            .expect("it does not panic")
    }
}

/// What the tasks of a test report.
pub(crate) struct Reports {
    sender: mpsc::UnboundedSender<Arc<Job>>,
    receiver: mpsc::UnboundedReceiver<Arc<Job>>,
}

impl Reports {
    pub(crate) fn new() -> Reports {
        let (sender, receiver) = mpsc::unbounded_channel();
        Reports { sender, receiver }
    }

    /// A task that reports each job, and then runs `then`.
    pub(crate) fn task<F, R>(
        &self,
        then: F,
    ) -> impl Fn(WorkerContext) -> R + Send + Sync + 'static + use<F, R>
    where
        F: Fn(WorkerContext) -> R + Send + Sync + 'static,
        R: Future + Send + 'static,
    {
        let sender = self.sender.clone();
        move |ctx: WorkerContext| {
            let _ = sender.send(Arc::new(ctx.job().clone()));
            then(ctx)
        }
    }

    /// The next job that was started.
    pub(crate) async fn next(&mut self) -> Arc<Job> {
        let next = tokio::time::timeout(testkit::DEADLINE, self.next_at_any_time());
        next.await.expect("a job begins before the deadline")
    }

    /// The same without a deadline.
    pub(crate) async fn next_at_any_time(&mut self) -> Arc<Job> {
        self.receiver.recv().await.expect("the sender lives as long")
    }

    /// A job that was started and not returned by this or `next` yet.
    pub(crate) fn begun(&mut self) -> Option<Arc<Job>> {
        self.receiver.try_recv().ok()
    }

    /// Whether no other job was started.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.receiver.try_recv().is_err()
    }
}

/// Options for a database, with a task `noop` that reports and succeeds.
pub(crate) fn options(db: &Database) -> WorkerOptions {
    WorkerOptions::default().database_url(db.url()).concurrency(4).max_pg_conn(6).claims(claims())
}

/// The same without polls and heartbeats during the test, except at the start. A job that waits for one makes the test fail,
/// and the number of queries does not depend on time.
pub(crate) fn without_polls(db: &Database) -> WorkerOptions {
    let rarely = Duration::from_secs(3600);
    options(db).poll_interval(rarely).recovery_threshold(6 * rarely)
}

/// Held claims, unless the tests run with durable claims: the guarantees of a worker apply to both.
pub(crate) fn claims() -> Claims {
    match std::env::var("ATTA_TEST_CLAIMS").as_deref() {
        Err(_) | Ok("held") => Claims::Held,
        Ok("durable") => Claims::Durable,
        Ok(other) => panic!("ATTA_TEST_CLAIMS is held or durable, not {other:?}"),
    }
}

/// Waits until no job is left.
pub(crate) async fn wait_until_empty(utils: &WorkerUtils) {
    testkit::wait_for("all jobs to be done", || async {
        (utils.count_jobs().await.expect("jobs are counted").total() == 0).then_some(())
    })
    .await;
}
