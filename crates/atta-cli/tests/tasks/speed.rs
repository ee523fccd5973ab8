//! How fast hosted tasks that do nothing run, beside graphile-worker with its best settings. For a figure, with a
//! release build: `cargo test --release -p atta-cli --test tasks -- --ignored --nocapture speed`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use testkit::Database;

use crate::rough::atta;
use crate::support::{Folder, node, node_folder};

#[tokio::test]
#[ignore = "a measurement, for a quiet machine"]
async fn speed_of_hosted_tasks() {
    let number = |name: &str, usual: usize| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
    };
    let (jobs, slots) = (number("JOBS", 200_000), number("SLOTS", 500).to_string());
    let project = Folder::new()
        .file("tasks/noop.js", "module.exports = async (payload, helpers) => {};")
        .file("tasks/python.py", "async def task(payload, helpers):\n    pass\n");
    let words = [slots.as_str(), "--once"];
    for _ in 0..3 {
        let db = filled("noop", jobs).await;
        let start = Instant::now();
        let status = atta(project.path(), &db.url(), &words).env("ATTA_NODE", node()).status();
        tell("atta, JavaScript", jobs, start.elapsed().as_secs_f64());
        assert!(status.unwrap().success());

        let db = filled("noop", jobs).await;
        tell("graphile-worker", jobs, drain_by_node(&db, jobs));
    }
    let db = filled("python", jobs / 4).await;
    let start = Instant::now();
    assert!(atta(project.path(), &db.url(), &words).status().unwrap().success());
    tell("atta, Python", jobs / 4, start.elapsed().as_secs_f64());
}

fn tell(who: &str, jobs: usize, seconds: f64) {
    println!("{who}: {jobs} jobs, {:.0} jobs/s", jobs as f64 / seconds);
}

async fn filled(task: &str, jobs: usize) -> Database {
    let db = Database::migrated().await;
    let client = db.client().await;
    let sql = "select graphile_worker.add_jobs(array_agg(job)) from (
                 select ($1, '{}', null, null, null, null, null, null)::graphile_worker.job_spec as job
                 from generate_series(1, $2::int)) as jobs";
    client.execute(sql, &[&task, &i32::try_from(jobs).unwrap()]).await.unwrap();
    client.batch_execute("vacuum analyze graphile_worker._private_jobs").await.unwrap();
    db
}

/// Four processes that have started before the time is measured.
fn drain_by_node(db: &Database, jobs: usize) -> f64 {
    let harness = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/node/harness.js");
    let output = Command::new(node())
        .arg(harness)
        .args(["4x24", "drain", &jobs.to_string()])
        .env("DATABASE_URL", db.url())
        .env("NODE_PATH", node_folder().canonicalize().unwrap().join("node_modules"))
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    report["seconds"].as_f64().unwrap()
}
