//! `atta complete`, `fail`, `reschedule`, `retry`, `remove`, `unlock`.

use serde_json::json;

use crate::support::{Interrupted, Place};

#[tokio::test]
async fn completes_by_id_and_skips_running_and_missing_jobs() {
    let place = Place::with_jobs().await;
    let run = place.atta(&["complete", "1", "3", "--yes"]);
    assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (0, "completed 2 jobs\n", ""));
    assert_eq!(place.ids().await, "2 4 5 6");
    let run = place.atta(&["complete", "1", "4", "5", "--yes", "--json"]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&run.out).unwrap(),
        json!({ "action": "complete", "count": 1, "ids": [4], "skipped": [
            { "id": 1, "reason": "unknown" }, { "id": 5, "reason": "running" }] })
    );
    assert!(run.err.contains("job 5 was skipped: it is running"), "{}", run.err);
    let none = place.atta(&["complete", "99", "--yes"]);
    assert_eq!(none.code, 1);
    assert!(
        none.err.contains("job 99 was skipped: there is no job with this id\nerror: no job was changed"),
        "{}",
        none.err
    );
}

#[tokio::test]
async fn without_a_terminal_and_without_yes_nothing_is_done() {
    let place = Place::with_jobs().await;
    for words in
        [vec!["complete", "1"], vec!["remove", "--key", "ready-key"], vec!["fail", "--task", "resize"]]
    {
        let run = place.atta(&words);
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{words:?}");
        assert!(run.err.contains("hint: there is no terminal to ask on; use --yes"), "{}", run.err);
    }
    let run = place.atta(&["fail", "--task", "resize"]);
    assert!(run.err.starts_with("error: not done: confirmation required to fail 2 jobs\n"), "{}", run.err);
    assert_eq!(
        place
            .value("select count(*) from graphile_worker._private_jobs where attempts >= max_attempts")
            .await,
        "1"
    );
    assert_eq!(place.ids().await, "1 2 3 4 5 6");
}

#[tokio::test]
async fn fails_by_filter_and_skips_running_jobs() {
    let place = Place::with_jobs().await;
    let run = place.atta(&["fail", "--task", "report", "--task", "report", "--yes"]);
    assert_eq!(run.code, 2, "a task can be given once: {}", run.err);
    let run = place.atta(&["fail", "--queue", "serial", "--reason", "not needed", "--yes"]);
    assert_eq!((run.code, run.out.as_str()), (0, "failed 1 job\n"), "{}", run.err);
    let failed = "select string_agg(id || ' ' || attempts || ' ' || last_error, ';') from graphile_worker._private_jobs where last_error = 'not needed'";
    assert_eq!(place.value(failed).await, "2 25 not needed");
}

#[tokio::test]
async fn reschedules_the_given_values_and_keeps_the_others() {
    let place = Place::with_jobs().await;
    let words = [
        "reschedule",
        "--state",
        "scheduled,retrying",
        "--run-at",
        "2030-01-02T03:04:05Z",
        "--priority",
        "-2",
        "--yes",
    ];
    let run = place.atta(&words);
    assert_eq!((run.code, run.out.as_str()), (0, "rescheduled 2 jobs\n"), "{}", run.err);
    let changed = "select string_agg(concat_ws(' ', id, run_at at time zone 'UTC', priority, attempts, max_attempts), ';' order by id) from graphile_worker._private_jobs where priority < 0";
    assert_eq!(place.value(changed).await, "3 2030-01-02 03:04:05 -2 0 25;4 2030-01-02 03:04:05 -2 2 25");
    let nothing = place.atta(&["reschedule", "3", "--yes"]);
    assert_eq!(nothing.code, 2);
    assert!(nothing.err.contains("--run-at"), "{}", nothing.err);
}

#[tokio::test]
async fn retries_failed_jobs_at_once_and_with_all_attempts() {
    let place = Place::with_jobs().await;
    let run = place.atta(&["retry", "--all", "--yes"]);
    assert_eq!((run.code, run.out.as_str()), (0, "retried 2 jobs\n"), "{}", run.err);
    let due = "select string_agg(id || ' ' || attempts, ';' order by id) from graphile_worker._private_jobs where run_at <= now() and id in (3, 4, 6)";
    assert_eq!(place.value(due).await, "4 0;6 0");
    let by_id = place.atta(&["retry", "3", "--yes"]);
    assert_eq!((by_id.code, by_id.out.as_str()), (0, "retried 1 job\n"));
    let limited = place.atta(&["retry", "--state", "ready", "--limit", "2", "--yes", "--json"]);
    assert!(limited.out.contains("\"count\": 2"), "{}", limited.out);
}

#[tokio::test]
async fn removes_by_filter_and_by_key_even_if_the_job_is_running() {
    let place = Place::with_jobs().await;
    let run = place.atta(&["remove", "--error", "no such", "--yes"]);
    assert_eq!((run.code, run.out.as_str()), (0, "removed 1 job\n"), "{}", run.err);
    let run = place.atta(&["remove", "--key", "running-key", "--yes"]);
    assert_eq!((run.code, run.out.as_str()), (0, "removed 1 job\n"), "{}", run.err);
    let kept = "select concat_ws(' ', locked_by, attempts = max_attempts, coalesce(key, 'no key')) from graphile_worker._private_jobs where id = 5";
    assert_eq!(place.value(kept).await, "node-1 t no key");
    for words in [["remove", "--key", "running-key", "--yes"], ["remove", "--task", "none", "--yes"]] {
        let gone = place.atta(&words);
        assert_eq!((gone.code, gone.out.as_str()), (1, ""), "{words:?}");
        assert!(gone.err.starts_with("error: no such job\nhint: "), "{}", gone.err);
    }
}

#[tokio::test]
async fn unlocks_jobs_with_their_queue_and_whole_workers() {
    let place = Place::with_jobs().await;
    let locks = "select concat_ws(' ', (select count(*) from graphile_worker._private_jobs where locked_by is not null),
        (select count(*) from graphile_worker._private_job_queues where locked_by is not null))";
    let run = place.atta(&["unlock", "5", "1", "--yes"]);
    assert_eq!((run.code, run.out.as_str()), (1, "unlocked 1 job\n"), "{}", run.err);
    assert!(run.err.contains("job 1 was skipped: it is not locked"), "{}", run.err);
    assert_eq!(place.value(locks).await, "0 0");

    let lock =
        "update graphile_worker._private_jobs set locked_at = now(), locked_by = 'node-2' where id <= 2;
      update graphile_worker._private_job_queues set locked_at = now(), locked_by = 'node-2'";
    place.client.batch_execute(lock).await.unwrap();
    let run = place.atta(&["unlock", "--worker", "node-2", "--yes"]);
    assert_eq!((run.code, run.out.as_str()), (0, "unlocked 2 jobs and 1 queue\n"), "{}", run.err);
    assert_eq!(place.value(locks).await, "0 0");
    let nobody = place.atta(&["unlock", "--worker", "node-2", "--yes"]);
    assert_eq!(nobody.code, 1);
    assert!(
        nobody.err.contains("worker \"node-2\" has locked no job and no queue\nhint: "),
        "{}",
        nobody.err
    );
}

#[tokio::test]
async fn a_living_worker_keeps_its_jobs_unless_forced() {
    let place = Place::with_jobs().await;
    let live = "insert into graphile_worker._atta_workers (id, host, pid, version, task_identifiers, slots)
        values ('node-1', 'h', 1, '0', '{email}', 1)";
    place.client.batch_execute(live).await.unwrap();
    for words in [
        vec!["unlock", "5", "--yes"],
        vec!["unlock", "--worker", "node-1", "--yes"],
        vec!["unlock", "--all", "--yes"],
    ] {
        let run = place.atta(&words);
        assert_eq!((run.code, run.out.as_str()), (1, ""), "{words:?}");
        assert!(run.err.contains("alive") && run.err.contains("--force"), "{}", run.err);
    }
    let run = place.atta(&["unlock", "5", "--force", "--yes"]);
    assert_eq!((run.code, run.out.as_str()), (0, "unlocked 1 job\n"), "{}", run.err);
}

#[tokio::test]
async fn no_command_changes_all_jobs_by_mistake() {
    let place = Place::with_jobs().await;
    for command in ["complete", "fail", "retry", "remove", "unlock"] {
        let run = place.atta(&[command, "--yes"]);
        assert_eq!(run.code, 2, "{command}");
        assert!(
            run.err.starts_with("error: no jobs were given to be ") && run.err.contains("--all"),
            "{}",
            run.err
        );
        let both = place.atta(&[command, "1", "--task", "email", "--yes"]);
        assert_eq!(both.code, 2, "{command}");
        assert!(both.err.starts_with("error: ids, filters and --all can't be combined"), "{}", both.err);
    }
    assert_eq!(place.ids().await, "1 2 3 4 5 6");
}

#[tokio::test]
async fn very_many_jobs_are_changed_in_batches() {
    let place = Place::new().await;
    let fill = "insert into graphile_worker._private_tasks (identifier) values ('many');
      insert into graphile_worker._private_jobs (task_id) select 1 from generate_series(1, 12000)";
    place.client.batch_execute(fill).await.unwrap();
    let run = place.atta(&["complete", "--task", "many", "--yes"]);
    assert_eq!((run.code, run.out.as_str()), (0, "completed 12000 jobs\n"), "{}", run.err);
    assert_eq!(place.ids().await, "");
}

const FAILED: &str = "
    select graphile_worker.add_job('failed', max_attempts := 1) from generate_series(1, 1000);
    update graphile_worker._private_jobs set attempts = 1, last_error = 'no'";

/// Retries a thousand jobs, and returns when the third batch waits for a job that the transaction has locked.
async fn blocked_retry(place: &Place, blocker: &tokio_postgres::Transaction<'_>) -> Interrupted {
    let lock = "select from graphile_worker._private_jobs where id = 450 for update";
    blocker.execute(lock, &[]).await.expect("the row is locked");
    let running = Interrupted::start(&["retry", "--all", "--yes", "-c", &place.db.url()]);
    // For a row: the commits of all databases wait for each other for a moment when they send notifications.
    let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()
                   and wait_event in ('transactionid', 'tuple')";
    testkit::wait_for("the third batch", || async { (place.value(waiting).await == "1").then_some(()) })
        .await;
    running
}

#[tokio::test]
async fn an_interrupted_retry_finishes_its_batch_and_reports_its_progress() {
    let place = Place::new().await;
    place.client.batch_execute(FAILED).await.unwrap();
    let mut blocker = place.db.client().await;
    let lock = blocker.transaction().await.unwrap();
    let running = blocked_retry(&place, &lock).await;
    running.send("TERM");
    running.wait_for("SIGTERM: the command ends after the current batch").await;
    // A repeated signal, as supervisors send it, changes nothing.
    running.send("TERM");
    lock.commit().await.unwrap();
    let run = running.end().await;
    assert_eq!((run.code, run.out.as_str()), (130, ""), "{}", run.err);
    let said = "error: interrupted by SIGTERM: retried 600 of 1000 jobs\nhint: to continue, run the same command with --after 600\n";
    assert!(run.err.ends_with(said), "{}", run.err);
    let retried = "select count(*) from graphile_worker._private_jobs where attempts = 0";
    assert_eq!(place.value(retried).await, "600");
    let run = place.atta(&["retry", "--all", "--yes"]);
    assert_eq!((run.code, run.out.as_str()), (0, "retried 400 jobs\n"), "{}", run.err);
}

/// Jobs that were retried are ready, so the same filter would find them again.
#[tokio::test]
async fn a_command_continues_after_the_id_at_which_it_was_interrupted() {
    let place = Place::new().await;
    place
        .client
        .batch_execute("select graphile_worker.add_job('t') from generate_series(1, 5)")
        .await
        .unwrap();
    let run = place.atta(&["retry", "--state", "ready", "--after", "3", "--yes", "--json"]);
    assert_eq!(run.code, 0, "{}", run.err);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["ids"], serde_json::json!([4, 5]));
    let run = place.atta(&["retry", "4", "--after", "3", "--yes"]);
    assert_eq!(run.code, 2, "ids need no --after: {}", run.out);
}

#[tokio::test]
async fn a_second_signal_ends_a_retry_that_waits() {
    let place = Place::new().await;
    place.client.batch_execute(FAILED).await.unwrap();
    let mut blocker = place.db.client().await;
    let lock = blocker.transaction().await.unwrap();
    let mut running = blocked_retry(&place, &lock).await;
    testkit::wait_for("the end of the command", || {
        let has_ended = running.has_ended();
        if !has_ended {
            running.send("INT");
        }
        async move { has_ended.then_some(()) }
    })
    .await;
    let run = running.end().await;
    assert_eq!((run.code, run.out.as_str()), (130, ""), "{}", run.err);
    let said = "error: interrupted by SIGINT: retried 400 of 1000 jobs\n200 more jobs may have been changed";
    assert!(run.err.contains(said), "{}", run.err);
}
