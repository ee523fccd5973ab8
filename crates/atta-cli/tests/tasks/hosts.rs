//! Hosts that die, send invalid messages, or are provided by the user.

use std::process::Command;

use atta_tasks::TasksFolder;
use testkit::wait_for;

use crate::log;
use crate::support::{Folder, add, count_jobs, database, last_error, options, run_once};

#[tokio::test]
async fn a_killed_host_fails_its_jobs_and_later_ones_run() {
    let (db, client) = database().await;
    let folder = Folder::new()
        .file("hangs.js", "module.exports = (payload, { logger }) => new Promise(() => { logger.info(`pid of ${payload.name} ${process.pid}`); });")
        .file("quick.js", "module.exports = (payload, { logger }) => { logger.info('quick after the kill'); };")
        .file("hangs_too.py", "import os, time\ndef task(payload, helpers):\n    helpers.logger.info(f\"pid of {payload['name']} {os.getpid()}\")\n    time.sleep(600)\n");
    let tasks = TasksFolder::open(folder.settings(&db)).await.unwrap();
    let worker = tasks.define(options(&db)).init().await.unwrap();
    let handle = worker.handle();
    let running = tokio::spawn(async move { worker.run().await });
    for (task, name) in [("hangs", "node"), ("hangs_too", "python")] {
        let job = add(&client, task, &format!(r#"{{"name":"{name}"}}"#)).await;
        let text = format!("pid of {name} ");
        let line = wait_for("the task to run", || async { log::lines_with(&text).pop() }).await;
        let pid = line.message.trim_start_matches(&text).to_owned();
        assert!(Command::new("/bin/sh").args(["-c", &format!("kill -9 {pid}")]).status().unwrap().success());
        let error = wait_for("the job to fail", || async {
            let sql = "select last_error from graphile_worker.jobs where id = $1";
            client.query_one(sql, &[&job]).await.unwrap().get::<_, Option<String>>(0)
        })
        .await;
        let wanted = format!("the {name} host died while it ran the task: killed by SIGKILL (signal 9)");
        assert_eq!(error, wanted);
    }
    add(&client, "quick", "{}").await;
    wait_for("a later job to run", || async { log::lines_with("quick after the kill").pop() }).await;
    handle.request_shutdown();
    tokio::time::timeout(testkit::DEADLINE, running).await.unwrap().unwrap().unwrap();
    tasks.close().await;
}

#[tokio::test]
async fn a_task_that_ends_its_host_fails_with_its_output() {
    let (db, client) = database().await;
    let task = "module.exports = () => new Promise(() => { setTimeout(() => { throw new Error('out of nowhere'); }); });";
    let folder = Folder::new().file("throws.js", task);
    add(&client, "throws", "{}").await;
    run_once(&db, &folder).await;
    let error = last_error(&client).await;
    assert!(error.starts_with("the node host died while it ran the task: exit code 1\nstderr:\n"), "{error}");
    assert!(error.contains("Error: out of nowhere"), "{error}");
}

#[tokio::test]
async fn invalid_messages_are_logged_and_ignored() {
    let (db, client) = database().await;
    let task = "module.exports = async (payload, { addJob }) => {
      const fs = require('node:fs');
      fs.writeSync(3, 'not a word\\n{\"what\":1}\\n\\xff\\n{\"done\":[999999]}\\n');
      await addJob('after', {});
    };";
    let folder = Folder::new().file("talks.js", task);
    add(&client, "talks", "{}").await;
    run_once(&db, &folder).await;
    let sql = "select task_identifier from graphile_worker.jobs";
    let left: String = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(left, "after");
    assert!(!log::lines_with("ignored an invalid message of the host: not a word").is_empty());
    assert!(!log::lines_with(r#"ignored an unknown message of the host: {"what":1}"#).is_empty());
}

#[tokio::test]
async fn processes_of_a_task_read_no_messages_and_their_output_is_logged() {
    let (db, client) = database().await;
    let task = "module.exports = () => {
      require('node:child_process').execSync('cat; echo said by a child', { stdio: 'inherit' });
    };";
    let folder = Folder::new().file("starts.js", task);
    for _ in 0..5 {
        add(&client, "starts", "{}").await;
    }
    run_once(&db, &folder).await;
    assert_eq!(count_jobs(&client).await, 0);
    assert_eq!(log::lines_with("said by a child").len(), 5);
}

#[tokio::test]
async fn a_host_that_has_lost_its_socket_is_restarted() {
    let (db, client) = database().await;
    let task = "module.exports = () => new Promise(() => {
      process.exit = () => {};
      setInterval(() => {}, 1000);
      require('node:fs').closeSync(3);
      try { process._getActiveHandles().forEach((one) => one.destroy && one.destroy()); } catch {}
    });";
    let folder = Folder::new().file("closes.js", task);
    add(&client, "closes", "{}").await;
    let mut settings = folder.settings(&db);
    settings.kill_after = std::time::Duration::from_millis(300);
    crate::support::run_once_with(&db, settings).await;
    let error = last_error(&client).await;
    assert!(error.starts_with("the node host died while it ran the task: it closed its socket"), "{error}");
}
