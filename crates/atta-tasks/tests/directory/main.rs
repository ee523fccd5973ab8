//! A worker in Rust with a folder of tasks, on a real PostgreSQL, through the interface for applications.
//!
//! Hosts and programs themselves are tested in `crates/atta-cli/tests/tasks`.
#![allow(missing_docs)]
// Also in helper functions of the tests.
#![allow(clippy::unwrap_used)]

mod killed;
mod refused;
mod support;

use std::fs;
use std::process::Command;

use atta::chrono::TimeDelta;
use atta::testing::Clock;
use atta::{JobSpec, Task, TaskResult, WorkerContext, WorkerOptions};
use atta_tasks::WorkerOptionsExt;
use serde::{Deserialize, Serialize};
use serde_json::json;
use testkit::{Database, wait_for};
use tokio::sync::mpsc;

use support::{Folder, example};

/// The typed task: the tasks in JavaScript and Python add jobs of it.
#[derive(Serialize, Deserialize)]
struct Seen {
    by: String,
}

impl Task for Seen {
    const IDENTIFIER: &'static str = "seen";

    async fn run(self, ctx: WorkerContext) -> TaskResult {
        let seen = ctx.get_ext::<mpsc::UnboundedSender<String>>().expect("the worker has a channel");
        // The test may have ended.
        let _ = seen.send(self.by);
        Ok(())
    }
}

const JAVASCRIPT: &str = "module.exports = (payload, { addJob }) => addJob('seen', { by: payload.by });";
const PYTHON: &str =
    "def task(payload, helpers):\n    helpers.add_job('seen', {'by': f\"python {payload['by']}\"})\n";

#[tokio::test]
async fn tasks_in_rust_and_in_a_folder_and_a_crontab_run_in_one_worker() {
    let db = Database::empty().await;
    let folder = Folder::new()
        .file("crontab", "# Each minute.\n* * * * * greet ?id=each_minute {by: \"the crontab\"}\n")
        .file("tasks/greet.js", JAVASCRIPT)
        .file("tasks/snake.py", PYTHON)
        .program("tasks/mail/write.sh", "#!/bin/sh\ncat > \"$(dirname \"$0\")/~written.part\"\nmv \"$(dirname \"$0\")/~written.part\" \"$(dirname \"$0\")/~written\"\n");
    let (sender, mut seen) = mpsc::unbounded_channel::<String>();
    let clock = Clock::system();
    let worker = WorkerOptions::default()
        .database_url(db.url())
        .concurrency(4)
        .define_job::<Seen>()
        .add_extension(sender)
        .clock(clock.clone())
        .crontab_file(folder.path().join("crontab"))
        .unwrap()
        .task_directory(folder.path().join("tasks"))
        .init()
        .await
        .unwrap();
    let (utils, handle) = (worker.create_utils(), worker.handle());
    let running = tokio::spawn(worker.run());
    utils.add_job(Seen { by: "rust".into() }, JobSpec::default()).await.unwrap();
    for (task, by) in [("greet", "node"), ("snake", "host"), ("mail/write", "program")] {
        utils.add_raw_job(task, json!({ "by": by }), JobSpec::default()).await.unwrap();
    }
    let mut names = Vec::new();
    while names.len() < 3 {
        let name = tokio::time::timeout(testkit::DEADLINE, seen.recv()).await;
        names.push(name.expect("a job runs before the deadline").unwrap());
    }
    names.sort();
    assert_eq!(names, ["node", "python host", "rust"]);
    let written = folder.path().join("tasks/mail/~written");
    let input = wait_for("the program to run", || async { fs::read_to_string(&written).ok() }).await;
    assert_eq!(input, r#"{"payload":{"by":"program"}}"#);

    wait_for("the crontab to be registered", || async {
        (!utils.list_known_crontabs().await.unwrap().is_empty()).then_some(())
    })
    .await;
    clock.advance(TimeDelta::minutes(1));
    let by_cron = tokio::time::timeout(testkit::DEADLINE, seen.recv()).await;
    assert_eq!(by_cron.expect("the crontab adds a job before the deadline").unwrap(), "the crontab");

    handle.request_shutdown();
    tokio::time::timeout(testkit::DEADLINE, running).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn the_example_runs_all_its_tasks() {
    let db = Database::empty().await;
    let folder = testkit::book::root().join("crates/atta-tasks/examples");
    let output = Command::new(example("task_directory"))
        .current_dir(folder)
        .env("DATABASE_URL", db.url())
        .output()
        .expect("the example runs");
    let printed = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{printed}{errors}", output.status);
    let mut lines: Vec<&str> = printed.lines().collect();
    // They run at the same time.
    lines.sort_unstable();
    let expected = ["count_words completed", "disk_space completed", "hello completed", "welcome completed"];
    assert_eq!(lines, expected, "{errors}");
}
