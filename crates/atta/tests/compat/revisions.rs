//! Upgrades from each of Graphile's revisions, which are built from the migrations that its newest release ships.

use testkit::Database;
use tokio_postgres::Client;

use crate::catalog::{assert_like_fresh, catalog};
use crate::jobs::{add_every_shape, assert_unchanged, prefix, snapshot};
use crate::{migrate, node};

/// Whether the table `migrations` knows which revisions are breaking. Releases before 0.16 left it without.
#[derive(Clone, Copy, PartialEq)]
enum Marks {
    Absent,
    Present,
}

/// An empty database at `revision`, as Graphile's own migration leads there.
pub(crate) async fn at_revision(revision: i32) -> Database {
    build(revision, Marks::Present).await
}

async fn build(revision: i32, marks: Marks) -> Database {
    let db = Database::empty().await;
    let client = db.client().await;
    let mut sql = "create schema graphile_worker;
                   create table graphile_worker.migrations (
                     id int primary key, ts timestamptz default now() not null
                   );"
    .to_owned();
    if marks == Marks::Present {
        sql += "alter table graphile_worker.migrations add column breaking boolean default false not null;";
    }
    for id in 1..=revision {
        let text = node::migration_sql(id);
        let is_breaking = text.starts_with("--! breaking");
        sql += &match marks {
            Marks::Absent => format!("insert into graphile_worker.migrations (id) values ({id});"),
            Marks::Present => {
                format!("insert into graphile_worker.migrations (id, breaking) values ({id}, {is_breaking});")
            }
        };
        sql += &text;
        sql += ";\n";
    }
    client
        .batch_execute(&sql)
        .await
        .unwrap_or_else(|error| panic!("building revision {revision}: {error:?}"));
    db
}

async fn upgrade_and_compare(revision: i32, marks: Marks) {
    let db = build(revision, marks).await;
    let mut client = db.client().await;
    add_every_shape(&client, revision).await;
    let before = snapshot(&client, revision).await;

    let plan = migrate(&mut client).await;

    let what = format!("the upgrade from revision {revision}");
    assert_eq!(plan.from_revision(), Some(revision), "{what}");
    assert_unchanged(&before, &snapshot(&client, 20).await, &what);
    assert_like_fresh(&client, &what).await;
    assert!(migrate(&mut client).await.is_empty(), "nothing is left to do after {what}");
}

#[tokio::test]
async fn every_revision_upgrades_and_keeps_its_jobs() {
    for revision in 1..=19 {
        upgrade_and_compare(revision, Marks::Present).await;
    }
}

#[tokio::test]
async fn every_revision_upgrades_from_a_table_that_does_not_know_breaking_ones() {
    for revision in 1..=18 {
        upgrade_and_compare(revision, Marks::Absent).await;
    }
}

#[tokio::test]
async fn graphiles_newest_revision_only_gets_our_functions_and_objects() {
    let db = at_revision(20).await;
    let mut client = db.client().await;
    add_every_shape(&client, 20).await;
    let before = snapshot(&client, 20).await;
    migrate(&mut client).await;
    assert_unchanged(&before, &snapshot(&client, 20).await, "our part on top of revision 20");
    assert_like_fresh(&client, "our part on top of revision 20").await;
}

/// Adds a job that was locked `hours` ago, as the workers of `revision` did it: revision 1 locked queues only.
async fn add_locked_job(client: &Client, revision: i32, hours: i32) {
    let prefix = prefix(revision);
    let lock = format!("set locked_at = now() - interval '{hours} hours', locked_by = 'worker-0123456789'");
    let job = match revision {
        1 => String::new(),
        _ => format!("update graphile_worker.{prefix}jobs {lock};"),
    };
    client
        .batch_execute(&format!(
            "select graphile_worker.add_job('running', queue_name => 'serial');
             {job}
             update graphile_worker.{prefix}job_queues {lock};"
        ))
        .await
        .expect("a locked job is added");
}

#[tokio::test]
async fn a_job_that_may_be_running_stops_the_move_into_new_tables_and_nothing_changes() {
    for revision in 1..=10 {
        let db = build(revision, Marks::Absent).await;
        let mut client = db.client().await;
        add_locked_job(&client, revision, 1).await;
        let before = (snapshot(&client, revision).await, catalog(&client).await);

        let error = atta::migrate(&mut client, &atta::Schema::default()).await.unwrap_err();

        assert_eq!(error.db_code(), Some("55006"), "revision {revision}: {error}");
        assert!(error.message().contains("locked by workers"), "revision {revision}: {error}");
        let after = (snapshot(&client, revision).await, catalog(&client).await);
        assert!(before == after, "revision {revision} was changed");
    }
}

#[tokio::test]
async fn a_lock_that_nobody_can_still_hold_does_not_stop_the_upgrade() {
    for revision in 1..=10 {
        let db = build(revision, Marks::Absent).await;
        let mut client = db.client().await;
        add_locked_job(&client, revision, 5).await;
        migrate(&mut client).await;
        let sql = "select count(*) from graphile_worker._private_jobs as job
                   join graphile_worker._private_job_queues as queue on queue.id = job.job_queue_id
                   where job.is_available and queue.is_available";
        let available: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        assert_eq!(available, 1, "revision {revision}");
    }
}

#[tokio::test]
async fn a_running_job_keeps_its_lock_when_the_tables_stay() {
    for revision in 11..=19 {
        let db = at_revision(revision).await;
        let mut client = db.client().await;
        add_locked_job(&client, revision, 1).await;
        let before = snapshot(&client, revision).await;
        migrate(&mut client).await;
        assert_unchanged(&before, &snapshot(&client, 20).await, &format!("revision {revision}"));
    }
}

#[tokio::test]
async fn an_id_given_out_before_the_move_is_not_given_out_again() {
    for revision in 1..=10 {
        let db = at_revision(revision).await;
        let mut client = db.client().await;
        let add = "select (graphile_worker.add_job('task', queue_name => 'serial')).id";
        client.query_one(add, &[]).await.unwrap();
        let newest: i64 = client.query_one(add, &[]).await.unwrap().get(0);
        client.execute("delete from graphile_worker.jobs where id = $1", &[&newest]).await.unwrap();
        migrate(&mut client).await;
        let next: i64 = client.query_one(add, &[]).await.unwrap().get(0);
        assert_eq!(next, newest + 1, "revision {revision}");
    }
}

#[tokio::test]
async fn an_empty_legacy_schema_hands_out_ids_from_one() {
    let db = at_revision(10).await;
    let mut client = db.client().await;
    migrate(&mut client).await;
    let first: i64 =
        client.query_one("select (graphile_worker.add_job('task')).id", &[]).await.unwrap().get(0);
    assert_eq!(first, 1);
}

#[tokio::test]
async fn a_legacy_counter_beyond_smallint_becomes_the_nearest_value() {
    let db = at_revision(10).await;
    let mut client = db.client().await;
    client
        .batch_execute(
            "insert into graphile_worker.jobs (task_identifier, priority, attempts, max_attempts) values
               ('waits', 100000, 40000, 50000), ('failed', -100000, 50000, 50000), ('never ran', 0, -1, 0)",
        )
        .await
        .unwrap();
    migrate(&mut client).await;
    let sql = "select priority, attempts, max_attempts, is_available
               from graphile_worker._private_jobs order by id";
    let rows = client.query(sql, &[]).await.unwrap();
    let rows: Vec<(i16, i16, i16, bool)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect();
    assert_eq!(rows, [(32767, 32766, 32767, true), (-32768, 32767, 32767, false), (0, 0, 1, true)]);
}
