//! Neither an application that is killed nor a worker that is dropped leaves processes of its tasks behind.

use std::fs;
use std::process::{Command, Stdio};

use atta::{JobSpec, WorkerOptions, WorkerUtils};
use atta_tasks::WorkerOptionsExt;
use serde_json::json;
use testkit::{Database, Process, wait_for};

use crate::support::{Folder, example};

/// Writes the ids of its processes to a file.
const SLEEPS: &str = "#!/bin/sh\nsleep 600 &\necho $$ $! > pids\nwait\n";
/// A host ends by itself, but not while a task blocks it.
const BLOCKS: &str =
    "module.exports = () => { require('node:fs').writeFileSync('pid', `${process.pid}\\n`); for (;;) {} };";

#[tokio::test]
async fn the_guard_of_a_killed_application_ends_its_tasks() {
    let db = Database::migrated().await;
    let folder =
        Folder::new().file("crontab", "").program("tasks/sleeps.sh", SLEEPS).file("tasks/blocks.js", BLOCKS);
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    for task in ["sleeps", "blocks"] {
        utils.add_raw_job(task, json!({}), JobSpec::default()).await.unwrap();
    }
    let mut command = Command::new(example("task_directory"));
    command.current_dir(folder.path()).env("DATABASE_URL", db.url()).stderr(Stdio::null());
    let mut application = Process::start(&mut command);
    let mut pids = Vec::new();
    for note in ["pids", "pid"] {
        let text = wait_for("a task to begin", || async {
            fs::read_to_string(folder.path().join(note)).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        pids.extend(text.split_whitespace().map(str::to_owned));
    }
    assert_eq!(pids.len(), 3);
    application.kill();
    for pid in pids {
        wait_for_end(&pid).await;
    }
}

#[tokio::test]
async fn a_dropped_worker_ends_its_hosts_even_if_a_handle_is_left() {
    let db = Database::empty().await;
    let task = "require('node:fs').writeFileSync(`${__dirname}/~pid`, `${process.pid}`);\nmodule.exports = () => {};";
    let folder = Folder::new().file("tasks/noted.js", task);
    let options = WorkerOptions::default().database_url(db.url());
    let worker = options.task_directory(folder.path().join("tasks")).init().await.unwrap();
    let pid = wait_for("the host to load the task", || async {
        fs::read_to_string(folder.path().join("tasks/~pid")).ok().filter(|text| !text.is_empty())
    })
    .await;
    let handle = worker.handle();
    drop(worker);
    wait_for_end(&pid).await;
    drop(handle);
}

async fn wait_for_end(pid: &str) {
    wait_for("a process to end", || async {
        let state = Command::new("ps").args(["-o", "stat=", "-p", pid]).output().unwrap().stdout;
        let state = String::from_utf8(state).unwrap();
        (state.trim().is_empty() || state.starts_with('Z')).then_some(())
    })
    .await;
}
