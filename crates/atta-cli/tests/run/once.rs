//! `--once`, `--schema-only`, `--cleanup`: what a run does, and how it ends.

use serde_json::Value;
use testkit::{Database, Signal};

use crate::{Folder, add, jobs, run};

#[tokio::test]
async fn runs_due_jobs_and_ends() {
    let (db, folder) = (Database::empty().await, Folder::with_hello());
    folder.script("fail", "echo no luck >&2; exit 3");
    let schema_only = folder.atta(&["-c", &db.url(), "--schema-only"]);
    assert_eq!((schema_only.code, schema_only.out.as_str()), (0, ""), "{}", schema_only.err);
    add(&db, "hello", "").await;
    add(&db, "hello", ", run_at := now() + interval '1 hour'").await;
    add(&db, "fail", "").await;
    // A single run ignores the crontab, even an invalid one.
    folder.write("crontab", "nonsense");
    let once = folder.atta(&["-c", &db.url(), "--once"]);
    assert_eq!((once.code, once.out.as_str()), (0, ""), "{}", once.err);
    assert!(once.err.contains("INFO  hello 1: hello from job 1\n"), "{}", once.err);
    assert!(once.err.contains("ERROR fail 3: job failed"), "{}", once.err);
    assert!(!once.err.contains('\x1b'), "colour only on a terminal: {}", once.err);
    assert_eq!(jobs(&db, "attempts = 0 and task_identifier = 'hello'").await, 1);
    assert_eq!(jobs(&db, "attempts = 1 and task_identifier = 'fail' and locked_at is null").await, 1);
    assert_eq!(jobs(&db, "true").await, 2);
}

#[tokio::test]
async fn a_failed_job_is_the_exit_code_if_that_is_asked_for() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    folder.script("fail", "exit 3");
    let once = |words: &[&str]| folder.atta(&[&["-c", &db.url(), "--once"], words].concat());
    add(&db, "hello", "").await;
    let good = once(&["--fail-on-error"]);
    assert_eq!(good.code, 0, "{}", good.err);
    for (max_attempts, claims) in [(25, "held"), (1, "held"), (25, "durable"), (1, "durable")] {
        add(&db, "fail", &format!(", max_attempts := {max_attempts}")).await;
        add(&db, "hello", "").await;
        let bad = once(&["--fail-on-error", "--claims", claims]);
        assert_eq!(bad.code, 1, "{max_attempts} {claims}: {}", bad.err);
        assert!(bad.err.contains("attempts failed during this run, so the exit code is 1"), "{}", bad.err);
        assert_eq!(jobs(&db, "task_identifier = 'hello'").await, 0);
    }
    // The next attempts are not due during the next run, however slow this machine is.
    let later = "update graphile_worker._private_jobs set run_at = now() + interval '1 hour'";
    db.client().await.batch_execute(later).await.unwrap();
    let none = once(&["--fail-on-error"]);
    assert_eq!(none.code, 0, "earlier failures do not count: {}", none.err);
    let wrong = folder.atta(&["-c", &db.url(), "--fail-on-error"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("--fail-on-error can only be used with --once"), "{}", wrong.err);
}

#[tokio::test]
async fn a_job_is_found_by_the_time_of_its_failure() {
    let folder = Folder::new();
    folder.script("fail", "exit 3");
    for claims in ["held", "durable"] {
        let db = Database::migrated().await;
        add(&db, "fail", "").await;
        let aged =
            "update graphile_worker._private_jobs set created_at = '2020-01-01Z', updated_at = '2020-01-01Z'";
        db.client().await.batch_execute(aged).await.unwrap();
        let listed = || folder.atta(&["jobs", "--failed-since", "1h", "--count", "-c", &db.url()]).out;
        assert_eq!(listed(), "0\n");
        let once = folder.atta(&["-c", &db.url(), "--once", "--claims", claims]);
        assert_eq!((once.code, listed().as_str()), (0, "1\n"), "{claims}: {}", once.err);
    }
}

#[tokio::test]
async fn jobs_run_side_by_side_and_flags_keep_some_away() {
    let (db, folder) = (Database::migrated().await, Folder::new());
    // Each of the two tasks waits for the other to start.
    folder.script(
        "meet",
        "touch met.$GRAPHILE_WORKER_JOB_ID\nuntil [ -e met.1 -a -e met.2 ]; do sleep 0.01; done",
    );
    add(&db, "meet", "").await;
    add(&db, "meet", "").await;
    add(&db, "meet", ", flags := '{big}'").await;
    add(&db, "meet", ", flags := '{strange}'").await;
    let words = ["-j", "2", "--forbidden-flag", "big", "--forbidden-flag", "strange", "--claims", "durable"];
    let once = folder.atta(&[&["-c", &db.url(), "--once"], &words[..]].concat());
    assert_eq!(once.code, 0, "{}", once.err);
    assert_eq!(jobs(&db, "true").await, 2);
}

#[tokio::test]
async fn the_settings_file_is_enough() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    std::fs::rename(folder.path.join("tasks"), folder.path.join("work")).unwrap();
    folder.write(
        "atta.toml",
        &format!(
            "connection = '{}'\ntasks = 'work'\nlog_format = 'json'\nrecovery_threshold = '10s'\n\
             local_queue_size = 10\nlocal_queue_ttl = '1m'\nlocal_queue_refetch_delay = '10ms'\n\
             shutdown_grace_period = '1m'\n[time_limits]\nhello = '1m'\n",
            db.url()
        ),
    );
    add(&db, "hello", "").await;
    let once = folder.atta(&["--once"]);
    assert_eq!(once.code, 0, "{}", once.err);
    assert_eq!(jobs(&db, "true").await, 0);
    let lines: Vec<Value> = once.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let done = lines.iter().find(|line| line["message"] == "job completed").unwrap();
    assert_eq!((&done["task"], &done["job"], &done["level"]), (&"hello".into(), &1.into(), &"info".into()));
    assert!(chrono::DateTime::parse_from_rfc3339(done["time"].as_str().unwrap()).is_ok());
    // The connection in the settings file applies to every command.
    assert_eq!(folder.atta(&["migrate"]).out, "schema \"graphile_worker\" is up to date\n");
}

#[tokio::test]
async fn the_log_is_as_loud_as_asked_for() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    let log = |level: &str| run(folder.command(&["-c", &db.url(), "--once"]).env("ATTA_LOG", level)).err;
    assert_eq!(log("error"), "");
    assert_eq!(log("off"), "");
    assert!(log("info").contains("worker started"));
    let wrong = log("loud");
    assert!(wrong.contains("invalid log filter \"loud\"") && wrong.contains("hint: use error"), "{wrong}");
}

#[tokio::test]
async fn clean_up_keeps_the_tasks_of_the_folder() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    let client = db.client().await;
    for task in ["hello", "forgotten", "dead"] {
        add(&db, task, ", max_attempts := 1").await;
    }
    client
        .batch_execute(
            "select graphile_worker.complete_jobs(array[1, 2]); select graphile_worker.permanently_fail_jobs(array[3])",
        )
        .await
        .unwrap();
    let cleanup = folder.atta(&["-c", &db.url(), "--cleanup", "DELETE_PERMAFAILED_JOBS,GC_TASK_IDENTIFIERS"]);
    assert_eq!(cleanup.code, 0, "{}", cleanup.err);
    assert_eq!(jobs(&db, "true").await, 0);
    let rows = client.query("select identifier from graphile_worker._private_tasks", &[]).await.unwrap();
    let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, ["hello"]);
}

/// A connection on which nothing can be changed, as on a standby.
fn read_only(db: &Database) -> String {
    format!("{}?options=-c%20default_transaction_read_only%3Don", db.url())
}

#[tokio::test]
async fn a_database_that_takes_no_changes_is_an_error_and_not_waited_for() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    add(&db, "hello", "").await;
    let once = folder.atta(&["-c", &read_only(&db), "--once"]);
    assert_eq!(once.code, 2, "{}", once.err);
    assert!(once.err.contains("hint: the server is read-only: it is a standby"), "{}", once.err);
    assert_eq!(jobs(&db, "attempts = 0").await, 1);
}

#[tokio::test]
async fn a_worker_that_waits_for_its_database_can_be_stopped() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    let mut worker = folder.start("log", &mut folder.command(&["-c", &read_only(&db)]));
    worker.says("retrying").await;
    worker.process.signal(Signal::Terminate);
    assert_eq!(worker.code().await, Some(0), "{}", worker.log());
}

#[tokio::test]
async fn a_time_limit_for_a_task_that_does_not_exist_causes_a_warning() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    folder.write("atta.toml", "[time_limits]\nhello = '3s'\nhelo = '3s'\n");
    let once = folder.atta(&["--once", "-c", &db.url()]);
    assert_eq!(once.code, 0, "{}", once.err);
    let warnings: Vec<&str> = once.err.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 1, "{}", once.err);
    assert!(warnings[0].contains("time_limits") && warnings[0].contains("helo"), "{}", once.err);
}
