//! Paused tasks: their jobs are not claimed, and lose no attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atta::{JobSpec, JobSpecBuilder, LocalQueueConfig, PausedTasks, TaskError, WorkerUtils};
use serde_json::json;
use testkit::{Database, wait_for};

use super::support::{Reports, Running, options, wait_until_empty};

/// How many jobs are neither locked nor have lost an attempt.
async fn untouched(utils: &WorkerUtils) -> usize {
    let jobs = atta::testing::jobs_of(utils, "later").await.unwrap();
    jobs.iter().filter(|job| job.attempts() == 0 && job.locked_at().is_none()).count()
}

#[tokio::test]
async fn jobs_of_a_paused_task_wait_and_run_as_soon_as_it_is_resumed() {
    let db = Database::migrated().await;
    let (mut reports, paused) = (Reports::new(), PausedTasks::default());
    paused.pause(["later"]);
    let options = options(&db)
        // No poll finds the jobs.
        .poll_interval(Duration::from_secs(3600))
        .paused_tasks(paused.clone())
        .define_raw_job("now", reports.task(|_| async {}))
        .define_raw_job("later", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    for round in 1..=2 {
        worker.utils.add_raw_job("later", 1, JobSpec::default()).await.unwrap();
        worker.utils.add_raw_job("later", 2, JobSpecBuilder::new().queue_name("q")).await.unwrap();
        worker.utils.add_raw_job("later", 3, JobSpecBuilder::new().flags(vec!["f".into()])).await.unwrap();
        worker.utils.add_raw_job("now", 4, JobSpecBuilder::new().priority(9)).await.unwrap();
        assert_eq!(reports.next().await.task_identifier(), "now", "round {round}");
        // A claim that was under way when the task was paused may have returned some.
        let utils = &worker.utils;
        wait_for("the others to be untouched", || async { (untouched(utils).await == 3).then_some(()) })
            .await;
        assert!(reports.is_empty());
        paused.resume(["later"]);
        for _ in 0..3 {
            let job = reports.next().await;
            assert_eq!((job.task_identifier(), job.attempts()), ("later", 1));
        }
        wait_until_empty(&worker.utils).await;
        paused.pause(["later"]);
    }
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn claimed_jobs_that_have_not_started_are_returned_when_their_task_is_paused() {
    let db = Database::migrated().await;
    let (mut reports, paused) = (Reports::new(), PausedTasks::default());
    let pause = paused.clone();
    let options = options(&db)
        .concurrency(1)
        .claims(atta::Claims::Durable)
        .local_queue(LocalQueueConfig::new(10))
        .paused_tasks(paused.clone())
        .define_raw_job(
            "later",
            reports.task(move |_| {
                let pause = pause.clone();
                async move { pause.pause(["later"]) }
            }),
        );
    let worker = options.init().await.unwrap();
    let utils = worker.create_utils();
    for number in 0..10 {
        utils.add_raw_job("later", number, JobSpec::default()).await.unwrap();
    }
    let worker = Running::with(worker);
    reports.next().await;
    wait_for("the others to be returned", || async { (untouched(&utils).await == 9).then_some(()) }).await;
    assert!(reports.is_empty());
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn a_task_that_could_not_begin_returns_its_job() {
    let db = Database::migrated().await;
    let (mut reports, paused) = (Reports::new(), PausedTasks::default());
    let (pause, has_run) = (paused.clone(), Arc::new(AtomicBool::new(false)));
    let task = move |_: atta::WorkerContext| {
        let (pause, has_run) = (pause.clone(), has_run.clone());
        async move {
            // Not by the job's revision: a claim that was under way may have the job when it is added again.
            if has_run.swap(true, Ordering::Relaxed) {
                return Ok(());
            }
            pause.pause(["later"]);
            Err(TaskError::new("not ready").return_job())
        }
    };
    let options = options(&db).paused_tasks(paused.clone()).define_raw_job("later", reports.task(task));
    let worker = Running::start(options).await;
    worker.utils.add_raw_job("later", 1, JobSpecBuilder::new().max_attempts(1).job_key("k")).await.unwrap();
    reports.next().await;
    wait_for("it to be returned", || async { (untouched(&worker.utils).await == 1).then_some(()) }).await;
    assert_eq!(atta::testing::jobs_of(&worker.utils, "later").await.unwrap()[0].last_error(), None);
    worker.utils.add_raw_job("later", 2, JobSpecBuilder::new().max_attempts(1).job_key("k")).await.unwrap();
    paused.resume(["later"]);
    assert_eq!(reports.next().await.attempts(), 1);
    wait_until_empty(&worker.utils).await;
    worker.stop().await.unwrap();
}

/// Jobs that are claimed or waiting when their task is paused are found again without a poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pausing_again_and_again_loses_no_job() {
    let db = Database::migrated().await;
    let paused = PausedTasks::default();
    let quick = |_: atta::WorkerContext| async { tokio::time::sleep(Duration::from_millis(1)).await };
    let options = options(&db)
        .poll_interval(Duration::from_secs(3600))
        .paused_tasks(paused.clone())
        .define_raw_job("later", quick)
        .define_raw_job("now", quick);
    let worker = Running::start(options).await;
    let toggle = tokio::spawn(async move {
        for _ in 0..200 {
            paused.pause(["later"]);
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..2000))).await;
            paused.resume(["later"]);
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..5000))).await;
        }
    });
    for number in 0..600 {
        let spec = match number % 3 {
            0 => JobSpec::default(),
            1 => JobSpecBuilder::new().queue_name(format!("q{}", number % 5)).build(),
            _ => JobSpecBuilder::new().flags(vec!["f".into()]).build(),
        };
        let task = if number % 4 == 0 { "now" } else { "later" };
        worker.utils.add_raw_job(task, json!({ "n": number }), spec).await.unwrap();
    }
    toggle.await.unwrap();
    wait_until_empty(&worker.utils).await;
    worker.stop().await.unwrap();
}
