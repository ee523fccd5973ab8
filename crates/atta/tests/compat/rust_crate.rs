//! A schema that the Rust crate graphile_worker migrated: it counts changes of its own on in Graphile's table.

use std::collections::BTreeSet;

use testkit::Database;
use tokio_postgres::Client;

use crate::catalog::{catalog, our_functions};
use crate::jobs::{add_every_shape, assert_unchanged, snapshot};
use crate::migrate;
use crate::node::{node, try_node};
use crate::revisions::at_revision;

/// A database as the crate leaves it, with its revisions up to `newest`, and jobs in it.
async fn database(newest: i32) -> (Database, Client) {
    let db = at_revision(18).await;
    let client = db.client().await;
    add_every_shape(&client, 18).await;
    client.batch_execute(include_str!("rust_crate.sql")).await.expect("the crate's objects are made");
    client
        .execute("delete from graphile_worker.migrations where id > $1", &[&newest])
        .await
        .expect("later rows are removed");
    (db, client)
}

/// The lines of the catalog that only the crate's own objects have.
async fn objects_of_the_crate(client: &Client) -> BTreeSet<String> {
    const NAMES: [&str; 8] = [
        "_private_workers",
        "_private_job_retirements",
        "worker_heartbeat",
        "worker_deregister",
        "list_stale_workers",
        "list_orphan_locked_workers",
        "recover_dead_worker_jobs",
        "delete_stale_workers",
    ];
    let lines = catalog(client).await;
    lines.into_iter().filter(|line| NAMES.iter().any(|name| line.contains(name))).collect()
}

async fn is_breaking(client: &Client, revision: i32) -> bool {
    let sql = "select breaking from graphile_worker.migrations where id = $1";
    client.query_one(sql, &[&revision]).await.expect("the row is there").get(0)
}

async fn ours_on_top(newest: i32) -> (Database, Client) {
    let (db, mut client) = database(newest).await;
    let before = (snapshot(&client, 20).await, objects_of_the_crate(&client).await);
    let plan = migrate(&mut client).await;
    assert_eq!(plan.from_revision(), Some(newest));
    assert_eq!(plan.warning(), None);
    assert_unchanged(&before.0, &snapshot(&client, 20).await, "ours on top of the crate's");
    assert_eq!(objects_of_the_crate(&client).await, before.1);
    assert_eq!(our_functions(&client).await.len(), 7);
    assert!(migrate(&mut client).await.is_empty());
    (db, client)
}

#[tokio::test]
async fn a_schema_of_the_crate_keeps_its_objects_and_gets_our_functions() {
    for newest in [20, 22] {
        let (_db, client) = ours_on_top(newest).await;
        let workers: i64 = client
            .query_one("select count(*) from graphile_worker._private_workers", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(workers, 1);
    }
}

#[tokio::test]
async fn the_mark_that_the_crate_left_out_is_put_in() {
    let (_db, mut client) = database(22).await;
    assert!(!is_breaking(&client, 19).await);
    migrate(&mut client).await;
    assert!(is_breaking(&client, 19).await);
    for revision in 20..=22 {
        assert!(!is_breaking(&client, revision).await, "{revision}");
    }
}

#[tokio::test]
async fn all_seven_functions_work_on_a_schema_of_the_crate() {
    let (_db, client) = ours_on_top(22).await;
    let count = async |sql: &str| {
        client.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).len()
    };
    let id: i64 = client
        .query_one("select (graphile_worker.add_job('task', job_key => 'new key')).id", &[])
        .await
        .unwrap()
        .get(0);
    let specs = "array[row('task', null, null, null, null, null, null, null)::graphile_worker.job_spec]";
    assert_eq!(count(&format!("select * from graphile_worker.add_jobs({specs})")).await, 1);
    let reschedule = format!("select * from graphile_worker.reschedule_jobs(array[{id}], priority => 7)");
    assert_eq!(count(&reschedule).await, 1);
    assert_eq!(count(&format!("select * from graphile_worker.permanently_fail_jobs(array[{id}])")).await, 1);
    assert_eq!(count("select graphile_worker.force_unlock_workers(array['long gone'])").await, 1);
    assert_eq!(count("select * from graphile_worker.jobs where locked_by is not null").await, 0);
    let removed = "select * from graphile_worker.remove_job('new key') as job where job.id is not null";
    assert_eq!(count(removed).await, 1);
    let all = "select * from graphile_worker.complete_jobs(array(select id from graphile_worker.jobs))";
    assert!(count(all).await > 10);
}

/// It warns of revisions that it does not know, and works.
#[tokio::test]
async fn graphile_worker_works_beside_ours_on_a_schema_of_the_crate() {
    let (db, client) = ours_on_top(22).await;
    node("0.18.0", &db, "add").await;
    assert_eq!(our_functions(&client).await.len(), 7);
    let old = try_node("0.16.6", &db, "migrate").await;
    assert!(!old.status.success(), "the mark on 19 keeps 0.16 out");
}
