//! Building the indexes on the table of jobs while others use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use atta::{MigrationPlan, Schema};
use testkit::{Database, wait_for};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::sql_api::support::{run, value};

const NAMES: [&str; 5] = ["task", "flagged", "queue", "queued", "locked"];

/// A table of this many jobs is not small.
const MANY: &str = "select graphile_worker.add_job('t', queue_name := 'q');
    insert into graphile_worker._private_jobs (task_id, payload)
    select 1, json_build_object('number', number) from generate_series(1, 60000) as number";

const INVALID: &str = "select count(*) from pg_index where not indisvalid and indrelid in
    (select oid from pg_class where relname in ('jobs', '_private_jobs'))";
const VALID: &str = "select count(*) from pg_index join pg_class on pg_class.oid = indexrelid
    where indisvalid and relname like '\\_atta\\_jobs\\_%'";

async fn drop_indexes(client: &Client) {
    for name in NAMES {
        run(client, &format!("drop index graphile_worker._atta_jobs_{name}_index")).await;
    }
}

async fn assert_whole(db: &Database) {
    let mut client = db.client().await;
    assert_eq!(value(&client, VALID).await, "5");
    assert_eq!(value(&client, INVALID).await, "0");
    assert!(atta::migrate(&mut client, &Schema::default()).await.unwrap().is_empty());
}

fn migrating(db: &Database) -> JoinHandle<atta::Result<MigrationPlan>> {
    let connecting = db.direct_url();
    tokio::spawn(async move {
        let settings = atta::ConnectionSettings::with_variables(&connecting, |_| None)?;
        let mut client = settings.connect().await?;
        atta::migrate(&mut client, &Schema::default()).await
    })
}

/// Adds jobs until it is stopped. None of the adds may wait for a lock for a second.
fn adding(db: &Database, stop: &Arc<AtomicBool>) -> JoinHandle<u32> {
    let (url, stop) = (db.direct_url(), stop.clone());
    tokio::spawn(async move {
        let settings = atta::ConnectionSettings::with_variables(&url, |_| None).unwrap();
        let client = settings.connect().await.unwrap();
        run(&client, "set lock_timeout = '1s'").await;
        let mut added = 0;
        while !stop.load(Ordering::Relaxed) {
            run(&client, "select graphile_worker.add_job('t')").await;
            added += 1;
            tokio::task::yield_now().await;
        }
        added
    })
}

/// Migrates while a transaction that has added a job stays open. Several adds must succeed while the migration waits.
async fn migrate_beside_a_transaction(db: &Database) {
    let is_waiting = "select count(*) > 0 from pg_locks join pg_stat_activity using (pid)
        where not granted and datname = current_database()";
    let (writer, observer) = (db.client().await, db.client().await);
    run(&writer, "begin; select graphile_worker.add_job('t')").await;
    let migration = migrating(db);
    wait_for("the migration to wait", || async {
        (value(&observer, is_waiting).await == "true").then_some(())
    })
    .await;
    let stop = Arc::new(AtomicBool::new(false));
    let producers = [adding(db, &stop), adding(db, &stop)];
    let before = value(&observer, "select coalesce(max(id), 0) from graphile_worker._private_jobs").await;
    wait_for("jobs to be added for a while", || async {
        // The job of the open transaction is not visible.
        let sql = format!(
            "select count(*) > 50 and max(created_at) - min(created_at) > interval '3 seconds'
             from graphile_worker._private_jobs where id > {before}"
        );
        (value(&observer, &sql).await == "true").then_some(())
    })
    .await;
    assert!(!migration.is_finished(), "the migration waits for the open transaction");
    run(&writer, "commit").await;
    let plan = tokio::time::timeout(testkit::DEADLINE, migration).await.expect("it ends").unwrap().unwrap();
    assert!(plan.titles().any(|title| title == "_atta_jobs_task_index"), "{plan}");
    stop.store(true, Ordering::Relaxed);
    for producer in producers {
        assert!(producer.await.expect("no add waited for long") > 0);
    }
    assert_whole(db).await;
}

#[tokio::test]
async fn adds_continue_while_the_indexes_of_a_large_table_are_built() {
    let db = Database::migrated().await;
    let client = db.client().await;
    drop_indexes(&client).await;
    run(&client, MANY).await;
    migrate_beside_a_transaction(&db).await;
}

#[tokio::test]
async fn adds_continue_while_the_index_builds_of_a_small_table_wait_for_a_transaction() {
    let db = Database::migrated().await;
    let client = db.client().await;
    drop_indexes(&client).await;
    run(&client, "select graphile_worker.add_job('t')").await;
    migrate_beside_a_transaction(&db).await;
}

/// An index in the state in which an interrupted build leaves it.
#[tokio::test]
async fn an_invalid_index_is_detected_and_built_again() {
    for fill in ["", MANY] {
        let db = Database::migrated().await;
        let mut client = db.client().await;
        run(&client, fill).await;
        for name in NAMES {
            run(
                &client,
                &format!(
                    "update pg_index set indisvalid = false
                     where indexrelid = 'graphile_worker._atta_jobs_{name}_index'::regclass"
                ),
            )
            .await;
            let plan = atta::plan_migration(&client, &Schema::default()).await.unwrap();
            assert!(plan.to_string().contains("drop index"), "{plan}");
            assert_eq!(plan.to_string().contains("concurrently"), !fill.is_empty(), "{plan}");
            let plan = atta::migrate(&mut client, &Schema::default()).await.unwrap();
            assert!(plan.titles().any(|title| title == format!("_atta_jobs_{name}_index")), "{plan}");
            assert_whole(&db).await;
        }
    }
}

#[tokio::test]
async fn many_migrations_at_once_build_the_indexes_of_a_large_table() {
    let db = Database::migrated().await;
    let client = db.client().await;
    drop_indexes(&client).await;
    run(&client, MANY).await;
    let migrations: Vec<_> = (0..4).map(|_| migrating(&db)).collect();
    for migration in migrations {
        migration.await.unwrap().unwrap();
    }
    assert_whole(&db).await;
}

#[tokio::test]
async fn time_limits_of_the_session_do_not_end_a_build_and_stay() {
    let db = Database::migrated().await;
    let (mut client, writer, observer) = (db.client().await, db.client().await, db.client().await);
    drop_indexes(&client).await;
    run(&client, MANY).await;
    run(&client, "set statement_timeout = '300ms'; set lock_timeout = '200ms'").await;
    run(&writer, "begin; select graphile_worker.add_job('t')").await;
    let migration = tokio::spawn(async move {
        atta::migrate(&mut client, &Schema::default()).await.unwrap();
        client
    });
    wait_for("the build to wait for longer than the limits", || async {
        let waits = "select count(*) > 0 from pg_stat_activity
            where query like '%create index concurrently%' and wait_event_type = 'Lock'
              and now() - query_start > interval '600 milliseconds' and datname = current_database()";
        (value(&observer, waits).await == "true").then_some(())
    })
    .await;
    run(&writer, "commit").await;
    let client = migration.await.unwrap();
    assert_eq!(value(&client, "select current_setting('statement_timeout')").await, "300ms");
    assert_eq!(value(&client, "select current_setting('lock_timeout')").await, "200ms");
    assert_whole(&db).await;
}

/// At revisions 11 to 15 the table has another name until the transaction of the migration.
#[tokio::test]
async fn a_large_table_of_an_older_revision_gets_its_indexes_too() {
    let db = Database::migrated().await;
    let client = db.client().await;
    run(&client, MANY).await;
    run(
        &client,
        "drop view graphile_worker.jobs;
         drop function graphile_worker.add_job, graphile_worker.add_jobs, graphile_worker.remove_job,
           graphile_worker.complete_jobs, graphile_worker.permanently_fail_jobs, graphile_worker.reschedule_jobs,
           graphile_worker.force_unlock_workers;
         drop table graphile_worker._atta_migrations, graphile_worker._atta_workers, graphile_worker._atta_dead_workers,
           graphile_worker._atta_crashes;
         alter table graphile_worker._private_jobs rename to jobs;
         alter table graphile_worker._private_job_queues rename to job_queues;
         alter table graphile_worker._private_tasks rename to tasks;
         alter table graphile_worker._private_known_crontabs rename to known_crontabs;
         delete from graphile_worker.migrations where id > 15",
    )
    .await;
    drop_indexes(&client).await;
    let plan = migrating(&db).await.unwrap().unwrap();
    assert_eq!(plan.from_revision(), Some(15));
    assert!(plan.to_string().starts_with("-- == _atta_jobs_task_index\n"), "{plan}");
    assert_whole(&db).await;
    assert_eq!(value(&client, "select count(*) from graphile_worker.jobs").await, "60001");
}
