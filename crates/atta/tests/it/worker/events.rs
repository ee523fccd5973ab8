//! Events: which are sent, in which order, and that each of them is true.

use std::sync::Arc;
use std::sync::Mutex;

use atta::{HookFuture, Hooks, Job, JobSpec, JobSpecBuilder, WorkerEvent};
use serde_json::json;
use testkit::Database;

use super::support::options;

fn name(event: &WorkerEvent) -> Option<&'static str> {
    Some(match event {
        WorkerEvent::Started { .. } => "started",
        WorkerEvent::JobStarted { .. } => "job started",
        WorkerEvent::JobSucceeded { .. } => "job succeeded",
        WorkerEvent::JobErrored { .. } => "job errored",
        WorkerEvent::JobFailed { .. } => "job failed",
        WorkerEvent::JobCompleted { .. } => "job completed",
        WorkerEvent::Stopped { .. } => "stopped",
        _ => return None,
    })
}

#[tokio::test]
async fn the_outcome_of_a_job_is_written_before_its_event_is_sent() {
    let db = Database::migrated().await;
    let options = options(&db).concurrency(1).define_raw_job("bad", |_| async { Err::<(), _>("no") });
    let mut events = options.subscribe();
    let worker = options.init().await.unwrap();
    let utils = worker.create_utils();
    let once = JobSpecBuilder::new().max_attempts(1);
    let id = utils.add_raw_job("bad", json!({}), once).await.unwrap().id();
    let run = tokio::spawn(async move { worker.run_once().await });
    let mut told = Vec::new();
    while let Some(event) = events.next().await {
        if matches!(event, WorkerEvent::JobErrored { .. }) {
            let job = utils.get_job(id).await.unwrap().unwrap();
            assert_eq!((job.locked_by(), job.last_error()), (None, Some("no")));
        }
        let is_last = matches!(event, WorkerEvent::Stopped { .. });
        told.extend(name(&event));
        if is_last {
            break;
        }
    }
    run.await.unwrap().unwrap();
    assert_eq!(told, ["started", "job started", "job errored", "job failed", "job completed", "stopped"]);
}

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn note(&self, text: String) -> HookFuture<'_> {
        Box::pin(async move { self.0.lock().unwrap().push(text) })
    }
}

impl Hooks for Notes {
    fn before_run<'a>(&'a self, job: &'a Job) -> HookFuture<'a> {
        self.note(format!("before {}", job.task_identifier()))
    }

    fn after_run<'a>(&'a self, job: &'a Job, error: Option<&'a str>) -> HookFuture<'a> {
        self.note(format!("after {} {error:?}", job.task_identifier()))
    }

    fn on_complete<'a>(&'a self, job: &'a Job) -> HookFuture<'a> {
        self.note(format!("complete {}", job.task_identifier()))
    }

    fn on_fail<'a>(&'a self, job: &'a Job, error: &'a str) -> HookFuture<'a> {
        self.note(format!("fail {} {error}", job.task_identifier()))
    }

    fn on_permanent_failure<'a>(&'a self, job: &'a Job, error: &'a str) -> HookFuture<'a> {
        self.note(format!("give up {} {error}", job.task_identifier()))
    }
}

/// Panics in every hook of a job.
struct Bomb;

impl Hooks for Bomb {
    fn before_run<'a>(&'a self, _job: &'a Job) -> HookFuture<'a> {
        panic!("before there is a future")
    }

    fn after_run<'a>(&'a self, _job: &'a Job, _error: Option<&'a str>) -> HookFuture<'a> {
        Box::pin(async { panic!("within the future") })
    }

    fn on_complete<'a>(&'a self, _job: &'a Job) -> HookFuture<'a> {
        panic!("after the write")
    }
}

#[tokio::test]
async fn hooks_are_called_and_a_panicking_one_harms_nothing() {
    let db = Database::migrated().await;
    let notes = Notes::default();
    let worker = options(&db)
        .concurrency(1)
        .define_raw_job("good", |_| async {})
        .define_raw_job("bad", |_| async { Err::<(), _>("no") })
        .add_hooks(Bomb)
        .add_hooks(notes.clone())
        .init()
        .await
        .unwrap();
    let utils = worker.create_utils();
    utils.add_raw_job("good", 1, JobSpec::default()).await.unwrap();
    worker.run_once().await.unwrap();
    utils.add_raw_job("bad", 1, JobSpec::default()).await.unwrap();
    worker.run_once().await.unwrap();
    utils.add_raw_job("bad", 1, JobSpecBuilder::new().max_attempts(1)).await.unwrap();
    worker.run_once().await.unwrap();
    let notes = notes.0.lock().unwrap().clone();
    assert_eq!(
        notes,
        [
            "before good",
            "after good None",
            "complete good",
            "before bad",
            "after bad Some(\"no\")",
            "fail bad no",
            "before bad",
            "after bad Some(\"no\")",
            "give up bad no",
        ]
    );
}

#[tokio::test]
async fn a_job_that_was_removed_while_it_ran_fails_permanently() {
    let db = Database::migrated().await;
    let notes = Notes::default();
    // The job removes itself by its key, as another session could.
    let task = |ctx: atta::WorkerContext| async move {
        assert!(ctx.utils().remove_job("k").await.unwrap().is_some());
        Err::<(), _>("no")
    };
    let options =
        options(&db).claims(atta::Claims::Durable).define_raw_job("removed", task).add_hooks(notes.clone());
    let mut events = options.subscribe();
    let worker = options.init().await.unwrap();
    let utils = worker.create_utils();
    let job = utils.add_raw_job("removed", 1, JobSpecBuilder::new().job_key("k")).await.unwrap();
    worker.run_once().await.unwrap();
    let left = utils.get_job(job.id()).await.unwrap().unwrap();
    assert_eq!((left.attempts(), left.last_error()), (25, Some("no")));
    let mut told = Vec::new();
    while let Some(event) = events.try_next() {
        told.extend(name(&event));
    }
    assert_eq!(told, ["started", "job started", "job errored", "job failed", "job completed", "stopped"]);
    let notes = notes.0.lock().unwrap().clone();
    assert_eq!(notes, ["before removed", "after removed Some(\"no\")", "give up removed no"]);
}
