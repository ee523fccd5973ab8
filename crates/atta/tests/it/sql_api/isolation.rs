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
async fn a_key_whose_job_was_changed_meanwhile_is_a_serialization_failure() {
    let db = Database::migrated().await;
    let (client, other) = (db.client().await, db.client().await);
    add(&other, "'t', '[0]', job_key := 'k'").await;
    run(&client, "begin isolation level repeatable read; select count(*) from graphile_worker.jobs").await;
    add(&other, "'t', '[1]', job_key := 'k'").await;
    let error = refusal(&client, "select graphile_worker.add_job('t', '[2]', job_key := 'k')").await;
    assert_eq!(error.code().code(), "40001");
    run(&client, "rollback").await;
}
