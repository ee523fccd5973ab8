//! A database whose default isolation level is not the one that claims need.

use atta::{Claims, ConnectionSettings, JobSpecBuilder, WorkerOptions, WorkerUtils};
use testkit::Database;

use super::support::{Running, options, wait_until_empty};
use crate::sql_api::support::{run, value};

/// A database with repeatable read as its default, where each change of a job or queue records its isolation level.
async fn strict_database() -> Database {
    let db = Database::migrated().await;
    let client = db.client().await;
    run(
        &client,
        &format!("alter database {} set default_transaction_isolation = 'repeatable read'", db.name()),
    )
    .await;
    run(
        &client,
        "create table public.noted (level text, operation text, relation text);
         create function public.note() returns trigger language plpgsql as $$
           begin
             insert into public.noted values (current_setting('transaction_isolation'), tg_op, tg_table_name);
             return null;
           end $$;
         create trigger note after update or delete on graphile_worker._private_jobs
           for each row execute function public.note();
         create trigger note after insert or update on graphile_worker._atta_workers
           for each row execute function public.note()",
    )
    .await;
    db
}

async fn run_jobs(db: &Database, options: WorkerOptions) {
    let utils = WorkerUtils::connect(&db.direct_url()).unwrap();
    for number in 0..40 {
        let spec = JobSpecBuilder::new();
        let spec = if number % 2 == 0 { spec.queue_name(format!("q{}", number % 4)) } else { spec };
        utils.add_raw_job("work", number, spec).await.unwrap();
    }
    let options = options.trust_triggers(true);
    let running = Running::start(options.define_raw_job("work", |_| async {})).await;
    wait_until_empty(&utils).await;
    running.stop().await.unwrap();
}

async fn assert_noted(db: &Database, operations: &str, and: &str) {
    let client = db.client().await;
    let noted = format!(
        "select string_agg(distinct concat(level, ' ', operation), ', ') from public.noted where {and}"
    );
    assert_eq!(value(&client, &noted).await, operations);
    run(&client, "truncate public.noted").await;
}

#[tokio::test]
async fn a_worker_uses_read_committed_whatever_the_default_is() {
    let db = strict_database().await;
    for claims in [Claims::Held, Claims::Durable] {
        run_jobs(&db, options(&db).database_url(db.direct_url()).claims(claims)).await;
        let all = "read committed DELETE, read committed INSERT, read committed UPDATE";
        assert_noted(&db, all, "true").await;
    }
}

/// The sessions of a given pool are not ours: there each statement sets the level that it needs.
#[tokio::test]
async fn a_worker_on_a_given_pool_uses_read_committed_too() {
    let db = strict_database().await;
    let settings = ConnectionSettings::with_variables(&db.url(), |_| None).unwrap();
    for claims in [Claims::Held, Claims::Durable] {
        let options = WorkerOptions::default().pg_pool(settings.pool(20).unwrap()).claims(claims);
        run_jobs(&db, options).await;
        let jobs = "read committed DELETE, read committed UPDATE";
        // A heartbeat changes a row that no other session changes.
        assert_noted(&db, jobs, "relation = '_private_jobs'").await;
    }
}
