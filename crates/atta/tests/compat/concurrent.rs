//! Many migrations of one schema at once, ours and Graphile's. A gate holds them all until the last one has come.

use std::sync::Arc;

use testkit::{Database, wait_for};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::catalog::assert_like_fresh;
use crate::jobs::{add_every_shape, assert_unchanged, snapshot};
use crate::migrate;
use crate::node::node;
use crate::revisions::at_revision;

/// Where every migration comes by before it has changed anything.
const CREATING_THE_SCHEMA: &str = "lock table pg_catalog.pg_namespace in share mode";
const READING_THE_REVISIONS: &str = "lock table graphile_worker.migrations in access exclusive mode";

/// How many migrations take part.
#[derive(Clone, Copy)]
struct Crowd {
    ours: usize,
    graphiles: usize,
}

const OURS: Crowd = Crowd { ours: 20, graphiles: 0 };
const BOTH: Crowd = Crowd { ours: 10, graphiles: 3 };

/// Runs them all at the same time, each on a connection of its own, and fails the test if one of them fails.
async fn migrate_at_once(db: Database, gate: &str, crowd: Crowd) -> Database {
    let db = Arc::new(db);
    let [watcher, mut keeper] = [db.client().await, db.client().await];
    let closed = keeper.transaction().await.expect("the gate's transaction");
    closed.batch_execute(gate).await.expect("the gate closes");

    let mut migrations = JoinSet::new();
    for _ in 0..crowd.ours {
        let mut client = db.client().await;
        migrations.spawn(async move { drop(migrate(&mut client).await) });
    }
    for _ in 0..crowd.graphiles {
        let db = db.clone();
        migrations.spawn(async move { node("0.18.0", &db, "migrate").await });
    }
    wait_for_crowd(&watcher, crowd.ours + crowd.graphiles).await;
    closed.rollback().await.expect("the gate opens");
    while let Some(migration) = migrations.join_next().await {
        migration.expect("every migration succeeds");
    }
    Arc::into_inner(db).expect("all migrations are over")
}

async fn wait_for_crowd(watcher: &Client, count: usize) {
    let sql = "select count(*) from pg_stat_activity
               where datname = current_database() and wait_event_type = 'Lock'";
    wait_for("all migrations to be at the gate", || async {
        let waiting: i64 = watcher.query_one(sql, &[]).await.expect("who waits can be read").get(0);
        (waiting as usize == count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_migrations_of_an_empty_database_all_succeed() {
    let db = migrate_at_once(Database::empty().await, CREATING_THE_SCHEMA, OURS).await;
    assert_like_fresh(&db.client().await, "twenty migrations at once").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ours_and_graphiles_migrations_of_an_empty_database_all_succeed() {
    let db = migrate_at_once(Database::empty().await, CREATING_THE_SCHEMA, BOTH).await;
    assert_like_fresh(&db.client().await, "ours and Graphile's at once").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_migrations_of_a_legacy_schema_move_each_job_once() {
    let db = at_revision(10).await;
    let client = db.client().await;
    add_every_shape(&client, 10).await;
    let before = snapshot(&client, 10).await;
    let _db = migrate_at_once(db, READING_THE_REVISIONS, OURS).await;
    assert_unchanged(&before, &snapshot(&client, 20).await, "twenty migrations at once");
    assert_like_fresh(&client, "twenty migrations of revision 10 at once").await;
}

/// Graphile's own move gives jobs new ids, so that only their number tells whether one was lost or moved twice.
#[tokio::test(flavor = "multi_thread")]
async fn ours_and_graphiles_migrations_of_a_legacy_schema_all_succeed_and_keep_its_jobs() {
    let db = at_revision(10).await;
    let client = db.client().await;
    add_every_shape(&client, 10).await;
    let before = snapshot(&client, 10).await;
    let _db = migrate_at_once(db, READING_THE_REVISIONS, BOTH).await;
    assert_eq!(snapshot(&client, 20).await.len(), before.len());
    assert_like_fresh(&client, "ours and Graphile's at once, from revision 10").await;
}

/// Graphile's migration is held in its revision 11, and ours comes: it waits, and goes on from where it finds things.
#[tokio::test(flavor = "multi_thread")]
async fn ours_waits_for_graphiles_that_has_begun() {
    let db = at_revision(10).await;
    let [watcher, mut keeper, mut client] = [db.client().await, db.client().await, db.client().await];
    let closed = keeper.transaction().await.unwrap();
    closed.batch_execute("lock table graphile_worker.jobs in access share mode").await.unwrap();
    let ((), plan, ()) = tokio::join!(
        node("0.18.0", &db, "migrate"),
        async {
            wait_for_crowd(&watcher, 1).await;
            migrate(&mut client).await
        },
        async {
            wait_for_crowd(&watcher, 2).await;
            closed.rollback().await.unwrap();
        },
    );
    assert!(plan.from_revision() >= Some(11), "{:?}", plan.from_revision());
    assert_like_fresh(&watcher, "ours in the middle of Graphile's").await;
}
