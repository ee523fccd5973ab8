//! Recurring jobs, defined in code and by a crontab.

use atta::{Cron, CrontabFill, IntoTaskHandlerResult, TaskHandler, WorkerContext, WorkerOptions};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct SendDailyReport {}

impl TaskHandler for SendDailyReport {
    const IDENTIFIER: &'static str = "send_daily_report";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {}
}

#[tokio::main]
async fn main() -> atta::Result<()> {
    let daily = Cron::daily_at::<SendDailyReport>(8, 0)?.fill(CrontabFill::hours(1));
    println!("{daily}");
    let monday = chrono::DateTime::parse_from_rfc3339("2026-11-16T07:00:00Z").expect("a time");
    println!("next: {}", daily.next_after(monday.to_utc()).expect("it comes every day"));

    let worker = WorkerOptions::default()
        .define_job::<SendDailyReport>()
        .with_cron(daily)
        .with_cron("*/15 * * * * send_daily_report ?id=often&max=1 {quick: true}")?
        .init()
        .await?;

    // Each minute's jobs are added exactly once, however many workers run the same crontab.
    let handle = worker.handle();
    let running = tokio::spawn(async move { worker.run().await });
    handle.request_shutdown();
    running.await.expect("the worker does not panic")
}
