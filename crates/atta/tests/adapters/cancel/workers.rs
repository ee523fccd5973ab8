//! Runs of a worker. After a drop, every job has either completed or is free for other workers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use atta::{JobSpec, WorkerContext, WorkerOptions, testing};
use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::Notify;

use super::world::World;
use super::{Drops, MOST_POLLS, poll_and_drop};

pub(super) const COVERED: &[&str] = &[
    "worker.rs run",
    "worker.rs run_once",
    "run.rs run",
    "run.rs run_once",
    "testing.rs run_due_jobs",
    "event.rs next",
];

/// The last of these jobs hangs in the first run.
const JOBS: usize = 5;

/// What the tasks of a test have done.
#[derive(Clone, Default)]
struct Work {
    finished: Arc<Mutex<BTreeSet<usize>>>,
    hangs: Arc<Mutex<bool>>,
    progress: Arc<Notify>,
}

impl Work {
    fn options(&self, world: &World) -> WorkerOptions {
        let work = self.clone();
        WorkerOptions::default()
            .database_url(world.db.url())
            .define_raw_job("work", move |ctx: WorkerContext| work.clone().run(ctx))
    }

    async fn run(self, ctx: WorkerContext) {
        let n: usize = ctx.payload().unwrap();
        if n + 1 == JOBS && *self.hangs.lock().unwrap() {
            std::future::pending::<()>().await;
        }
        self.finished.lock().unwrap().insert(n);
        self.progress.notify_one();
    }

    /// Waits until all jobs that do not hang have run.
    async fn rest(&self) {
        while self.finished.lock().unwrap().len() + 1 < JOBS {
            self.progress.notified().await;
        }
    }
}

type Call = fn(WorkerOptions) -> BoxFuture<'static, ()>;

async fn drop_each(call: Call) {
    let world = World::new().await;
    for polls in 0..MOST_POLLS {
        let what = format!("{polls} polls");
        world.reset().await;
        for n in 0..JOBS {
            world.utils.add_raw_job("work", n, JobSpec::default()).await.unwrap();
        }
        let work = Work::default();
        *work.hangs.lock().unwrap() = true;
        let is_over = tokio::select! {
            biased;
            ended = poll_and_drop(call(work.options(&world)), polls, Drops::AtOnce) => {
                assert!(ended.is_none(), "one job hangs: {what}");
                false
            }
            () = work.rest() => true,
        };
        wait_until_free(&world, &what).await;
        let gone = JOBS - usize::try_from(world.count("work").await).unwrap();
        assert!(gone <= work.finished.lock().unwrap().len(), "deleted and not run: {what}");
        *work.hangs.lock().unwrap() = false;
        work.options(&world).init().await.unwrap().run_once().await.unwrap();
        assert_eq!((world.count("work").await, work.finished.lock().unwrap().len()), (0, JOBS), "{what}");
        world.wait_for_connections(1, &what).await;
        if is_over {
            return;
        }
    }
    panic!("the jobs did not run");
}

/// Waits until the dropped worker has returned its jobs and has deregistered.
async fn wait_until_free(world: &World, what: &str) {
    let left = "
        select concat_ws(
          ' ',
          (select count(*) from graphile_worker._atta_workers),
          (select count(*) from graphile_worker.jobs where task_identifier = 'work' and locked_by is not null)
        )
    ";
    testkit::wait_for(&format!("the dropped worker to leave: {what}"), || async {
        (world.text(left).await == "0 0").then_some(())
    })
    .await;
    world.settle(what).await;
}

#[tokio::test]
async fn a_dropped_run_loses_no_job() {
    drop_each(|options| Box::pin(async { options.init().await.unwrap().run().await.unwrap() })).await;
}

#[tokio::test]
async fn a_dropped_run_until_empty_loses_no_job() {
    drop_each(|options| Box::pin(async { options.init().await.unwrap().run_once().await.unwrap() })).await;
}

#[tokio::test]
async fn a_dropped_run_in_one_call_loses_no_job() {
    drop_each(|options| Box::pin(async { atta::run(options).await.unwrap() })).await;
    drop_each(|options| Box::pin(async { atta::run_once(options).await.unwrap() })).await;
}

#[tokio::test]
async fn a_dropped_run_of_a_test_loses_no_job() {
    drop_each(|options| {
        Box::pin(async { drop(testing::run_due_jobs(&options.init().await.unwrap()).await.unwrap()) })
    })
    .await;
}

#[tokio::test]
async fn a_dropped_wait_for_an_event_loses_none() {
    let world = World::new().await;
    world.utils.add_raw_job("work", json!(0), JobSpec::default()).await.unwrap();
    let worker = Work::default().options(&world).init().await.unwrap();
    let (mut all, mut dropped) = (worker.events(), worker.events());
    for polls in 0..2 {
        assert!(poll_and_drop(dropped.next(), polls, Drops::AtOnce).await.is_none());
    }
    worker.run_once().await.unwrap();
    while let Some(event) = all.try_next() {
        assert!(poll_and_drop(dropped.next(), 0, Drops::AtOnce).await.is_none());
        let next = dropped.next().await.unwrap();
        assert_eq!(format!("{next:?}"), format!("{event:?}"));
    }
    assert!(dropped.try_next().is_none());
}
