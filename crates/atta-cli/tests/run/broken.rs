//! Tasks that can't be loaded: a worker does not start with them, unless an option allows it to run the others.

use testkit::{Database, Signal, wait_for};

use crate::{Folder, add, jobs, wait_for_file};

fn folder_with_broken_tasks() -> Folder {
    let folder = Folder::with_hello();
    folder.write("tasks/good.js", "module.exports = () => {};");
    folder.write("tasks/broken.js", "module.exports = (;");
    folder.write("tasks/snake.py", "import no_such_module\ndef task(payload, helpers):\n    pass\n");
    folder
}

async fn add_all(db: &Database) {
    for task in ["hello", "good", "broken", "snake"] {
        add(db, task, "").await;
    }
}

#[tokio::test]
async fn a_worker_does_not_start_with_a_task_that_can_not_be_loaded() {
    let (db, folder) = (Database::migrated().await, folder_with_broken_tasks());
    add_all(&db).await;
    for words in [&["run", "-c"][..], &["--once", "-c"]] {
        let mut worker = folder.start("log", &mut folder.command(&[words, &[&db.url()]].concat()));
        assert_eq!(worker.code().await, Some(2), "{}", worker.log());
        for text in ["broken.js:1", "No module named 'no_such_module'", "hint: ", "--allow-broken-tasks"] {
            assert!(worker.log().contains(text), "{text}: {}", worker.log());
        }
    }
    assert_eq!(jobs(&db, "attempts = 0 and last_error is null").await, 4);
}

#[tokio::test]
async fn a_worker_does_not_start_with_a_host_that_dies_while_it_loads() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    folder.write("tasks/ends.js", "console.error('no license'); process.exit(7);");
    let mut worker = folder.start("log", &mut folder.command(&["run", "-c", &db.url()]));
    assert_eq!(worker.code().await, Some(2), "{}", worker.log());
    assert!(worker.log().contains("exit code 7"), "{}", worker.log());
}

#[tokio::test]
async fn with_allow_broken_tasks_only_jobs_of_working_tasks_are_claimed() {
    let (db, folder) = (Database::migrated().await, folder_with_broken_tasks());
    add_all(&db).await;
    let words = ["run", "--allow-broken-tasks", "-c", &db.url()];
    let mut worker = folder.start("log", &mut folder.command(&words));
    wait_for("the others to run", || async { (jobs(&db, "true").await == 2).then_some(()) }).await;
    let untouched = "task_identifier in ('broken', 'snake') and attempts = 0 and last_error is null";
    assert_eq!(jobs(&db, untouched).await, 2);
    assert!(worker.log().contains("broken.js:1"), "{}", worker.log());
    worker.process.signal(Signal::Terminate);
    assert_eq!(worker.code().await, Some(0), "{}", worker.log());
    let once = folder.atta(&["--once", "--allow-broken-tasks", "-c", &db.url()]);
    assert_eq!((once.code, jobs(&db, untouched).await), (0, 2), "{}", once.err);
}

#[tokio::test]
async fn files_whose_names_are_no_identifiers_are_reported() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    for name in ["hello world.js", "grüße.py", "two..dots.js", ".hidden.js", "backup.js~"] {
        folder.write(&format!("tasks/{name}"), "");
    }
    std::fs::create_dir(folder.path.join("tasks/a folder")).unwrap();
    let once = folder.atta(&["--once", "-c", &db.url()]);
    assert_eq!(once.code, 0, "{}", once.err);
    for name in ["hello world.js", "grüße.py", "two..dots.js", "a folder"] {
        let line = once.err.lines().find(|line| line.contains(name));
        assert!(line.is_some_and(|line| line.contains("WARN")), "{name}: {}", once.err);
    }
    assert!(!once.err.contains("hidden") && !once.err.contains("backup"), "{}", once.err);
}

/// A single run waits for its hosts, and a signal ends the wait.
#[tokio::test]
async fn a_signal_ends_a_single_run_that_waits_for_a_host() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    folder.write("tasks/never.py", "import time\nopen('loading', 'w').close()\ntime.sleep(10000)\n");
    let words = ["--once", "--allow-broken-tasks", "-c", &db.url()];
    let mut worker = folder.start("log", &mut folder.command(&words));
    wait_for_file(&folder.path.join("loading"), true).await;
    worker.process.signal(Signal::Terminate);
    assert!(worker.code().await.is_some(), "it ended by itself: {}", worker.log());
}

/// One host never finishes an import. The tasks of the others run, and none of its own jobs is claimed.
#[tokio::test]
async fn a_host_that_never_loads_does_not_keep_the_others_from_starting() {
    for words in [&["run"][..], &["--once"]] {
        let (db, folder) = (Database::migrated().await, Folder::with_hello());
        folder.write("tasks/never.py", "import time\ntime.sleep(10000)\n");
        folder.write("tasks/good.js", "module.exports = () => {};");
        for task in ["hello", "good", "never"] {
            add(&db, task, "").await;
        }
        let mut worker = folder.start("log", &mut folder.command(&[words, &["-c", &db.url()]].concat()));
        wait_for("the others to run", || async { (jobs(&db, "true").await == 1).then_some(()) }).await;
        assert_eq!(jobs(&db, "task_identifier = 'never' and attempts = 0 and locked_at is null").await, 1);
        worker.says("the host is still loading its tasks").await;
        worker.process.signal(Signal::Terminate);
        assert!(worker.code().await.is_some(), "{}", worker.log());
    }
}

/// A task that takes long to load and then fails still ends the worker, as it does when it fails at once.
#[tokio::test]
async fn a_worker_ends_when_a_slow_host_can_not_load_its_tasks() {
    for words in [&["run"][..], &["--once"]] {
        let (db, folder) = (Database::migrated().await, Folder::with_hello());
        let slow = "import os, time\nwhile not os.path.exists('fail'):\n    time.sleep(0.02)\nimport no_such_module\n";
        folder.write("tasks/slow.py", slow);
        add(&db, "hello", "").await;
        add(&db, "slow", "").await;
        let mut worker = folder.start("log", &mut folder.command(&[words, &["-c", &db.url()]].concat()));
        wait_for("the other to run", || async { (jobs(&db, "true").await == 1).then_some(()) }).await;
        folder.write("fail", "");
        assert_eq!(worker.code().await, Some(2), "{}", worker.log());
        assert!(worker.log().contains("No module named 'no_such_module'"), "{}", worker.log());
        assert_eq!(jobs(&db, "attempts = 0 and last_error is null").await, 1);
    }
}

#[tokio::test]
async fn a_slow_host_s_jobs_run_when_it_is_ready() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    let slow = "import os, time\nwhile not os.path.exists('ready'):\n    time.sleep(0.02)\ndef task(payload, helpers):\n    pass\n";
    folder.write("tasks/slow.py", slow);
    add(&db, "hello", "").await;
    add(&db, "slow", "").await;
    let mut worker = folder.start("log", &mut folder.command(&["--once", "-c", &db.url()]));
    wait_for("the other to run", || async { (jobs(&db, "true").await == 1).then_some(()) }).await;
    folder.write("ready", "");
    assert_eq!(worker.code().await, Some(0), "{}", worker.log());
    assert_eq!(jobs(&db, "true").await, 0);
}
