//! `atta queues`, `tasks`, `workers`, `stats`, `cleanup`.

use serde_json::{Value, json};

use crate::support::Place;

const WORKERS: &str = "insert into graphile_worker._atta_workers (id, host, pid, version, task_identifiers, slots, heartbeat_at)
  values ('alive', 'box', 7, '1.0', '{email,unused}', 4, now()), ('silent', 'box', 8, '1.0', '{email}', 4, now() - interval '31 s')";

/// The words of a table's rows, without its heading.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test]
async fn queues_are_listed_with_their_workers_and_the_numbers_of_their_jobs() {
    let place = Place::with_jobs().await;
    place.client.batch_execute("select graphile_worker.add_job('t', queue_name := 'another')").await.unwrap();
    let run = place.atta(&["queues"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let rows = rows(&run.out);
    assert_eq!(rows[0][..7], ["another", "1", "0", "0", "0", "0", "0"]);
    assert_eq!(rows[1][..7], ["serial", "0", "1", "0", "0", "1", "0"]);
    assert!(rows[1].contains(&"node-1"), "{rows:?}");
    let queues = place.json(&["queues", "--json"]);
    assert_eq!(
        (&queues[1]["queue_name"], &queues[1]["waiting"], &queues[1]["locked_by"]),
        (&json!("serial"), &json!(1), &json!("node-1"))
    );
    assert!(queues[1]["oldest_due_at"].is_string() && queues[0]["locked_at"].is_null(), "{queues}");
    let page = place.json(&["queues", "--json", "--limit", "1", "--after", "another"]);
    assert_eq!((page.as_array().unwrap().len(), &page[0]["queue_name"]), (1, &json!("serial")));
}

#[tokio::test]
async fn tasks_are_listed_with_their_workers_and_the_numbers_of_their_jobs() {
    let place = Place::with_jobs().await;
    place.client.batch_execute(WORKERS).await.unwrap();
    let tasks = place.json(&["tasks", "--json"]);
    let summary: Vec<Value> = tasks
        .as_array()
        .unwrap()
        .iter()
        .map(|task| json!([task["task_identifier"], task["workers"], task["ready"], task["failed"]]))
        .collect();
    assert_eq!(
        json!(summary),
        json!([["email", 2, 1, 0], ["report", 0, 0, 1], ["resize", 0, 0, 0], ["unused", 1, 0, 0]])
    );
    let run = place.atta(&["tasks", "--limit", "2"]);
    assert_eq!(rows(&run.out)[0][..8], ["email", "2", "1", "1", "0", "0", "0", "0"]);
    assert_eq!(run.err, "there may be more; for the next: --after \"report\"\n");
}

#[tokio::test]
async fn workers_are_ours_and_whoever_holds_a_lock() {
    let place = Place::with_jobs().await;
    place.client.batch_execute(WORKERS).await.unwrap();
    let workers = place.json(&["workers", "--json"]);
    let summary: Vec<Value> = workers
        .as_array()
        .unwrap()
        .iter()
        .map(|worker| {
            json!([worker["id"], worker["status"], worker["jobs"], worker["queues"], worker["pid"]])
        })
        .collect();
    assert_eq!(
        json!(summary),
        json!([["alive", "alive", 0, 0, 7], ["silent", "stale", 0, 0, 8], ["node-1", "foreign", 1, 1, null]])
    );
    let run = place.atta(&["workers"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert!(run.out.starts_with("WORKER  STATUS ") && run.out.contains("email unused"), "{}", run.out);
    let empty = Place::new().await.atta(&["workers"]);
    assert_eq!((empty.code, empty.out.as_str(), empty.err.as_str()), (0, "", "no workers\n"));
}

#[tokio::test]
async fn stats_count_by_state_task_and_queue() {
    let place = Place::with_jobs().await;
    let stats = place.json(&["stats", "--json"]);
    let totals_alone = place.json(&["stats", "--top", "0", "--json"]);
    assert_eq!((&totals_alone["jobs"], &totals_alone["tasks"]), (&stats["jobs"], &serde_json::json!([])));
    let each = json!({ "ready": 1, "waiting": 1, "scheduled": 1, "retrying": 1, "running": 1, "failed": 1, "total": 6 });
    assert_eq!(stats["jobs"], each);
    let tasks: Vec<&Value> =
        stats["tasks"].as_array().unwrap().iter().map(|task| &task["task_identifier"]).collect();
    assert_eq!(json!(tasks), json!(["email", "report", "resize"]));
    let queues: Vec<Value> = stats["queues"]
        .as_array()
        .unwrap()
        .iter()
        .map(|queue| json!([queue["queue_name"], queue["total"]]))
        .collect();
    assert_eq!(json!(queues), json!([[null, 4], ["serial", 2]]));
    assert!(stats["oldest_due_at"].is_string() && stats["rates"].is_null(), "{stats}");
    let run = place.atta(&["stats", "--sample", "1", "--top", "1"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert!(run.out.contains("oldest due: ") && run.out.contains("/s added, "), "{}", run.out);
    let empty = Place::new().await.json(&["stats", "--json"]);
    assert_eq!((&empty["jobs"]["total"], &empty["tasks"]), (&json!(0), &json!([])));
}

#[tokio::test]
async fn without_due_jobs_no_due_time_is_printed() {
    let place = Place::new().await;
    let later = "select graphile_worker.add_job('t', queue_name := 'q', run_at := now() + interval '1 day');
      insert into graphile_worker._private_job_queues (queue_name) values ('empty')";
    place.client.batch_execute(later).await.unwrap();
    place.client.batch_execute(WORKERS).await.unwrap();
    assert_eq!(place.json(&["stats", "--json"])["oldest_due_at"], Value::Null);
    assert!(!place.atta(&["stats"]).out.contains("oldest due"));
    for command in ["tasks", "queues"] {
        for row in place.json(&[command, "--json"]).as_array().unwrap() {
            assert_eq!(row["oldest_due_at"], Value::Null, "{command}: {row}");
        }
    }
}

#[tokio::test]
async fn a_clean_up_reports_what_it_deleted_and_asks_before_it_deletes_jobs() {
    let place = Place::with_jobs().await;
    place.client.batch_execute(WORKERS).await.unwrap();
    let more =
        "insert into graphile_worker._private_tasks (identifier) values ('unused'), ('nobodys'), ('kept');
      insert into graphile_worker._private_job_queues (queue_name) values ('empty')";
    place.client.batch_execute(more).await.unwrap();
    let run = place.atta(&["cleanup", "--keep", "kept"]);
    assert_eq!((run.code, run.out.as_str()), (0, "deleted 0 jobs, 1 task and 1 queue\n"), "{}", run.err);
    let asked = place.atta(&["cleanup", "DELETE_PERMAFAILED_JOBS"]);
    assert_eq!(asked.code, 2);
    assert!(asked.err.contains("delete 1 job that failed permanently"), "{}", asked.err);
    let run = place.atta(&["cleanup", "delete_permafailed_jobs,GC_JOB_QUEUES", "--yes", "--json"]);
    assert_eq!(
        serde_json::from_str::<Value>(&run.out).unwrap(),
        json!({ "jobs": 1, "tasks": 0, "queues": 0 }),
        "{}",
        run.err
    );
    let wrong = place.atta(&["cleanup", "EVERYTHING"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("GC_TASK_IDENTIFIERS"), "{}", wrong.err);
}

#[tokio::test]
async fn a_clean_up_that_waits_for_an_open_transaction_in_vain_says_what_it_did() {
    let place = Place::with_jobs().await;
    let adding = place.db.client().await;
    adding.batch_execute("begin; select graphile_worker.add_job('new')").await.unwrap();
    let run = place.atta(&["cleanup", "DELETE_PERMAFAILED_JOBS,GC_TASK_IDENTIFIERS,GC_JOB_QUEUES", "--yes"]);
    assert_eq!((run.code, run.out.as_str()), (2, ""), "{}", run.err);
    assert!(run.err.starts_with("error: cleaning up (GC_TASK_IDENTIFIERS): "), "{}", run.err);
    assert!(
        run.err
            .contains("\nthis part changed nothing; before it, 1 job, 0 tasks and 0 queues were deleted\n"),
        "{}",
        run.err
    );
    assert!(run.err.contains("\nhint: ") && run.err.contains("the command can be repeated"), "{}", run.err);

    let run = place.atta(&["cleanup"]);
    assert!(run.err.contains("\nnothing was deleted\nhint: "), "{}", run.err);
    adding.batch_execute("commit").await.unwrap();
    let run = place.atta(&["cleanup"]);
    assert_eq!(run.code, 0, "{}", run.err);
}
