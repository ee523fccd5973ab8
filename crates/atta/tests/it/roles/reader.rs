//! The reader role.

use atta::{JobFilter, Schema, WorkerOptions};

use super::support::{Roles, assert_denied};
use crate::sql_api::support::{run, value};

#[tokio::test]
async fn a_reader_sees_everything() {
    let roles = Roles::new().await;
    run(
        &roles.owner,
        "select graphile_worker.add_job('t', '{\"a\": 1}', queue_name := 'q');
         insert into graphile_worker._private_known_crontabs values ('c', now(), null);
         insert into graphile_worker._atta_workers (id, host, pid, version, task_identifiers, slots)
         values ('w', 'h', 1, '1', '{t}', 1)",
    )
    .await;
    let utils = roles.utils("reader", Schema::default());
    let jobs = utils.list_jobs(&JobFilter::default()).await.unwrap();
    assert_eq!((jobs.len(), jobs[0].payload::<serde_json::Value>().unwrap()["a"].as_i64()), (1, Some(1)));
    assert!(utils.get_job(jobs[0].id()).await.unwrap().is_some());
    assert_eq!(utils.count_jobs().await.unwrap().total(), 1);
    assert_eq!(utils.list_known_crontabs().await.unwrap().len(), 1);
    let client = roles.client("reader").await;
    for relation in [
        "jobs",
        "_private_jobs",
        "_private_tasks",
        "_private_job_queues",
        "_private_known_crontabs",
        "_atta_workers",
        "migrations",
        "_atta_migrations",
    ] {
        let count = value(&client, &format!("select count(*) from graphile_worker.{relation}")).await;
        assert_ne!(count, "0", "{relation}");
    }
    let mut client = roles.client("reader").await;
    assert!(atta::migrate(&mut client, &Schema::default()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_reader_can_neither_write_nor_lock() {
    let roles = Roles::new().await;
    let add = roles.add_schema().quoted();
    run(&roles.owner, "select graphile_worker.add_job('t', job_key := 'k')").await;
    let reader = roles.client("reader").await;
    assert_denied(
        &reader,
        &[
            "insert into graphile_worker._private_tasks (identifier) values ('x')",
            "update graphile_worker._private_jobs set priority = 1",
            "delete from graphile_worker._private_jobs",
            "truncate graphile_worker._private_jobs",
            "select id from graphile_worker._private_jobs for update",
            "select id from graphile_worker._private_jobs for key share skip locked",
            "do $$ begin lock table graphile_worker._private_jobs in row exclusive mode; end $$",
            "do $$ begin lock table graphile_worker._private_jobs in access exclusive mode; end $$",
            "select nextval('graphile_worker.jobs_id_seq1')",
            "select graphile_worker.add_job('t')",
            "select graphile_worker.remove_job('k')",
            "select graphile_worker.complete_jobs(array[1])",
            "select graphile_worker.permanently_fail_jobs(array[1])",
            "select graphile_worker.reschedule_jobs(array[1])",
            "select graphile_worker.force_unlock_workers(array['w'])",
            "insert into graphile_worker._atta_workers (id) values ('x')",
            "insert into graphile_worker.migrations (id) values (99)",
            "create table graphile_worker.x (y int)",
            "alter table graphile_worker._private_jobs disable row level security",
            "drop view graphile_worker.jobs",
            "drop schema graphile_worker cascade",
            &format!("select {add}.add_job('t')"),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_worker_with_the_rights_of_a_reader_ends_with_a_hint() {
    let roles = Roles::new().await;
    let options =
        WorkerOptions::default().database_url(roles.url("reader")).define_raw_job("t", |_| async {});
    let worker = options.init().await.unwrap();
    let error = worker.run().await.unwrap_err();
    assert!(error.is_config() && error.db_code() == Some("42501"), "{error:?}");
    assert!(error.message().starts_with("registering the worker: permission denied"), "{error}");
    assert!(error.hint().unwrap().contains("atta migrate --print-roles"), "{error}");
}
