//! The Rust snippets of the documents that this library was asked for with: same names, same shapes, and they run.

use atta::{
    Cron, CrontabFill, IntoTaskHandlerResult, JobKeyMode, JobSpec, JobSpecBuilder, TaskHandler,
    WorkerContext, WorkerOptions,
};
use chrono::Utc;
use serde::{Deserialize, Serialize};
use testkit::Database;

#[derive(Serialize, Deserialize)]
struct SendEmail {
    to: String,
    subject: String,
    body: String,
}

impl TaskHandler for SendEmail {
    const IDENTIFIER: &'static str = "send_email";

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        assert_eq!(ctx.job().task_identifier(), "send_email");
        Ok::<(), String>(())
    }
}

#[derive(Serialize, Deserialize)]
struct SendDailyReport {}

impl TaskHandler for SendDailyReport {
    const IDENTIFIER: &'static str = "send_daily_report";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {}
}

fn email() -> SendEmail {
    SendEmail {
        to: "user@example.com".to_string(),
        subject: "Welcome".to_string(),
        body: "Thanks.".to_string(),
    }
}

#[tokio::test]
async fn adding_typed_raw_and_many_jobs() -> Result<(), Box<dyn std::error::Error>> {
    let db = Database::migrated().await;
    let worker = WorkerOptions::default().database_url(db.url()).define_job::<SendEmail>().init().await?;
    let job = worker
        .create_utils()
        .add_raw_job(
            "send_email",
            serde_json::json!({ "to": "a@example.com", "subject": "s", "body": "b" }),
            JobSpec::default(),
        )
        .await?;
    assert_eq!(job.task_identifier(), "send_email");

    let utils = worker.create_utils();
    utils.add_job(email(), JobSpec::default()).await?;
    let spec = JobSpecBuilder::new()
        .queue_name("user:123")
        .run_at(Utc::now() + chrono::Duration::minutes(5))
        .max_attempts(5)
        .job_key("welcome-email:123")
        .job_key_mode(JobKeyMode::Replace)
        .priority(-10)
        .flags(vec!["email".to_string()])
        .build();
    let job = utils.add_job(email(), spec).await?;
    assert_eq!((job.queue_name(), job.max_attempts(), job.priority()), (Some("user:123"), 5, -10));
    assert_eq!((job.key(), job.flags()), (Some("welcome-email:123"), vec!["email"]));

    let spec = JobSpec::default();
    let jobs = utils.add_jobs::<SendEmail>(&[(email(), &spec), (email(), &spec)]).await?;
    assert_eq!(jobs.len(), 2);

    worker.run_once().await?;
    assert_eq!(utils.count_jobs().await?.total(), 1, "only the one of later is left");
    Ok(())
}

#[tokio::test]
async fn cron_typed_and_as_text() -> Result<(), Box<dyn std::error::Error>> {
    let db = Database::migrated().await;
    let worker = WorkerOptions::default()
        .database_url(db.url())
        .define_job::<SendDailyReport>()
        .with_cron(Cron::daily_at::<SendDailyReport>(8, 0)?.fill(CrontabFill::hours(1)))
        .init()
        .await?;
    worker.run_once().await?;

    let worker = WorkerOptions::default()
        .database_url(db.url())
        .define_job::<SendDailyReport>()
        .with_cron("0 8 * * * send_daily_report")?
        .init()
        .await?;
    worker.run_once().await?;
    Ok(())
}
