//! Everything that atta does, with a hostile `public` in the search path.

use std::time::Duration;

use atta::{
    Claims, CleanupTask, ConnectionSettings, CronItems, JobFilter, JobKeyMode, JobSpec, JobSpecBuilder,
    RawJobSpec, RescheduleJobOptions, Schema, TaskError, WorkerOptions, WorkerUtils, parse_crontab,
    roles_sql,
};
use testkit::{Database, wait_for};
use tokio_postgres::Client;

use super::{assert_nothing_was_called, make_public_hostile};
use crate::sql_api::support::{run, value};
use crate::worker::support::Running;

/// A database with a hostile `public`, in which atta is installed afterwards; and a connection that observes it.
async fn hostile_database() -> (Database, Client, WorkerUtils) {
    let db = Database::empty().await;
    let observer = db.client().await;
    make_public_hostile(&observer).await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    assert!(!utils.migrate().await.unwrap().is_empty());
    assert!(utils.migrate().await.unwrap().is_empty());
    (db, observer, utils)
}

#[tokio::test]
async fn adding_reading_and_managing_calls_nothing_in_public() {
    let (db, observer, utils) = hostile_database().await;
    let keyed = || JobSpecBuilder::new().job_key("k").queue_name("q").flags(vec!["f".into()]);
    let job = utils.add_raw_job("t", [1], keyed()).await.unwrap();
    utils.add_raw_job("t", [2], keyed()).await.unwrap();
    utils.add_raw_job("t", [3], keyed().job_key_mode(JobKeyMode::UnsafeDedupe)).await.unwrap();
    let many: Vec<RawJobSpec> =
        (0..300).map(|number| RawJobSpec::new("many", number, JobSpec::default()).unwrap()).collect();
    assert_eq!(utils.add_raw_jobs(&many).await.unwrap().len(), 300);
    utils.insert_raw_jobs(&many).await.unwrap();
    utils.read_stats(10).await.unwrap();
    utils.read_job_counters().await.unwrap();
    assert_eq!(utils.count_jobs().await.unwrap().total(), 601);
    assert_eq!(utils.list_jobs(&JobFilter::default()).await.unwrap().len(), 100);
    utils.list_job_ids(&JobFilter::default()).await.unwrap();
    assert!(utils.get_job(job.id()).await.unwrap().is_some());
    assert_eq!(utils.list_queues(None, 10).await.unwrap().len(), 1);
    assert_eq!(utils.list_tasks(None, 10).await.unwrap().len(), 2);
    utils.list_workers().await.unwrap();
    utils.list_known_crontabs().await.unwrap();
    utils.unknown_tasks(&["t", "x"]).await.unwrap();
    let ids = [job.id()];
    utils.reschedule_jobs(&ids, RescheduleJobOptions::default()).await.unwrap();
    utils.permanently_fail_jobs(&ids, "no").await.unwrap();
    utils.retry_jobs(&ids).await.unwrap();
    utils.unlock_jobs(&ids).await.unwrap();
    utils.force_unlock_workers(&["w"]).await.unwrap();
    assert!(utils.remove_job("k").await.unwrap().is_some());
    let second = utils.add_raw_job("t", 1, JobSpec::default()).await.unwrap();
    assert_eq!(utils.complete_jobs(&[second.id()]).await.unwrap().len(), 1);
    let all = [CleanupTask::GcTaskIdentifiers, CleanupTask::GcJobQueues, CleanupTask::DeletePermafailedJobs];
    utils.cleanup(&all, &[]).await.unwrap();

    let prefix = db.name().to_owned();
    run(&db.client().await, &roles_sql(&Schema::default(), &prefix).unwrap()).await;
    let producer = db.client().await;
    run(&producer, &format!("set role {prefix}_producer")).await;
    run(&producer, &format!("select {prefix}_add.add_job('t', '[1]', job_key := 'k')")).await;
    run(&producer, &format!("select {prefix}_add.add_job('t', '[1]', job_key := 'k', flags := array['f'])"))
        .await;
    run(
        &producer,
        &format!("select {prefix}_add.add_jobs(array[row('t', null, null, null, null, null, null, null)]::{prefix}_add.job_spec[])"),
    )
    .await;
    let refused = producer.batch_execute(&format!("select {prefix}_add.add_job(null)")).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "GWBID");
    assert_nothing_was_called(&observer).await;
}

/// Jobs of all kinds, a worker that died, and a cron item with ticks to backfill.
async fn give_work(observer: &Client, utils: &WorkerUtils) {
    for number in 0..40 {
        let spec = match number % 4 {
            0 => JobSpecBuilder::new(),
            1 => JobSpecBuilder::new().queue_name(format!("q{}", number % 3)),
            2 => JobSpecBuilder::new().flags(vec!["f".into()]),
            _ => JobSpecBuilder::new().priority(5),
        };
        utils.add_raw_job("work", number, spec).await.unwrap();
    }
    utils.add_raw_job("failing", 1, JobSpecBuilder::new().max_attempts(1)).await.unwrap();
    run(
        observer,
        "insert into graphile_worker._atta_workers
           (id, host, pid, version, heartbeat_at, task_identifiers, slots, recovery_threshold)
         values ('gone', 'h', 1, '1', pg_catalog.now() - interval '1 hour', '{work}', 1, interval '1 second');
         update graphile_worker._private_jobs
         set locked_at = pg_catalog.now() - interval '1 hour', locked_by = 'gone', attempts = 1
         where id = (select pg_catalog.min(id) from graphile_worker._private_jobs);
         insert into graphile_worker._private_known_crontabs
         values ('tick', pg_catalog.now() - interval '1 hour', pg_catalog.now() - interval '10 minutes')
         on conflict (identifier) do update set last_execution = excluded.last_execution",
    )
    .await;
}

async fn work_in_peace(observer: &Client, utils: &WorkerUtils, options: WorkerOptions) {
    give_work(observer, utils).await;
    let items = CronItems::new();
    items.extend(parse_crontab("* * * * * tick ?id=tick&fill=1h").unwrap()).unwrap();
    let options = options
        .concurrency(4)
        .poll_interval(Duration::from_millis(200))
        .recovery_threshold(Duration::from_secs(1))
        .add_forbidden_flag("forbidden")
        .define_raw_job("work", |_| async {})
        .define_raw_job("failing", |_| async { Err::<(), _>(TaskError::new("no")) })
        .define_raw_job("tick", |_| async {});
    let running = Running::start(options.with_cron(items)).await;
    wait_for("all jobs but the failed one to be done", || async {
        let counts = utils.count_jobs().await.expect("jobs are counted");
        (counts.total() == 1 && counts.failed == 1).then_some(())
    })
    .await;
    wait_for("the dead worker to be recovered", || async {
        let gone = "select count from (select pg_catalog.count(*) from graphile_worker._atta_workers where id = 'gone') as x";
        (value(observer, gone).await == "0").then_some(())
    })
    .await;
    running.stop().await.unwrap();
    run(observer, "delete from graphile_worker._private_jobs").await;
    assert_nothing_was_called(observer).await;
}

#[tokio::test]
async fn a_worker_with_held_claims_calls_nothing_in_public() {
    let (db, observer, utils) = hostile_database().await;
    let options = WorkerOptions::default().database_url(db.url()).claims(Claims::Held);
    work_in_peace(&observer, &utils, options).await;
}

#[tokio::test]
async fn a_worker_with_durable_claims_calls_nothing_in_public() {
    let (db, observer, utils) = hostile_database().await;
    let options = WorkerOptions::default().database_url(db.url()).claims(Claims::Durable);
    work_in_peace(&observer, &utils, options).await;
}

/// The sessions of a given pool are not ours, as behind a pooler: there each statement protects itself.
#[tokio::test]
async fn a_worker_on_a_given_pool_calls_nothing_in_public() {
    let (db, observer, utils) = hostile_database().await;
    let settings = ConnectionSettings::with_variables(&db.url(), |_| None).unwrap();
    for claims in [Claims::Held, Claims::Durable] {
        let options = WorkerOptions::default().pg_pool(settings.pool(20).unwrap()).claims(claims);
        work_in_peace(&observer, &utils, options).await;
    }
}
