//! Runs that the worker has given up, and hosts that are not ready; with the real binary.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use testkit::{Process, Signal, wait_for};
use tokio_postgres::Client;

use crate::rough::atta;
use crate::support::{Folder, add, database};

/// Starts the worker with its log in the file `log` of the project.
fn start(command: &mut Command, project: &Folder) -> Process {
    let log = fs::File::create(project.path().join("log")).unwrap();
    Process::start(command.stderr(Stdio::from(log)))
}

fn read(project: &Folder, name: &str) -> String {
    fs::read_to_string(project.path().join(name)).unwrap_or_default()
}

async fn lines(project: &Folder, name: &str, count: usize) {
    wait_for(&format!("{count} lines in {name}"), || {
        let is_there = read(project, name).lines().count() >= count;
        async move { is_there.then_some(()) }
    })
    .await;
}

async fn count(client: &Client, condition: &str) -> i64 {
    let sql = format!("select count(*) from graphile_worker.jobs where {condition}");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

async fn wait_for_count(client: &Client, condition: &str, wanted: i64) {
    wait_for(&format!("{wanted} jobs with {condition}"), || async {
        (count(client, condition).await == wanted).then_some(())
    })
    .await;
}

async fn end(mut worker: Process) {
    worker.signal(Signal::Terminate);
    assert!(worker.ended().await.success());
}

/// The task exceeds its time limit in as many threads as there are slots. The host answers all the time.
#[tokio::test]
async fn hung_python_functions_delay_no_other_task_and_abandoned_runs_never_begin() {
    let (db, client) = database().await;
    let naps = "import time\ndef task(payload, helpers):\n    open('naps', 'a').write('begun\\n')\n    time.sleep(8)\n    open('napped', 'a').write('over\\n')\n";
    let marks = "def task(payload, helpers):\n    open('marks', 'a').write(f'{helpers.job.id} {helpers.job.attempts}\\n')\n";
    let project = Folder::new()
        .file("atta.toml", "kill_after = \"30s\"\n[time_limits]\nnaps = \"1s\"\nmarks = \"1s\"\n")
        .file("tasks/naps.py", naps)
        .file("tasks/marks.py", marks);
    for _ in 0..2 {
        client.execute("select graphile_worker.add_job('naps', max_attempts => 1)", &[]).await.unwrap();
    }
    let worker = start(&mut atta(project.path(), &db.url(), &["2"]), &project);
    lines(&project, "naps", 2).await;
    for _ in 0..4 {
        add(&client, "marks", "{}").await;
    }
    // Both slots were free again, while the functions were still sleeping.
    wait_for_count(&client, "task_identifier = 'marks'", 0).await;
    assert_eq!(read(&project, "napped"), "");
    lines(&project, "napped", 2).await;
    assert_eq!(read(&project, "marks").lines().count(), 4, "each ran once: {}", read(&project, "marks"));
    assert_eq!(count(&client, "last_error = 'the time limit of 1s was exceeded'").await, 2);
    end(worker).await;
}

/// The host is blocked when the worker gives up its runs.
#[tokio::test]
async fn a_run_that_waits_in_a_blocked_host_does_not_begin_after_an_abort() {
    let (db, client) = database().await;
    let blocks = "module.exports = () => {
      const fs = require('node:fs');
      fs.writeFileSync('blocks', String(process.pid));
      while (!fs.existsSync('go')) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
    };";
    let project = Folder::new()
        .file(
            "atta.toml",
            "shutdown_grace_period = '200ms'\nshutdown_abort_period = '100ms'\nkill_after = '30s'\n",
        )
        .file("tasks/blocks.js", blocks)
        .file("tasks/marks.js", "module.exports = () => require('node:fs').writeFileSync('marks', 'begun');");
    add(&client, "blocks", "{}").await;
    let mut worker = start(&mut atta(project.path(), &db.url(), &["2"]), &project);
    lines(&project, "blocks", 1).await;
    add(&client, "marks", "{}").await;
    wait_for_count(&client, "task_identifier = 'marks' and locked_at is not null", 1).await;
    worker.signal(Signal::Terminate);
    wait_for_count(&client, "attempts = 0 and locked_at is null", 2).await;
    fs::write(project.path().join("go"), "").unwrap();
    worker.ended().await;
    let host = read(&project, "blocks");
    wait_for("the host to end", || async { (!Path::new("/proc").join(&host).exists()).then_some(()) }).await;
    assert!(!project.path().join("marks").exists(), "a job ran after it was returned");
}

const PERL_HOST: &str = r#"#!/usr/bin/perl
use strict; use IO::Handle;
open(my $in, '<&=', 3) or die; open(my $out, '>&=', 3) or die; $out->autoflush(1);
while (my $line = <$in>) {
  if ($line =~ /^\{"hello":1,/) { print $out qq({"ready":"perl"}\n); }
  elsif ($line =~ /^\{"run":(\d+),/) {
    open(my $marks, '>>', 'marks') or die; print $marks "run\n"; close $marks;
    print $out qq({"done":[$1]}\n);
  }
}
"#;

/// The host's program can't be started at first.
#[tokio::test]
async fn jobs_of_a_host_that_can_not_start_wait_for_it_and_run_once() {
    let (db, client) = database().await;
    let project = Folder::new()
        .program("host", "#!/no/such/interpreter\n")
        .file("tasks/counts.pl", "")
        .program("tasks/shell.sh", "#!/bin/sh\necho run >> shell\n");
    for _ in 0..5 {
        add(&client, "counts", "{}").await;
    }
    let mut command = atta(project.path(), &db.url(), &["2", "--watch"]);
    let host = project.path().join("host");
    let worker = start(command.env("ATTA_HOST_PL", &host), &project);
    wait_for("the host not to start", || async {
        read(&project, "log").contains("can't start").then_some(())
    })
    .await;
    add(&client, "shell", "{}").await;
    lines(&project, "shell", 1).await;
    assert_eq!(count(&client, "task_identifier = 'counts' and attempts = 0 and last_error is null").await, 5);
    let draft = project.path().join("draft");
    fs::write(&draft, PERL_HOST).unwrap();
    fs::set_permissions(&draft, fs::metadata(&host).unwrap().permissions()).unwrap();
    fs::rename(draft, host).unwrap();
    wait_for_count(&client, "true", 0).await;
    end(worker).await;
    assert_eq!(read(&project, "marks").lines().count(), 5);
}

/// Loading takes longer than the time limit of a job.
#[tokio::test]
async fn a_time_limit_counts_from_the_start_of_the_run_in_a_ready_host() {
    let (db, client) = database().await;
    let project = Folder::new()
        .file("atta.toml", "time_limit = '500ms'\nkill_after = '200ms'\n")
        .file("tasks/slow.py", "import time\ntime.sleep(3)\ndef task(payload, helpers):\n    pass\n")
        .file(
            "tasks/slow_too.mjs",
            "await new Promise((done) => setTimeout(done, 3000));\nexport default () => {};\n",
        );
    for task in ["slow", "slow_too"] {
        add(&client, task, "{}").await;
    }
    let worker = start(&mut atta(project.path(), &db.url(), &["2"]), &project);
    wait_for_count(&client, "true", 0).await;
    end(worker).await;
    assert!(!read(&project, "log").contains("died"), "{}", read(&project, "log"));
}

/// The host was ready, dies, and can't be started again for a while.
#[tokio::test]
async fn a_host_that_dies_before_it_is_ready_costs_no_job_an_attempt_and_logs_few_lines() {
    let (db, client) = database().await;
    let start_of = "import os\nopen('starts', 'a').write('start\\n')\nif os.path.exists('broken'):\n    print('can not load')\n    os._exit(3)\n";
    let project = Folder::new()
        .file(
            "tasks/quick.py",
            &format!("{start_of}def task(payload, helpers):\n    open('quick', 'a').write('run\\n')\n"),
        )
        .file(
            "tasks/dies.py",
            "import os\ndef task(payload, helpers):\n    open('broken', 'w').close()\n    os._exit(1)\n",
        )
        .program("tasks/shell.sh", "#!/bin/sh\necho run >> shell\n");
    let worker = start(&mut atta(project.path(), &db.url(), &["4"]), &project);
    client.execute("select graphile_worker.add_job('dies', max_attempts => 1)", &[]).await.unwrap();
    wait_for_count(&client, "attempts = 1 and locked_at is null", 1).await;
    let sql = "select graphile_worker.add_job('quick') from generate_series(1, 200)";
    client.execute(sql, &[]).await.unwrap();
    lines(&project, "starts", 5).await;
    add(&client, "shell", "{}").await;
    lines(&project, "shell", 1).await;
    let untouched = "task_identifier = 'quick' and attempts = 0 and last_error is null";
    assert_eq!(count(&client, untouched).await, 200);
    let told = read(&project, "log").matches("python").count();
    assert!(told <= 6, "{told} lines: {}", read(&project, "log"));
    fs::remove_file(project.path().join("broken")).unwrap();
    wait_for_count(&client, "task_identifier = 'quick'", 0).await;
    assert_eq!(read(&project, "quick").lines().count(), 200);
    end(worker).await;
}

/// The task that blocks its host has no time limit; the task that waits behind it has one.
#[tokio::test]
async fn a_run_that_could_not_begin_in_a_blocked_host_loses_no_attempt() {
    let (db, client) = database().await;
    let project = Folder::new()
        .file("atta.toml", "kill_after = '300ms'\n[time_limits]\nmarks = '500ms'\n")
        .file(
            "tasks/blocks.js",
            "module.exports = () => { require('node:fs').writeFileSync('blocks', 'begun'); for (;;) {} };",
        )
        .file(
            "tasks/marks.js",
            "module.exports = (payload, { job }) => require('node:fs').appendFileSync('marks', `attempt ${job.attempts};`);",
        );
    client.execute("select graphile_worker.add_job('blocks', max_attempts => 1)", &[]).await.unwrap();
    let worker = start(&mut atta(project.path(), &db.url(), &["2"]), &project);
    lines(&project, "blocks", 1).await;
    add(&client, "marks", "{}").await;
    wait_for_count(&client, "task_identifier = 'marks'", 0).await;
    assert_eq!(read(&project, "marks"), "attempt 1;");
    assert_eq!(count(&client, "last_error like '%blocked all others, so it was killed%'").await, 1);
    end(worker).await;
}

/// A coroutine that does not yield. The host still reads messages, in another thread.
#[tokio::test]
async fn a_coroutine_that_blocks_the_loop_past_its_time_limit_ends_with_its_host() {
    let (db, client) = database().await;
    let project = Folder::new()
        .file("atta.toml", "kill_after = '300ms'\n[time_limits]\nblocks = '500ms'\n")
        .file(
            "tasks/blocks.py",
            "import time\nasync def task(payload, helpers):\n    open('blocks', 'w').write('begun')\n    time.sleep(600)\n",
        )
        .file("tasks/later.py", "async def task(payload, helpers):\n    pass\n");
    client.execute("select graphile_worker.add_job('blocks', max_attempts => 1)", &[]).await.unwrap();
    let worker = start(&mut atta(project.path(), &db.url(), &["2"]), &project);
    lines(&project, "blocks", 1).await;
    wait_for_count(&client, "last_error = 'the time limit of 500ms was exceeded'", 1).await;
    add(&client, "later", "{}").await;
    wait_for_count(&client, "task_identifier = 'later'", 0).await;
    end(worker).await;
}

/// One job kills its host; the others are run by the next host process.
#[tokio::test]
async fn a_single_run_waits_for_a_host_that_died() {
    let (db, client) = database().await;
    let project = Folder::new()
        .file("tasks/dies.js", "module.exports = () => process.kill(process.pid, 'SIGKILL');")
        .file("tasks/marks.js", "module.exports = () => require('node:fs').appendFileSync('marks', 'x');");
    client.execute("select graphile_worker.add_job('dies', priority => -1)", &[]).await.unwrap();
    for _ in 0..20 {
        add(&client, "marks", "{}").await;
    }
    let mut worker = start(&mut atta(project.path(), &db.url(), &["1", "--once"]), &project);
    assert!(worker.ended().await.success(), "{}", read(&project, "log"));
    assert_eq!(count(&client, "true").await, 1);
    assert_eq!(read(&project, "marks").len(), 20);
}
