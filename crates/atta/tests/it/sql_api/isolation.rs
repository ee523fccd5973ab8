//! Adds within transactions of the caller that are stricter than read committed.

use testkit::Database;

use super::support::{add, jobs_of, refusal, run, spec_array, value};

/// At these levels, a job that another transaction deleted is still visible, so its key is found twice.
#[tokio::test]
async fn a_key_whose_job_was_deleted_meanwhile_can_be_added_again() {
    let db = Database::migrated().await;
    let (client, other) = (db.client().await, db.client().await);
    for level in ["repeatable read", "serializable"] {
        for calls in [
            vec!["add_job('t', '[2]', job_key := 'k')".to_owned()],
            vec![format!("add_jobs({})", spec_array(&["'t', '[2]', null, null, null, 'k', null, null"]))],
            vec![
                format!(
                    "add_jobs({})",
                    spec_array(&[
                        "'t', '[1]', null, null, null, null, null, null",
                        "'t', '[2]', null, null, null, 'k', null, null",
                        "'t', '[3]', null, null, null, 'l', null, null",
                    ])
                ),
                "add_job('t', '[4]', job_key := 'k')".to_owned(),
            ],
        ] {
            add(&other, "'t', '[0]', job_key := 'k'").await;
            run(
                &client,
                &format!("begin isolation level {level}; select count(*) from graphile_worker.jobs"),
            )
            .await;
            run(&other, "delete from graphile_worker._private_jobs where key = 'k'").await;
            for call in &calls {
                let added = jobs_of(&client, &format!("graphile_worker.{call}")).await;
                assert!(added.iter().any(|job| job.key.as_deref() == Some("k")), "{level}: {call}");
            }
            run(&client, "commit").await;
            let stored = "select payload from graphile_worker._private_jobs where key = 'k'";
            let expected = if calls.len() == 1 { "[2]" } else { "[2, 4]" };
            assert_eq!(value(&client, stored).await, expected, "{level}");
            run(&client, "delete from graphile_worker._private_jobs").await;
        }
    }
}

/// At these levels, a row that another transaction changed can't be changed again: the caller has to repeat its
/// transaction.
#[tokio::test]
async fn adding_a_key_whose_job_was_changed_meanwhile_is_a_serialization_failure() {
    let db = Database::migrated().await;
    let (client, other) = (db.client().await, db.client().await);
    add(&other, "'t', '[0]', job_key := 'k'").await;
    run(&client, "begin isolation level repeatable read; select count(*) from graphile_worker.jobs").await;
    add(&other, "'t', '[1]', job_key := 'k'").await;
    let error = refusal(&client, "select graphile_worker.add_job('t', '[2]', job_key := 'k')").await;
    assert_eq!(error.code().code(), "40001");
    run(&client, "rollback").await;
}

/// At these levels, a task or queue that a clean-up has deleted is still visible. A job that refers to it would never run.
#[tokio::test]
async fn a_task_or_queue_that_was_cleaned_up_meanwhile_is_a_serialization_failure() {
    let db = Database::migrated().await;
    let (client, other) = (db.client().await, db.client().await);
    let batch = |key: &str| spec_array(&[&format!("'t', null, 'q', null, null, {key}, null, null")]);
    let calls = [
        "add_job('t', queue_name := 'q')".to_owned(),
        "add_job('t', queue_name := 'q', job_key := 'k')".to_owned(),
        "add_job('t', queue_name := 'q', job_key := 'k', job_key_mode := 'unsafe_dedupe')".to_owned(),
        format!("add_jobs({})", batch("null")),
        format!("add_jobs({})", batch("'k'")),
    ];
    for level in ["repeatable read", "serializable"] {
        for table in ["_private_tasks", "_private_job_queues"] {
            for call in &calls {
                add(&other, "'t', queue_name := 'q'").await;
                run(&other, "delete from graphile_worker._private_jobs").await;
                run(
                    &client,
                    &format!("begin isolation level {level}; select count(*) from graphile_worker.jobs"),
                )
                .await;
                run(&other, &format!("delete from graphile_worker.{table}")).await;
                let error = refusal(&client, &format!("select graphile_worker.{call}")).await;
                assert_eq!(error.code().code(), "40001", "{level}, {table}: {call}");
                run(&client, "rollback").await;
            }
        }
        for call in &calls {
            run(&client, &format!("begin isolation level {level}")).await;
            assert_eq!(
                jobs_of(&client, &format!("graphile_worker.{call}")).await.len(),
                1,
                "{level}: {call}"
            );
            run(&client, "commit").await;
        }
    }
    let last_id = "select max(id) from graphile_worker._private_tasks";
    let last_value = "select last_value from graphile_worker.tasks_id_seq";
    assert_eq!(
        value(&client, last_id).await,
        value(&client, last_value).await,
        "no value of the sequence is used up"
    );
}
