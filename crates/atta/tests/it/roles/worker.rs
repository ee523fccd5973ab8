//! The worker role.

use std::time::Duration;

use atta::{
    Claims, CleanupTask, JobSpec, JobSpecBuilder, RawJobSpec, RescheduleJobOptions, Schema, WorkerOptions,
};
use serde_json::json;
use testkit::wait_for;

use super::support::{Roles, assert_denied};
use crate::faults::support::{JOBS, LOCKED_JOBS, LOCKED_QUEUES, Ledger, Setup};
use crate::sql_api::support::{run, value};
use crate::worker::support::{Reports, Running};

/// A cron item that was known before and has missed some minutes.
const KNOWN: &str =
    "insert into graphile_worker._private_known_crontabs (identifier, known_since, last_execution)
    values ('tick', now() - interval '1 day', date_trunc('minute', now()) - interval '3 minutes')";

#[tokio::test]
async fn a_worker_does_all_its_work_with_the_rights_of_a_worker() {
    for claims in [Claims::Held, Claims::Durable] {
        let roles = Roles::new().await;
        run(&roles.owner, KNOWN).await;
        let mut reports = Reports::new();
        let options = WorkerOptions::default()
            .database_url(roles.url("worker"))
            .concurrency(4)
            .claims(claims)
            // Only LISTEN can announce the job in time.
            .poll_interval(Duration::from_secs(3600))
            .define_raw_job("plain", reports.task(|_| async {}))
            .define_raw_job("slow", reports.task(|_| tokio::time::sleep(Duration::from_millis(150))))
            .define_raw_job("tick", reports.task(|_| async {}))
            .define_raw_job("fails", reports.task(|_| async { Err::<(), _>("no") }))
            .with_cron("* * * * * tick ?fill=10m")
            .unwrap();
        let running = Running::start(options).await;
        for _ in 0..2 {
            assert_eq!(reports.next().await.task_identifier(), "tick", "{claims:?}");
        }
        let utils = &running.utils;
        let bulk: Vec<RawJobSpec> =
            (0..100).map(|n| RawJobSpec::new("plain", n, JobSpec::default()).unwrap()).collect();
        utils.add_raw_jobs(&bulk).await.unwrap();
        for n in 0..3 {
            utils.add_raw_job("plain", n, JobSpecBuilder::new().queue_name("line")).await.unwrap();
        }
        utils.add_raw_job("slow", 1, JobSpecBuilder::new().job_key("k")).await.unwrap();
        let failing =
            utils.add_raw_job("fails", 1, JobSpecBuilder::new().max_attempts(1)).await.unwrap().id();
        wait_for("all but the failed to be done", || async {
            (value(&roles.owner, JOBS).await == "1").then_some(())
        })
        .await;
        let failed = wait_for("the failure to be written", || async {
            utils.get_job(failing).await.unwrap().filter(|job| job.is_permanently_failed())
        })
        .await;
        assert_eq!(failed.last_error(), Some("no"));
        assert_eq!(value(&roles.owner, "select count(*) from graphile_worker._atta_workers").await, "1");
        running.stop().await.unwrap();
        assert_eq!(value(&roles.owner, "select count(*) from graphile_worker._atta_workers").await, "0");
    }
}

#[tokio::test]
async fn a_worker_recovers_jobs_of_a_dead_worker_with_the_rights_of_a_worker() {
    let roles = Roles::new().await;
    let ledger = Ledger::make(&roles.db).await;
    let login = roles.login("worker");
    run(&roles.owner, &format!("grant all on all tables in schema public to {login}")).await;
    run(&roles.owner, &format!("grant all on all sequences in schema public to {login}")).await;
    let setup = Setup { url: roles.url("worker"), is_durable: true, ..Setup::new(&roles.db) };
    let utils = roles.utils("worker", Schema::default());
    let mut doomed = setup.spawn();
    let only_here = || json!({ "only_in": std::process::id() });
    utils.add_raw_job("work", only_here(), JobSpecBuilder::new().queue_name("line")).await.unwrap();
    utils.add_raw_job("work", only_here(), JobSpec::default()).await.unwrap();
    ledger.started_in(doomed.id(), 2).await;
    let heir = Running::start(setup.options()).await;
    doomed.kill();
    ledger.counted("both jobs to be done", JOBS, 0).await;
    heir.stop().await.unwrap();
    assert_eq!(ledger.count(LOCKED_JOBS).await + ledger.count(LOCKED_QUEUES).await, 0);
    assert_eq!(value(&roles.owner, "select count(*) from graphile_worker._atta_dead_workers").await, "1");
}

#[tokio::test]
async fn a_worker_manages_jobs_and_cleans_up_with_the_rights_of_a_worker() {
    let roles = Roles::new().await;
    let utils = roles.utils("worker", Schema::default());
    let mut ids = Vec::new();
    for n in 0..5 {
        let spec = JobSpecBuilder::new().queue_name(format!("q{n}")).job_key(format!("k{n}"));
        ids.push(utils.add_raw_job("t", n, spec).await.unwrap().id());
    }
    assert!(utils.remove_job("k0").await.unwrap().is_some());
    assert_eq!(utils.complete_jobs(&ids[1..2]).await.unwrap().len(), 1);
    assert_eq!(utils.permanently_fail_jobs(&ids[2..3], "no").await.unwrap().len(), 1);
    let options = RescheduleJobOptions { priority: Some(3), ..RescheduleJobOptions::default() };
    assert_eq!(utils.reschedule_jobs(&ids[3..4], options).await.unwrap().len(), 1);
    assert_eq!(utils.retry_jobs(&ids[3..4]).await.unwrap().len(), 1);
    utils.unlock_jobs(&ids).await.unwrap();
    utils.force_unlock_workers(&["gone"]).await.unwrap();
    let all = [CleanupTask::DeletePermafailedJobs, CleanupTask::GcTaskIdentifiers, CleanupTask::GcJobQueues];
    let counts = utils.cleanup(&all, &[]).await.unwrap();
    assert_eq!((counts.jobs, counts.tasks, counts.queues), (1, 0, 3));
    assert!(utils.migrate().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_worker_changes_no_table() {
    let roles = Roles::new().await;
    let add = roles.add_schema().quoted();
    let worker = roles.client("worker").await;
    assert_denied(
        &worker,
        &[
            "alter table graphile_worker._private_jobs add column x int",
            "alter table graphile_worker._private_jobs disable row level security",
            "alter table graphile_worker._private_jobs owner to current_user",
            "drop table graphile_worker._private_jobs",
            "drop table graphile_worker._atta_workers",
            "drop view graphile_worker.jobs",
            "drop schema graphile_worker cascade",
            "truncate graphile_worker._private_jobs",
            "create table graphile_worker.x (y int)",
            "create index on graphile_worker._private_jobs (id)",
            "create policy p on graphile_worker._private_jobs",
            "create function graphile_worker.f() returns int language sql as 'select 1'",
            "drop function graphile_worker.remove_job",
            "alter function graphile_worker.remove_job(text) security definer",
            "create trigger t after insert on graphile_worker._private_jobs for each row execute function suppress_redundant_updates_trigger()",
            "insert into graphile_worker.migrations (id) values (99)",
            "delete from graphile_worker._atta_migrations",
            "update graphile_worker._private_tasks set identifier = 'x'",
            "delete from graphile_worker._private_known_crontabs",
            "select setval('graphile_worker.jobs_id_seq1', 1)",
            "create role x",
            &format!("select {add}.add_job('t')"),
        ],
    )
    .await;
}
