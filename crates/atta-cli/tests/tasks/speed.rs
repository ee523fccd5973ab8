//! How fast hosted tasks that do nothing run. For a figure, with a release build:
//! `cargo test --release -p atta-cli --test tasks -- --ignored --nocapture speed`.

use std::time::Instant;

use testkit::Database;

use crate::support::{Folder, count_jobs, options};
use crate::tasks::TasksFolder;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, for a quiet machine"]
async fn speed_of_hosted_tasks() {
    let number = |name: &str, usual: usize| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
    };
    let (jobs, slots) = (number("JOBS", 100_000), number("SLOTS", 500));
    let folder = Folder::new()
        .file("noop.js", "module.exports = async (payload, helpers) => {};")
        .file("noop_python.py", "async def task(payload, helpers):\n    pass\n");
    for (task, jobs) in [("noop", jobs), ("noop", jobs), ("noop_python", jobs / 10)] {
        let db = Database::migrated().await;
        let client = db.client().await;
        let sql = "select graphile_worker.add_jobs(array_agg((job).*)) from (
                     select ($1, '{}', null, null, null, null, null, null)::graphile_worker.job_spec as job
                     from generate_series(1, $2::int)) as jobs";
        let sql = sql.replace("(job).*", "job");
        let count = i32::try_from(jobs).unwrap();
        client.execute(&sql, &[&task, &count]).await.unwrap();
        client.batch_execute("vacuum analyze graphile_worker._private_jobs").await.unwrap();
        let mut settings = folder.settings(&db);
        settings.concurrency = slots;
        let tasks = TasksFolder::open(settings).await.unwrap();
        let worker = tasks.define(options(&db)).concurrency(slots).init().await.unwrap();
        let start = Instant::now();
        worker.run_once().await.unwrap();
        let took = start.elapsed();
        tasks.close().await;
        assert_eq!(count_jobs(&client).await, 0);
        println!("{task}: {jobs} jobs, {slots} slots: {:.0} jobs/s", jobs as f64 / took.as_secs_f64());
    }
}
