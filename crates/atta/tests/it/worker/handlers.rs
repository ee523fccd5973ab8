//! The signatures that users write for tasks: each compiles without a warning, and each error decides about its job.
#![deny(refining_impl_trait)]

use std::time::Duration;

use atta::{
    BatchTask, IntoTaskHandlerResult, Job, JobSpec, Task, TaskError, TaskHandler, TaskResult, WorkerContext,
    WorkerOptions,
};
use serde::{Deserialize, Serialize};
use testkit::Database;
use tokio_util::sync::CancellationToken;

use super::support::options;

/// `Ok(())` needs no type, and `?` takes any error.
#[derive(Serialize, Deserialize)]
struct Parse {
    number: String,
}

impl Task for Parse {
    const IDENTIFIER: &'static str = "parse";

    async fn run(self, _ctx: WorkerContext) -> TaskResult {
        let number: i32 = self.number.parse()?;
        if number < 0 {
            Err("negative")?;
        }
        if number == 0 {
            return Err(TaskError::new("zero").give_up().into());
        }
        check(number)?;
        Ok(())
    }
}

fn check(number: i32) -> anyhow::Result<()> {
    anyhow::ensure!(number < 100, "too large");
    Ok(())
}

/// The signature of the crate graphile_worker, beside a `Task`.
#[derive(Serialize, Deserialize)]
struct Old {}

impl TaskHandler for Old {
    const IDENTIFIER: &'static str = "old";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        Ok::<(), String>(())
    }
}

#[derive(Serialize, Deserialize)]
struct Item {
    number: String,
}

impl BatchTask for Item {
    const IDENTIFIER: &'static str = "items";

    async fn run_batch(items: Vec<Item>, _ctx: WorkerContext) -> TaskResult<Vec<TaskResult>> {
        let parse = |item: Item| -> TaskResult {
            item.number.parse::<i32>()?;
            Ok(())
        };
        Ok(items.into_iter().map(parse).collect())
    }
}

fn all(options: WorkerOptions) -> WorkerOptions {
    options.define_job::<Parse>().define_job::<Old>().define_batch_job::<Item>()
}

fn number(text: &str) -> Parse {
    Parse { number: text.into() }
}

#[tokio::test]
async fn any_error_of_a_handler_fails_its_job_and_a_decision_is_kept() {
    let db = Database::migrated().await;
    let worker = all(options(&db)).init().await.unwrap();
    let utils = worker.create_utils();
    let mut ids = Vec::new();
    for text in ["1", "x", "-1", "0", "100"] {
        ids.push(utils.add_job(number(text), JobSpec::default()).await.unwrap().id());
    }
    utils.add_job(Old {}, JobSpec::default()).await.unwrap();
    worker.run_once().await.unwrap();
    let mut left = Vec::new();
    for id in ids {
        let job = utils.get_job(id).await.unwrap();
        left.push(job.map(|job| (job.attempts(), job.last_error().unwrap_or_default().to_owned())));
    }
    let failed = |attempts, error: &str| Some((attempts, error.to_owned()));
    let wanted = [
        None,
        failed(1, "invalid digit found in string"),
        failed(1, "negative"),
        failed(25, "zero"),
        failed(1, "too large"),
    ];
    assert_eq!(left, wanted);
    assert_eq!(utils.count_jobs().await.unwrap().total(), 4);
}

#[tokio::test]
async fn only_the_failed_items_of_a_batch_are_left() {
    let db = Database::migrated().await;
    let worker = all(options(&db)).init().await.unwrap();
    let utils = worker.create_utils();
    let items = ["1", "x", "2"].map(|text| Item { number: text.into() });
    let id = utils.add_batch_job(&items, JobSpec::default()).await.unwrap().id();
    worker.run_once().await.unwrap();
    let job = utils.get_job(id).await.unwrap().unwrap();
    assert_eq!(job.payload_json(), r#"[{"number":"x"}]"#);
}

/// Waits for the token, and uses what the application gave it.
#[derive(Serialize, Deserialize)]
struct Wait {}

impl Task for Wait {
    const IDENTIFIER: &'static str = "wait";

    async fn run(self, ctx: WorkerContext) -> TaskResult {
        ctx.cancellation_token().cancelled().await;
        let name = ctx.get_ext::<&'static str>().ok_or("no name")?;
        Err(format!("{name} was cancelled in attempt {} by {}", ctx.job().attempts(), ctx.worker_id()))?
    }
}

#[tokio::test]
async fn a_task_runs_in_a_unit_test_without_a_database() {
    let token = CancellationToken::new();
    let job = Job::builder("wait").attempts(3).payload(Wait {}).unwrap().build();
    let ctx = WorkerContext::builder(job)
        .extension("the task")
        .worker_id("w")
        .cancellation_token(token.clone())
        .build();
    assert_eq!((ctx.task_identifiers(), ctx.use_local_time()), (&["wait".to_owned()][..], false));
    let payload: Wait = ctx.payload().unwrap();
    let run = tokio::spawn(Task::run(payload, ctx));
    assert!(!run.is_finished());
    token.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(10), run).await.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().to_string(), "the task was cancelled in attempt 3 by w");
}

#[test]
#[should_panic(expected = "this context has no database")]
fn a_context_without_a_database_says_so() {
    let ctx = WorkerContext::builder(Job::builder("wait").build()).build();
    let _ = ctx.utils();
}

#[tokio::test]
async fn a_context_knows_its_schema_its_tasks_and_its_clock() {
    let db = Database::migrated().await;
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let worker = all(options(&db))
        .use_local_time(true)
        .define_raw_job("told", move |ctx: WorkerContext| {
            let told =
                (ctx.schema().name().to_owned(), ctx.task_identifiers().to_vec(), ctx.use_local_time());
            sender.send(told).unwrap();
            async {}
        })
        .init()
        .await
        .unwrap();
    worker.create_utils().add_raw_job("told", 1, JobSpec::default()).await.unwrap();
    worker.run_once().await.unwrap();
    let (schema, tasks, is_local) = receiver.recv().await.unwrap();
    assert_eq!((schema.as_str(), is_local), ("graphile_worker", true));
    assert_eq!(tasks, ["items", "old", "parse", "told"]);
}
