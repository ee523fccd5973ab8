//! Schemas that others have changed: newer ones, functions that were replaced, objects that were dropped.

use atta::{MigrationPlan, Schema};
use testkit::Database;
use tokio_postgres::Client;

use super::{assert_functions_work, fingerprint};
use crate::sql_api::support::{run, value};

/// Migrates after `damage`, and checks that everything works and nothing is left to do.
async fn assert_mended(damage: &str) {
    let db = Database::migrated().await;
    let mut client = db.client().await;
    let whole = objects(&client).await;
    run(&client, "select graphile_worker.add_job('kept')").await;
    run(&client, damage).await;
    let plan = migrated(&mut client, damage).await;
    assert!(!plan.is_empty(), "nothing was done after {damage}");
    assert_eq!(objects(&client).await, whole, "after {damage}");
    assert!(migrated(&mut client, damage).await.is_empty(), "after {damage}");
    assert_eq!(value(&client, "select task_identifier from graphile_worker.jobs").await, "kept");
    run(&client, "delete from graphile_worker._private_jobs").await;
    assert_functions_work(&client, &Schema::default()).await;
}

async fn migrated(client: &mut Client, damage: &str) -> MigrationPlan {
    match atta::migrate(client, &Schema::default()).await {
        Ok(plan) => plan,
        Err(error) => panic!("after {damage}: {error}"),
    }
}

/// The relations of the schema and the bodies of its functions.
async fn objects(client: &Client) -> String {
    let sql = "select concat( \
        (select string_agg(relname, ',' order by relname) from pg_class \
         where relnamespace = 'graphile_worker'::regnamespace), \
        (select string_agg(prosrc, ',' order by prosrc) from pg_proc \
         where pronamespace = 'graphile_worker'::regnamespace), \
        (select string_agg(id::text, ',' order by id) from graphile_worker._atta_migrations))";
    value(client, sql).await
}

#[tokio::test]
async fn functions_replaced_or_dropped_by_hand_are_put_back() {
    assert_mended(
        "create or replace function graphile_worker.remove_job(job_key text) returns graphile_worker._private_jobs \
         language sql strict as $$ select null::graphile_worker._private_jobs $$",
    )
    .await;
    assert_mended("drop function graphile_worker.add_job").await;
    assert_mended("drop function graphile_worker.complete_jobs; drop function graphile_worker.add_jobs")
        .await;
}

#[tokio::test]
async fn a_dropped_view_is_put_back() {
    assert_mended("drop view graphile_worker.jobs").await;
}

#[tokio::test]
async fn dropped_tables_and_indexes_of_our_own_are_put_back() {
    assert_mended("drop table graphile_worker._atta_migrations").await;
    assert_mended("drop table graphile_worker._atta_workers").await;
    assert_mended("drop table graphile_worker._atta_dead_workers").await;
    assert_mended("drop table graphile_worker._atta_crashes").await;
    for index in ["task", "flagged", "queue", "queued", "locked"] {
        assert_mended(&format!("drop index graphile_worker._atta_jobs_{index}_index")).await;
    }
    assert_mended("drop table graphile_worker._atta_migrations, graphile_worker._atta_workers").await;
    assert_mended(
        "drop table graphile_worker._atta_migrations, graphile_worker._atta_workers, graphile_worker._atta_dead_workers",
    )
    .await;
}

#[tokio::test]
async fn a_missing_mark_of_a_breaking_revision_is_added() {
    let db = Database::migrated().await;
    let mut client = db.client().await;
    run(&client, "update graphile_worker.migrations set breaking = false").await;
    atta::migrate(&mut client, &Schema::default()).await.unwrap();
    let marked =
        "select string_agg(id::text, ',' order by id) from graphile_worker.migrations where breaking";
    assert_eq!(value(&client, marked).await, "1,3,11,13,14,16,19");
}

#[tokio::test]
async fn a_newer_breaking_revision_is_refused_and_nothing_changes() {
    let db = Database::migrated().await;
    let mut client = db.client().await;
    run(&client, "insert into graphile_worker.migrations values (21, now(), true)").await;
    run(&client, "drop function graphile_worker.add_job; drop table graphile_worker._atta_migrations").await;
    let before = fingerprint(&client).await;
    let error = atta::migrate(&mut client, &Schema::default()).await.unwrap_err();
    assert!(error.is_config() && error.db_code().is_none(), "{error:?}");
    for part in ["\"graphile_worker\"", "revision 21 of Graphile Worker", "up to 20"] {
        assert!(error.message().contains(part), "{error}");
    }
    assert_eq!(error.hint(), Some("install a newer version of atta"));
    assert_eq!(fingerprint(&client).await, before);
}

#[tokio::test]
async fn a_newer_breaking_revision_of_our_own_is_refused_too() {
    let db = Database::migrated().await;
    let mut client = db.client().await;
    run(&client, "insert into graphile_worker._atta_migrations values (1000, now(), true)").await;
    let error = atta::migrate(&mut client, &Schema::default()).await.unwrap_err();
    assert!(error.is_config() && error.message().contains("revision 1000 of atta"), "{error}");
}

#[tokio::test]
async fn a_newer_revision_that_breaks_nothing_is_warned_of_and_its_functions_stay() {
    let db = Database::migrated().await;
    let mut client = db.client().await;
    run(
        &client,
        "insert into graphile_worker.migrations values (21, now(), false); \
         create or replace function graphile_worker.force_unlock_workers(worker_ids text[]) returns void \
         language sql as $$ select null::void $$",
    )
    .await;
    let before = fingerprint(&client).await;
    let plan = atta::migrate(&mut client, &Schema::default()).await.unwrap();
    assert!(plan.is_empty(), "{plan}");
    assert!(plan.warning().unwrap().contains("revision 21 of Graphile Worker"), "{:?}", plan.warning());
    assert_eq!(fingerprint(&client).await, before);
}
