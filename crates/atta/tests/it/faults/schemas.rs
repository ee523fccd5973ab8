//! Others drop the schema, send notifications about it, or revoke the right to write.

use std::time::{Duration, Instant};

use atta::{JobSpec, Schema, WorkerEvent};
use serde_json::json;
use testkit::{Database, Proxy, wait_for};
use tokio_postgres::Client;

use crate::worker::support::{Reports, Running, options, wait_until_empty, without_polls};

/// A worker with the task `mine` that has run a job, so that its start is complete; and the proxy in front of it.
async fn started(db: &Database, reports: &mut Reports) -> (Running, Proxy) {
    let (proxy, url) = Proxy::before(&db.url());
    let options = without_polls(db).database_url(url).define_raw_job("mine", reports.task(|_| async {}));
    let mut events = options.subscribe();
    let worker = Running::start(options).await;
    while !matches!(events.next().await.unwrap(), WorkerEvent::ListenStarted) {}
    run_one(db, &worker, reports).await;
    (worker, proxy)
}

/// Adds a job over another connection, and waits until it has completed.
async fn run_one(db: &Database, worker: &Running, reports: &mut Reports) {
    let add = "select id from graphile_worker.add_job('mine')";
    let id: i64 = db.client().await.query_one(add, &[]).await.unwrap().get(0);
    assert_eq!(reports.next().await.id(), id);
    wait_until_empty(&worker.utils).await;
}

/// Waits until the worker sends no more queries.
async fn at_rest(proxy: &Proxy) -> u64 {
    let mut last = (proxy.round_trips(), Instant::now());
    wait_for("the worker to be at rest", || {
        let now = proxy.round_trips();
        if now != last.0 {
            last = (now, Instant::now());
        }
        let is_at_rest = last.1.elapsed() > Duration::from_millis(300);
        async move { is_at_rest.then_some(now) }
    })
    .await
}

#[tokio::test]
async fn adds_in_another_schema_cost_an_idle_worker_no_query() {
    if !testkit::can_listen() {
        return;
    }
    let db = Database::migrated().await;
    let mut client = db.client().await;
    let other = Schema::new("o'ther \"schema\"").unwrap();
    atta::migrate(&mut client, &other).await.unwrap();
    let mut reports = Reports::new();
    let (worker, proxy) = started(&db, &mut reports).await;
    let before = at_rest(&proxy).await;
    let utils = atta::WorkerUtils::new(worker.utils.pool().clone(), other.clone());
    let many = vec![atta::RawJobSpec::new("mine", json!({}), JobSpec::default()).unwrap(); 100];
    let bulk = utils.insert_raw_jobs(&many);
    bulk.await.unwrap();
    let (of_bulk, add) = (at_rest(&proxy).await, format!("select {}.add_job('mine')", other.quoted()));
    for _ in 0..300 {
        client.batch_execute(&add).await.unwrap();
    }
    client.batch_execute(&format!("select {}.remove_job('nothing')", other.quoted())).await.unwrap();
    let after = at_rest(&proxy).await;
    println!("a bulk add in another schema: {} queries; 300 adds: {}", of_bulk - before, after - of_bulk);
    // On a slow machine, a poll or a sweep by the clock falls into this time. Each add used to cost a query or two.
    assert!(after - of_bulk < 10, "{} queries for the jobs of another schema", after - of_bulk);
    run_one(&db, &worker, &mut reports).await;
    worker.stop().await.unwrap();
    assert!(reports.is_empty(), "the other schema's jobs are not ours");
}

/// Another schema may have Graphile's own functions, whose notifications do not name the schema.
#[tokio::test]
async fn notifications_without_a_schema_cause_few_queries() {
    if !testkit::can_listen() {
        return;
    }
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut reports = Reports::new();
    let (worker, proxy) = started(&db, &mut reports).await;
    let (before, start) = (at_rest(&proxy).await, Instant::now());
    let notify = r#"select pg_notify('jobs:insert', '{"r":0.5,"count":1}')"#;
    for _ in 0..500 {
        client.batch_execute(notify).await.unwrap();
    }
    let (time, count) = (start.elapsed(), at_rest(&proxy).await - before);
    println!("500 notices without a schema in {time:?}: {count} queries");
    assert!(count < 250 + 40 * time.as_secs(), "{count} queries in {time:?}");
    // A producer that announces jobs in this way is served without a poll, even among many other notifications.
    let add = "insert into graphile_worker._private_jobs (task_id)
               select id from graphile_worker._private_tasks where identifier = 'mine'";
    for _ in 0..3 {
        client.batch_execute(&format!("{add}; {notify}")).await.unwrap();
        reports.next().await;
    }
    wait_until_empty(&worker.utils).await;
    worker.stop().await.unwrap();
}

/// Anybody who is connected can send a notification.
#[tokio::test]
async fn a_notification_of_a_breaking_migration_is_verified_before_the_worker_stops() {
    if !testkit::can_listen() {
        return;
    }
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut reports = Reports::new();
    let (worker, proxy) = started(&db, &mut reports).await;
    let notify = r#"select pg_notify('worker:migrate', '{"migrationNumber":21,"breaking":true}')"#;
    let before = at_rest(&proxy).await;
    for _ in 0..500 {
        client.batch_execute(notify).await.unwrap();
    }
    let count = at_rest(&proxy).await - before;
    assert!(count < 250, "{count} queries for 500 notices that are not true");
    run_one(&db, &worker, &mut reports).await;

    let migrate = "insert into graphile_worker.migrations values (21, now(), true)";
    client.batch_execute(&format!("begin; {migrate}; {notify}; commit")).await.unwrap();
    let error = worker.join().await.unwrap_err();
    assert!(error.is_config() && error.message().contains("revision 21 of Graphile Worker"), "{error}");
    assert_eq!(error.hint(), Some("install a newer version of atta"));
}

async fn has_schema(client: &Client) -> bool {
    let sql = "select to_regnamespace('graphile_worker') is not null";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Somebody drops the schema on purpose. After it was installed again, with other task ids, each task must get its own
/// jobs.
#[tokio::test]
async fn a_running_worker_waits_for_a_dropped_schema_and_does_not_install_it() {
    let db = Database::migrated().await;
    let mut client = db.client().await;
    let (mut first, mut second) = (Reports::new(), Reports::new());
    let (proxy, url) = Proxy::before(&db.url());
    let poll = Duration::from_millis(50);
    let options = options(&db).database_url(url).poll_interval(poll);
    let options = options.define_raw_job("first", first.task(|_| async {}));
    let worker = Running::start(options.define_raw_job("second", second.task(|_| async {}))).await;
    for task in ["first", "second"] {
        worker.utils.add_raw_job(task, json!({}), JobSpec::default()).await.unwrap();
    }
    assert_eq!((first.next().await.id(), second.next().await.id()), (1, 2));
    wait_until_empty(&worker.utils).await;

    client.batch_execute("drop schema graphile_worker cascade").await.unwrap();
    let polled = proxy.round_trips() + 60;
    wait_for("polls without a schema", || async { (proxy.round_trips() > polled).then_some(()) }).await;
    assert!(!has_schema(&client).await, "a running worker has installed the schema");

    atta::migrate(&mut client, &Schema::default()).await.unwrap();
    for task in ["second", "first", "second"] {
        let add = "select id from graphile_worker.add_job($1)";
        client.query_one(add, &[&task]).await.unwrap();
    }
    let second =
        [second.next().await, second.next().await].map(|job| (job.id(), job.task_identifier().to_owned()));
    assert_eq!(second, [(1, "second".into()), (3, "second".into())]);
    assert_eq!(first.next().await.id(), 2);
    wait_until_empty(&worker.utils).await;
    let registered = "select count(*) from graphile_worker._atta_workers";
    wait_for("the worker to be registered again", || async {
        (client.query_one(registered, &[]).await.unwrap().get::<_, i64>(0) == 1).then_some(())
    })
    .await;
    worker.stop().await.unwrap();
}

/// A schema that was created again assigns the same job ids again.
#[tokio::test]
async fn a_job_held_when_its_schema_was_dropped_is_not_confused_with_a_new_job_of_the_same_id() {
    let db = Database::migrated().await;
    let mut client = db.client().await;
    let mut reports = Reports::new();
    let (proxy, url) = Proxy::before(&db.url());
    let options = options(&db).database_url(url).hold_budget(Duration::from_secs(1)).trust_triggers(true);
    let options = options.poll_interval(Duration::from_millis(100));
    let mut events = options.subscribe();
    let worker = Running::start(options.define_raw_job("mine", reports.task(|_| async {}))).await;
    // From the first poll on, jobs are held.
    run_one(&db, &worker, &mut reports).await;
    // The job is held and has ended, but the connection is lost before its outcome is written.
    client
        .batch_execute(
            "create function public.cut() returns trigger language plpgsql as $$
        begin
          perform pg_sleep(3600);
          return old;
        end $$;
        create trigger cut before delete on graphile_worker._private_jobs
          for each row execute function public.cut()",
        )
        .await
        .unwrap();
    client.batch_execute("select graphile_worker.add_job('mine')").await.unwrap();
    assert_eq!(reports.next().await.id(), 2);
    let sleeps = "select count(*) from pg_stat_activity
                  where datname = current_database() and wait_event = 'PgSleep'";
    wait_for("the outcome to be under way", || async {
        (client.query_one(sleeps, &[]).await.unwrap().get::<_, i64>(0) > 0).then_some(())
    })
    .await;
    proxy.go_away();
    let end = "select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and pid <> pg_backend_pid()";
    client.batch_execute(end).await.unwrap();
    client.batch_execute("drop schema graphile_worker cascade").await.unwrap();
    atta::migrate(&mut client, &Schema::default()).await.unwrap();
    client.batch_execute("select graphile_worker.add_job('other')").await.unwrap();
    // It is not due, so only the outcome of the earlier job with the same id could change it.
    let add =
        r#"select graphile_worker.add_job('mine', '{"is": "another"}', run_at := now() + interval '1 hour')"#;
    client.batch_execute(add).await.unwrap();
    proxy.come_back();
    let is_over = |event: &WorkerEvent| {
        matches!(event, WorkerEvent::ClaimLost { .. } | WorkerEvent::JobSucceeded { .. })
    };
    for _ in 0..2 {
        while !is_over(&events.next().await.unwrap()) {}
    }
    client.batch_execute("update graphile_worker._private_jobs set run_at = now()").await.unwrap();
    let job = reports.next().await;
    assert_eq!((job.id(), job.payload_json()), (2, r#"{"is": "another"}"#));
    let left = "select count(*) from graphile_worker._private_jobs";
    wait_for("its outcome", || async {
        (client.query_one(left, &[]).await.unwrap().get::<_, i64>(0) == 1).then_some(())
    })
    .await;
    worker.stop().await.unwrap();
    assert!(reports.is_empty());
}

/// The new setting applies only to new sessions.
#[tokio::test]
async fn a_worker_that_starts_read_only_runs_jobs_as_soon_as_it_may_write() {
    for db in [Database::migrated().await, Database::empty().await] {
        let client = db.client().await;
        let role = format!("reader_of_{}", db.name());
        let make = format!("create role {role} superuser login");
        let forbid = format!("alter role {role} set default_transaction_read_only = on");
        client.batch_execute(&format!("{make}; {forbid}")).await.unwrap();
        let mut reports = Reports::new();
        // A pooler would know neither the role nor its settings.
        let (proxy, url) = Proxy::before(&db.direct_url());
        let options = options(&db).database_url(url.replace("postgres@", &format!("{role}@")));
        let options = options.poll_interval(Duration::from_millis(200));
        let options = options.define_raw_job("mine", reports.task(|_| async {}));
        let start = tokio::spawn(Running::start(options));
        wait_for("some failures", || async { (proxy.round_trips() > 12).then_some(()) }).await;
        client.batch_execute(&format!("alter role {role} reset all")).await.unwrap();
        let worker = tokio::time::timeout(testkit::DEADLINE, start).await.expect("it starts").unwrap();
        client.batch_execute("select graphile_worker.add_job('mine')").await.unwrap();
        reports.next().await;
        wait_for("the worker's own pool to write", || async {
            worker.utils.add_raw_job("mine", json!({}), JobSpec::default()).await.ok()
        })
        .await;
        reports.next().await;
        wait_until_empty(&worker.utils).await;
        worker.stop().await.unwrap();
        client.batch_execute(&format!("drop owned by {role} cascade")).await.unwrap();
        client.batch_execute(&format!("drop role {role}")).await.unwrap();
    }
}
