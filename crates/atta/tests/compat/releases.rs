//! Upgrades of schemas that released versions of Graphile Worker made, and what happens when they come back.

use testkit::Database;
use tokio_postgres::Client;

use crate::catalog::{assert_like_fresh, our_functions};
use crate::jobs::{add_every_shape, assert_unchanged, snapshot};
use crate::migrate;
use crate::node::{RELEASES, node};

async fn newest_revision(client: &Client) -> i32 {
    let sql = "select max(id) from graphile_worker.migrations";
    client.query_one(sql, &[]).await.expect("the revisions can be read").get(0)
}

#[tokio::test]
async fn every_release_upgrades_and_keeps_its_jobs() {
    for (version, revision) in RELEASES {
        let db = Database::empty().await;
        node(version, &db, "add").await;
        let mut client = db.client().await;
        assert_eq!(newest_revision(&client).await, revision, "what {version} installs");
        add_every_shape(&client, revision).await;
        let before = snapshot(&client, revision).await;
        assert!(before.iter().filter(|line| line.contains("from_node")).count() >= 6, "{before:#?}");

        migrate(&mut client).await;

        let what = format!("the upgrade from {version}");
        assert_unchanged(&before, &snapshot(&client, 20).await, &what);
        assert_like_fresh(&client, &what).await;
    }
}

/// Where a release stopped, ours goes on, and the release that comes back finds nothing to do.
#[tokio::test]
async fn a_newer_release_leaves_what_we_completed_alone() {
    for version in ["0.16.6", "0.17.3", "0.18.0"] {
        let db = Database::empty().await;
        node(version, &db, "migrate").await;
        let mut client = db.client().await;
        migrate(&mut client).await;
        node("0.18.0", &db, "migrate").await;
        assert_like_fresh(&client, &format!("{version}, ours, then 0.18.0")).await;
        assert!(migrate(&mut client).await.is_empty());
    }
}

#[tokio::test]
async fn our_functions_come_back_after_graphile_replaced_them() {
    let db = Database::migrated().await;
    let mut client = db.client().await;
    client.execute("delete from graphile_worker.migrations where id = 20", &[]).await.unwrap();
    node("0.18.0", &db, "migrate").await;
    assert_eq!(our_functions(&client).await.len(), 5, "Graphile replaces add_job and add_jobs");

    let plan = migrate(&mut client).await;

    assert_eq!(plan.titles().collect::<Vec<_>>(), ["add_jobs", "add_job"]);
    assert_like_fresh(&client, "Graphile replaced two functions").await;
}
