//! Graphile Worker's own workers on a schema that we installed.

use testkit::{Database, wait_for};
use tokio_postgres::Client;

use crate::catalog::{assert_like_fresh, revisions};
use crate::migrate;
use crate::node::{Listening, node, try_node};
use crate::revisions::at_revision;

/// A migrated database with the table in which Node's tasks leave their mark.
async fn database() -> (Database, Client) {
    let db = Database::migrated().await;
    let client = db.client().await;
    make_marks(&client).await;
    (db, client)
}

async fn make_marks(client: &Client) {
    let sql = "create table public.ran (by text, job_id bigint, task text, payload json)";
    client.batch_execute(sql).await.expect("the table of marks is made");
}

async fn marks(client: &Client) -> Vec<String> {
    let sql = "select concat_ws(' ', task, payload) from public.ran order by 1";
    client.query(sql, &[]).await.expect("the marks can be read").iter().map(|row| row.get(0)).collect()
}

async fn node_runs_jobs_of_ours(version: &'static str) {
    let (db, client) = database().await;
    let before = revisions(&client).await;
    client
        .batch_execute(
            r#"select graphile_worker.add_job('mark', '{"plain":1}');
               select graphile_worker.add_job('mark', '{"queued":1}', queue_name => 'serial');
               select graphile_worker.add_job('mark', '{"queued":2}', queue_name => 'serial');
               select graphile_worker.add_job('mark', '{"keyed":1}', job_key => 'key');
               select graphile_worker.add_job('mark', '{"keyed":2}', job_key => 'key');
               select graphile_worker.add_job('mark', '{"later":1}', run_at => now() + interval '1 day');
               select graphile_worker.add_job('mark_and_add', '{"first":1}');"#,
        )
        .await
        .expect("jobs of many kinds are added");

    node(version, &db, "work").await;

    let added = format!(r#"mark {{"addedBy":"{version}"}}"#);
    let mut wanted = vec![
        added.as_str(),
        r#"mark {"keyed":2}"#,
        r#"mark {"plain":1}"#,
        r#"mark {"queued":1}"#,
        r#"mark {"queued":2}"#,
        r#"mark_and_add {"first":1}"#,
    ];
    let mut ran = marks(&client).await;
    wanted.sort_unstable();
    ran.sort_unstable();
    assert_eq!(ran, wanted);
    let sql = "select (select count(*) from graphile_worker.jobs),
                      (select count(*) from graphile_worker._private_job_queues where not is_available)";
    let left = client.query_one(sql, &[]).await.expect("what is left can be counted");
    assert_eq!((left.get::<_, i64>(0), left.get::<_, i64>(1)), (1, 0), "jobs left, queues left locked");
    assert_eq!(revisions(&client).await, before);
    assert_like_fresh(&client, &format!("{version} worked")).await;
}

#[tokio::test]
async fn graphile_worker_0_17_runs_our_jobs() {
    node_runs_jobs_of_ours("0.17.3").await;
}

#[tokio::test]
async fn graphile_worker_0_18_runs_our_jobs() {
    node_runs_jobs_of_ours("0.18.0").await;
}

#[tokio::test]
async fn a_job_that_fails_in_node_waits_for_its_next_attempt() {
    for version in ["0.17.3", "0.18.0"] {
        let (db, client) = database().await;
        client
            .query_one("select graphile_worker.add_job('fail', queue_name => 'serial')", &[])
            .await
            .unwrap();
        node(version, &db, "work").await;
        let sql =
            "select job.attempts, job.last_error, job.is_available, job.run_at > now(), queue.is_available
                   from graphile_worker._private_jobs as job
                   join graphile_worker._private_job_queues as queue on queue.id = job.job_queue_id";
        let job = client.query_one(sql, &[]).await.unwrap();
        assert_eq!(job.get::<_, i16>(0), 1, "{version}");
        assert!(job.get::<_, String>(1).contains("it went wrong on purpose"), "{version}");
        assert!(job.get::<_, bool>(2) && job.get::<_, bool>(3) && job.get::<_, bool>(4), "{version}");
    }
}

#[tokio::test]
async fn node_and_sql_add_jobs_to_our_schema() {
    for version in ["0.17.3", "0.18.0"] {
        let (db, client) = database().await;
        node(version, &db, "add").await;
        let sql = "select count(*) from graphile_worker.jobs where task_identifier like 'from_node%'";
        let added: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        assert_eq!(added, 7, "{version}: eight calls, two of them with one key");
        assert_like_fresh(&client, &format!("{version} added jobs")).await;
    }
}

#[tokio::test]
async fn a_worker_too_old_for_our_schema_refuses_to_start() {
    let (db, client) = database().await;
    client.query_one("select graphile_worker.add_job('mark')", &[]).await.unwrap();
    let output = try_node("0.16.6", &db, "work").await;
    assert!(!output.status.success());
    assert_eq!(marks(&client).await, Vec::<String>::new());
    assert_like_fresh(&client, "0.16.6 refused").await;
}

/// Locks changed hands at revision 19, so the notice of it must reach the workers of before.
#[tokio::test]
async fn our_migration_stops_a_running_worker_that_is_too_old_for_it() {
    let db = at_revision(18).await;
    let mut client = db.client().await;
    make_marks(&client).await;
    let mut worker = Listening::start("0.16.6", &db);
    let listens = "select exists (select from pg_stat_activity
                     where datname = current_database() and query ilike 'listen %worker:migrate%')";
    wait_for("the worker to listen", || async {
        client.query_one(listens, &[]).await.unwrap().get::<_, bool>(0).then_some(())
    })
    .await;
    assert!(!worker.has_stopped());

    migrate(&mut client).await;

    wait_for("the worker to stop by itself", || {
        let stopped = worker.has_stopped();
        async move { stopped.then_some(()) }
    })
    .await;
}
