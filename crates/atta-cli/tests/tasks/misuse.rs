//! Tasks that misuse what they share with other tasks: the process of their host, its output and its messages. Every
//! job must still get its result, and the jobs of other tasks must run.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use atta_tasks::TasksFolder;
use testkit::wait_for;
use tokio_postgres::Client;

use crate::log;
use crate::rough::atta;
use crate::support::{Folder, add, count_jobs, database, options, run_once};

/// The errors of all jobs that are left, in the order in which the jobs were added.
async fn errors(client: &Client) -> Vec<String> {
    let sql = "select coalesce(last_error, 'none') from graphile_worker.jobs order by id";
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Standard output belongs to all tasks of a Python host.
#[tokio::test]
async fn a_python_task_that_replaces_standard_output_does_not_stop_other_tasks() {
    let (db, client) = database().await;
    let folder = Folder::new()
        .file(
            "replaces.py",
            "import io, sys\nsys.stdout = io.StringIO()\ndef task(payload, helpers):\n    pass\n",
        )
        .file(
            "reconfigures.py",
            "import sys\ndef task(payload, helpers):\n    sys.stderr.reconfigure(line_buffering=True)\n",
        )
        .file("coroutine.py", "async def task(payload, helpers):\n    pass\n");
    for task in ["replaces", "reconfigures", "coroutine"] {
        add(&client, task, "{}").await;
    }
    run_once(&db, &folder).await;
    assert_eq!(errors(&client).await, [] as [&str; 0]);
}

/// The run was given up, so its job may run a second time: the task must see that it has to stop, whenever it asks.
#[tokio::test]
async fn a_task_sees_the_abort_after_its_time_limit_whenever_it_asks() {
    let (db, client) = database().await;
    let folder = Folder::new();
    let note = folder.note("failed");
    let note = note.display();
    let folder = folder
        .file(
            "polls.js",
            "module.exports = async (payload, helpers) => {
               while (!helpers.abortSignal.aborted) await new Promise((resolve) => setTimeout(resolve, 10));
               console.log('polls.js saw the abort');
             };",
        )
        .file(
            "asks.js",
            &format!(
                "const fs = require('node:fs');
                 module.exports = async (payload, helpers) => {{
                   while (!fs.existsSync('{note}')) await new Promise((resolve) => setTimeout(resolve, 10));
                   console.log(`asks.js was aborted: ${{helpers.abortSignal.aborted}}`);
                 }};"
            ),
        )
        .file(
            "asks_too.py",
            &format!(
                "import os, time\ndef task(payload, helpers):\n    while not os.path.exists('{note}'):\n        \
                 time.sleep(0.01)\n    print(f'asks_too.py was aborted: {{helpers.abort_signal.aborted}}')\n"
            ),
        );
    let mut settings = folder.settings(&db);
    settings.time_limit = Some(Duration::from_millis(500));
    let tasks = TasksFolder::open(settings).await.unwrap();
    let worker = tasks.define(options(&db)).init().await.unwrap();
    let handle = worker.handle();
    let running = tokio::spawn(async move { worker.run().await });
    for task in ["polls", "asks", "asks_too"] {
        client.execute("select graphile_worker.add_job($1, max_attempts => 1)", &[&task]).await.unwrap();
    }
    wait_for("a run to see its abort", || async { log::lines_with("polls.js saw the abort").pop() }).await;
    wait_for("all time limits", || async {
        let errors = errors(&client).await;
        errors.iter().all(|error| error == "the time limit of 500ms was exceeded").then_some(())
    })
    .await;
    fs::write(folder.note("failed"), "").unwrap();
    for task in ["asks.js", "asks_too.py"] {
        let text = format!("{task} was aborted: ");
        let line = wait_for("the end of the run", || async { log::lines_with(&text).pop() }).await;
        assert_eq!(line.message.to_lowercase(), format!("{text}true"));
    }
    handle.request_shutdown();
    tokio::time::timeout(testkit::DEADLINE, running).await.unwrap().unwrap().unwrap();
    tasks.close().await;
}

/// A coroutine that nobody awaits has done nothing, so the job must not count as completed.
#[tokio::test]
async fn a_python_task_that_returns_a_coroutine_fails() {
    let (db, client) = database().await;
    let work = "async def work(item):\n    pass\n";
    let folder = Folder::new()
        .file("one.py", &format!("{work}async def task(payload, helpers):\n    return work(payload)\n"))
        .file(
            "two.py",
            &format!("{work}def task(payload, helpers):\n    return [work(item) for item in payload]\n"),
        )
        .file("three.py", &format!("{work}async def task(payload, helpers):\n    return [work(1)]\n"));
    for (task, payload) in [("one", "[1]"), ("two", "[1]"), ("three", "{}")] {
        add(&client, task, payload).await;
    }
    run_once(&db, &folder).await;
    let errors = errors(&client).await;
    assert!(errors.len() == 3 && errors.iter().all(|error| error.contains("not awaited")), "{errors:?}");
}

/// The worker accepts no message of more than 64 MiB. Somebody waits for each of these.
#[tokio::test]
async fn a_message_that_is_too_long_is_an_error_for_the_run_or_call_that_sent_it() {
    let (db, client) = database().await;
    let python = "def task(payload, helpers):\n    helpers.add_job('none', 'x' * (65 << 20))\n";
    let folder = Folder::new()
        .file("adds.js", "module.exports = (payload, { addJob }) => addJob('none', 'x'.repeat(65 << 20));")
        .file("adds_too.py", python)
        .file(
            "fails.js",
            "module.exports = (items) => items.map((item) => Promise.reject(new Error('x'.repeat(40000))));",
        )
        .file(
            "fails_too.py",
            "def task(items, helpers):\n    return [ValueError('x' * 40000) for item in items]\n",
        );
    add(&client, "adds", "{}").await;
    add(&client, "adds_too", "{}").await;
    let items = serde_json::json!((0..2500).collect::<Vec<_>>()).to_string();
    add(&client, "fails", &items).await;
    add(&client, "fails_too", &items).await;
    run_once(&db, &folder).await;
    let errors = errors(&client).await;
    assert_eq!(errors.len(), 4, "no job was added");
    assert!(errors[..2].iter().all(|error| error.contains("too long")), "{errors:?}");
    for error in &errors[2..] {
        assert!(error.starts_with("Batch failures:\n") && error.len() < 100_000, "{}", &error[..200]);
    }
    // All items failed, so all are retried.
    let sql = "select count(*) from graphile_worker._private_jobs
        where case json_typeof(payload) when 'array' then json_array_length(payload) end = 2500";
    assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 2);
}

/// A hung thread would keep the process from ending, while nothing runs its coroutines any more.
#[tokio::test]
async fn a_coroutine_that_ends_the_loop_does_not_stop_others() {
    let (db, client) = database().await;
    let exits = "import asyncio, sys, threading

async def leave():
    sys.exit(3)

async def task(payload, helpers):
    hung = asyncio.create_task(asyncio.to_thread(threading.Event().wait))
    await asyncio.create_task(leave())
";
    let folder = Folder::new()
        .file("exits.py", exits)
        .file("exits_too.py", "import sys\nasync def leave(item):\n    if item == 2:\n        sys.exit(3)\nasync def task(items, helpers):\n    return [leave(item) for item in items]\n")
        .file("stops.py", "import asyncio\nasync def task(payload, helpers):\n    asyncio.get_running_loop().stop()\n    await asyncio.sleep(0.01)\n")
        .file("waits.py", "import asyncio\nasync def task(payload, helpers):\n    await asyncio.sleep(0.5)\n");
    for (task, payload) in [("waits", "{}"), ("exits", "{}"), ("exits_too", "[1, 2, 3]"), ("stops", "{}")] {
        add(&client, task, payload).await;
    }
    run_once(&db, &folder).await;
    let errors = errors(&client).await;
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("SystemExit: 3"), "{errors:?}");
    assert_eq!(errors[1], "Batch failures:\nSystemExit: 3");
}

#[tokio::test]
async fn a_python_task_can_start_processes_by_fork() {
    let (db, client) = database().await;
    let forks = "import os, sys
def task(payload, helpers):
    child = os.fork()
    if child == 0:
        print('a forked process prints this')
        try:
            helpers.add_job('none')
        except RuntimeError:
            sys.exit(4)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 4, status
";
    let pool = "import multiprocessing
def twice(number):
    print(f'a process of the pool doubles {number}')
    return number * 2
def task(payload, helpers):
    with multiprocessing.get_context('fork').Pool(2) as pool:
        assert pool.map(twice, [1, 2]) == [2, 4]
";
    let folder = Folder::new().file("forks.py", forks).file("in/a/pool.py", pool);
    add(&client, "forks", "{}").await;
    add(&client, "in/a/pool", "{}").await;
    run_once(&db, &folder).await;
    assert_eq!(errors(&client).await, [] as [&str; 0]);
    for text in ["a forked process prints this", "a process of the pool doubles 2"] {
        assert_eq!(log::lines_with(text).len(), 1, "{text}");
    }
}

/// A task that prints faster than the worker logs has to wait, as it would on a pipe.
#[tokio::test]
async fn a_task_that_prints_very_much_needs_little_memory() {
    let (db, client) = database().await;
    let prints = "module.exports = () => {
      const line = 'x'.repeat(8000);
      const before = process.memoryUsage.rss();
      let most = 0;
      for (let count = 0; count < 25000; count++) {
        console.log(line);
        most = Math.max(most, process.memoryUsage.rss() - before);
      }
      if (most > 150e6) throw new Error(`${most >> 20} MB`);
    };";
    let prints_too = "import resource
def task(payload, helpers):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = 'x' * 8000
    for _ in range(25000):
        print(line)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert more < 150_000, f'{more} kB'
";
    let project = Folder::new().file("tasks/prints.js", prints).file("tasks/prints_too.py", prints_too);
    add(&client, "prints", "{}").await;
    add(&client, "prints_too", "{}").await;
    let mut worker = testkit::Process::start(&mut atta(project.path(), &db.url(), &["2", "--once"]));
    assert!(worker.ended().await.success());
    assert_eq!(errors(&client).await, [] as [&str; 0]);
}

/// A task must not hide a module of Python with the same name from other tasks.
#[tokio::test]
async fn the_name_of_a_python_task_hides_no_module() {
    let (db, client) = database().await;
    let folder = Folder::new()
        .file("email.py", "def task(payload, helpers):\n    pass\n")
        .file("sends.py", "import smtplib\nimport email.message\ndef task(payload, helpers):\n    pass\n");
    add(&client, "sends", "{}").await;
    add(&client, "email", "{}").await;
    run_once(&db, &folder).await;
    assert_eq!(count_jobs(&client).await, 0, "{:?}", log::lines_with("the task can't be loaded"));
}

#[tokio::test]
async fn links_that_are_no_tasks_are_reported() {
    let (db, _client) = database().await;
    let folder = Folder::new().file("quick.js", "module.exports = () => {};");
    fs::create_dir(folder.note("folder")).unwrap();
    symlink(folder.note("folder"), folder.path().join("linked_folder")).unwrap();
    symlink("/nowhere/at/all", folder.path().join("dangling.js")).unwrap();
    run_once(&db, &folder).await;
    for name in ["linked_folder", "dangling.js"] {
        let lines = log::lines_with(name);
        assert!(
            lines.iter().any(|line| line.level == "WARN" && line.message.contains("skipped")),
            "{lines:?}"
        );
    }
}

#[tokio::test]
async fn a_task_that_throws_no_error_when_it_is_loaded_is_reported_with_what_it_throws() {
    let (db, _client) = database().await;
    let folder = Folder::new()
        .file("nothing.js", "throw null;")
        .file("unreadable.js", "throw { get message() { throw new Error('odd'); } };");
    run_once(&db, &folder).await;
    let lines = log::lines_with("so its jobs are not claimed: null");
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[tokio::test]
async fn an_invalid_option_of_a_job_is_named() {
    let (db, client) = database().await;
    let js = |call: &str| format!("module.exports = (payload, {{ addJob, addJobs }}) => {call};");
    let folder = Folder::new()
        .file("a.js", &js("addJob('none', {}, { runAt: 'tomorrow' })"))
        .file("b.js", &js("addJob('none', {}, { priority: 1.5 })"))
        .file("c.js", &js("addJob(42)"))
        .file("d.js", &js("addJobs([null])"))
        .file("e.js", &js("addJobs()"))
        .file("f.js", &js("addJob()"));
    for task in ["a", "b", "c", "d", "e", "f"] {
        add(&client, task, "{}").await;
    }
    run_once(&db, &folder).await;
    let errors = errors(&client).await;
    for (error, wanted) in errors.iter().zip([
        "invalid job: run_at: ",
        "invalid job: priority: ",
        "invalid job: identifier: ",
        "invalid job: not an object",
        "the jobs to add must be an array",
        "invalid job: identifier is missing",
    ]) {
        assert!(error.starts_with(wanted), "{wanted}: {error}");
    }
    assert_eq!(errors.len(), 6);
}
