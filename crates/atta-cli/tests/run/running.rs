//! A worker that keeps running: signals, crontab, a log that can't be written.

use std::process::Stdio;

use testkit::{Database, Process, Signal, wait_for};

use crate::{Folder, add, jobs, wait_for_file};

/// Runs until the file `go` exists, and creates `done`.
const WAITS: &str = "touch begun\nuntil [ -e go ]; do sleep 0.02; done\ntouch done";

#[tokio::test]
async fn a_signal_lets_the_running_job_finish() {
    let (db, folder) = (Database::migrated().await, Folder::new());
    folder.script("wait", WAITS);
    folder.write("atta.toml", "shutdown_grace_period = '2m'");
    let mut worker = folder.start("log", &mut folder.command(&["-c", &db.url()]));
    worker.says("worker started").await;
    add(&db, "wait", "").await;
    wait_for_file(&folder.path.join("begun"), true).await;
    worker.process.signal(Signal::Terminate);
    worker.says("SIGTERM: waiting for running jobs to finish").await;
    add(&db, "wait", "").await;
    folder.write("go", "");
    assert_eq!(worker.code().await, Some(0), "{}", worker.log());
    assert!(folder.has("done"));
    assert_eq!((jobs(&db, "true").await, jobs(&db, "attempts = 0 and locked_at is null").await), (1, 1));
}

/// `timeout` and some supervisors signal both a process and its group.
#[tokio::test]
async fn a_signal_that_arrives_twice_lets_the_running_job_finish() {
    let (db, folder) = (Database::migrated().await, Folder::new());
    folder.script("wait", WAITS);
    folder.write("atta.toml", "shutdown_grace_period = '2m'");
    let mut worker = folder.start("log", &mut folder.command(&["-c", &db.url()]));
    add(&db, "wait", "").await;
    wait_for_file(&folder.path.join("begun"), true).await;
    worker.process.signal(Signal::Terminate);
    worker.says("SIGTERM: waiting for running jobs to finish").await;
    worker.process.signal(Signal::Terminate);
    worker.says("SIGTERM: already shutting down").await;
    folder.write("go", "");
    assert_eq!(worker.code().await, Some(0), "{}", worker.log());
    assert!(folder.has("done"));
    assert_eq!(jobs(&db, "true").await, 0);
}

#[tokio::test]
async fn a_later_signal_aborts_the_worker_and_the_job_keeps_its_attempt() {
    let (db, folder) = (Database::migrated().await, Folder::new());
    folder.script("wait", WAITS);
    folder.write("atta.toml", "shutdown_grace_period = '2m'");
    let mut worker = folder.start("log", &mut folder.command(&["run", "-c", &db.url()]));
    add(&db, "wait", "").await;
    wait_for_file(&folder.path.join("begun"), true).await;
    worker.process.signal(Signal::Terminate);
    worker.says("SIGTERM: waiting for running jobs to finish").await;
    let first = std::time::Instant::now();
    wait_for("a later signal to end it", || {
        worker.process.signal(Signal::Terminate);
        let is_over = worker.log().contains("SIGTERM: aborting");
        async move { is_over.then_some(()) }
    })
    .await;
    assert!(first.elapsed() > std::time::Duration::from_secs(3), "after {:?}", first.elapsed());
    assert_eq!(worker.code().await, Some(1), "{}", worker.log());
    assert!(!folder.has("done"));
    assert_eq!(jobs(&db, "attempts = 0 and locked_at is null").await, 1);
}

#[tokio::test]
async fn it_waits_for_a_database_that_does_not_answer_and_still_handles_signals() {
    let folder = Folder::with_hello();
    let mut worker = folder.start("log", &mut folder.command(&["-c", "postgres://nobody@127.0.0.1:1/app"]));
    worker.says("the database does not answer; retrying").await;
    worker.process.signal(Signal::Terminate);
    assert_eq!(worker.code().await, Some(1), "{}", worker.log());
}

#[tokio::test]
async fn a_log_that_nobody_reads_does_not_stop_the_worker() {
    let (db, folder) = (Database::migrated().await, Folder::new());
    folder.script("mark", "echo some text; touch marked.$GRAPHILE_WORKER_JOB_ID");
    let mut reader = std::process::Command::new("head")
        .args(["-n", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pipe = reader.stdin.take().unwrap();
    let mut worker = Process::start(folder.command(&["-c", &db.url()]).stderr(Stdio::from(pipe)));
    reader.wait().unwrap();
    for id in 1..=3 {
        add(&db, "mark", "").await;
        wait_for_file(&folder.path.join(format!("marked.{id}")), true).await;
    }
    wait_for("the jobs to be done", || async { (jobs(&db, "true").await == 0).then_some(()) }).await;
    worker.signal(Signal::Terminate);
    assert_eq!(worker.ended().await.code(), Some(0));
}

/// A pipe whose reader has stopped, for example a terminal after Ctrl-S.
#[tokio::test]
async fn a_log_whose_reader_has_stopped_does_not_stop_the_worker() {
    let (db, folder) = (Database::migrated().await, Folder::new());
    // More than the pipe and the queue of the log can take.
    folder.script("loud", "head -c 8000000 /dev/zero | tr '\\0' x | fold -w 200; touch loud.done");
    folder.script("mark", "touch marked.$GRAPHILE_WORKER_JOB_ID");
    let (reader, pipe) = std::io::pipe().unwrap();
    let mut command = folder.command(&["-c", &db.url(), "-j", "2"]);
    let mut worker = Process::start(command.stderr(Stdio::from(pipe)));
    add(&db, "loud", "").await;
    wait_for_file(&folder.path.join("loud.done"), true).await;
    let heartbeat = "select heartbeat_at::text from graphile_worker._atta_workers";
    let client = db.client().await;
    let before: String = client.query_one(heartbeat, &[]).await.unwrap().get(0);
    for id in 2..=5 {
        add(&db, "mark", "").await;
        wait_for_file(&folder.path.join(format!("marked.{id}")), true).await;
    }
    wait_for("the jobs to be done", || async { (jobs(&db, "true").await == 0).then_some(()) }).await;
    wait_for("another heartbeat", || async {
        let now: String = client.query_one(heartbeat, &[]).await.unwrap().get(0);
        (now != before).then_some(())
    })
    .await;
    worker.signal(Signal::Terminate);
    assert_eq!(worker.ended().await.code(), Some(0));
    drop(reader);
}

/// A full disk neither stops the worker nor goes unnoticed for data on standard output.
#[tokio::test]
async fn a_log_on_a_full_disk_does_not_stop_the_worker() {
    let (db, folder) = (Database::migrated().await, Folder::new());
    folder.script("mark", "echo some text; echo more >&2; touch marked.$GRAPHILE_WORKER_JOB_ID");
    folder.script("bad", "echo wrong >&2; exit 1");
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = folder.command(&["-c", &db.url()]);
    let mut worker = Process::start(command.stderr(full()).stdout(full()));
    add(&db, "bad", "").await;
    for id in 2..=3 {
        add(&db, "mark", "").await;
        wait_for_file(&folder.path.join(format!("marked.{id}")), true).await;
    }
    let failed = "last_error is not null and attempts >= 1 and locked_at is null";
    wait_for("the failure to be written", || async { (jobs(&db, failed).await == 1).then_some(()) }).await;
    wait_for("the others to be done", || async { (jobs(&db, "true").await == 1).then_some(()) }).await;
    worker.signal(Signal::Terminate);
    assert_eq!(worker.ended().await.code(), Some(0));
    let looked = folder.command(&["jobs", "-c", &db.url()]).stdout(full()).stderr(full()).status().unwrap();
    assert_ne!(looked.code(), Some(0), "a list that was not written");
}

#[tokio::test]
async fn a_new_crontab_is_loaded_and_missed_ticks_are_backfilled() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    let known = "insert into graphile_worker._private_known_crontabs (identifier, known_since)
        values ('greeting', now() - interval '90 seconds')";
    db.client().await.execute(known, &[]).await.unwrap();
    folder.write("crontab", "* * * * * hello ?id=greeting&fill=2m {name: 'cron'}\n0 0 * * * no_such_task\n");
    let mut worker = folder.start("log", &mut folder.command(&["-c", &db.url()]));
    worker.says("the crontab adds jobs of task \"no_such_task\", which does not exist in tasks").await;
    worker.says("hello from job").await;
    worker.process.signal(Signal::Terminate);
    assert_eq!(worker.code().await, Some(0), "{}", worker.log());
}

/// Waits until one worker is registered.
async fn is_registered(client: &tokio_postgres::Client) {
    let sql = "select count(*) from graphile_worker._atta_workers where declared_dead_at is null";
    wait_for("the worker to be registered", || async {
        (client.query_one(sql, &[]).await.ok()?.get::<_, i64>(0) == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_worker_whose_registration_is_missing_was_not_declared_dead() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    folder.write("atta.toml", "recovery_threshold = '3s'\npoll_interval = '100ms'");
    let mut worker = folder.start("log", &mut folder.command(&["-c", &db.url()]));
    worker.says("worker started").await;
    let mut client = db.client().await;
    is_registered(&client).await;
    client.batch_execute("drop schema graphile_worker cascade").await.unwrap();
    worker.says("the schema was dropped or replaced").await;
    atta::migrate(&mut client, &atta::Schema::default()).await.unwrap();
    worker.says("the registration of this worker was missing").await;
    is_registered(&client).await;
    assert!(!worker.log().contains("declared dead"), "{}", worker.log());
    worker.process.signal(Signal::Terminate);
    assert_eq!(worker.code().await, Some(0), "{}", worker.log());
}

/// By the statements of a worker that declares others dead: its row is gone when nothing of it is locked.
#[tokio::test]
async fn a_worker_that_was_declared_dead_reports_it() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    folder.write("atta.toml", "recovery_threshold = '3s'\npoll_interval = '100ms'");
    let mut worker = folder.start("log", &mut folder.command(&["-c", &db.url()]));
    worker.says("worker started").await;
    let client = db.client().await;
    is_registered(&client).await;
    let declare = "with dead as (delete from graphile_worker._atta_workers returning id, recovery_threshold)
      insert into graphile_worker._atta_dead_workers (worker_id, recovery_threshold) select * from dead";
    client.batch_execute(declare).await.unwrap();
    worker.says("this worker was declared dead because its heartbeats stopped").await;
    is_registered(&client).await;
    assert!(!worker.log().contains("registration"), "{}", worker.log());
    worker.process.signal(Signal::Terminate);
    assert_eq!(worker.code().await, Some(0), "{}", worker.log());
}
