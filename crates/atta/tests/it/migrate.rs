//! Installing and upgrading the schema, without other tools: those are in `tests/compat`.

mod indexes;
mod mending;
mod privileges;

use atta::Schema;
use testkit::Database;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::sql_api::support::{Listener, pid, run, value};

#[tokio::test]
async fn a_fresh_install_leaves_nothing_to_do() {
    let db = Database::empty().await;
    let mut client = db.client().await;
    let schema = Schema::default();
    let plan = atta::migrate(&mut client, &schema).await.unwrap();
    assert_eq!(plan.from_revision(), None);
    assert!(plan.titles().any(|title| title == "add_job"));
    let again = atta::migrate(&mut client, &schema).await.unwrap();
    assert!(again.is_empty(), "{again}");
    assert_eq!(again.from_revision(), Some(atta::GRAPHILE_REVISION));
    assert_eq!(again.to_string(), "-- nothing to do\n");
}

/// Everything in the database that a migration could change, as one text.
async fn fingerprint(client: &Client) -> String {
    let sql = "select concat( \
        (select string_agg(concat(oid, relname, relnamespace, relkind, xmin), ',' order by oid) from pg_class \
         where relnamespace not in ('pg_catalog'::regnamespace, 'pg_toast'::regnamespace)), \
        (select string_agg(concat(oid, proname, xmin), ',' order by oid) from pg_proc \
         where pronamespace <> 'pg_catalog'::regnamespace), \
        (select string_agg(concat(oid, nspname), ',' order by oid) from pg_namespace))";
    value(client, sql).await
}

/// Calls each function once in that schema, with a job of every kind.
async fn assert_functions_work(client: &Client, schema: &Schema) {
    let name = schema.quoted();
    let count = |sql: String| async move { value(client, &format!("select count(*) from {sql}")).await };
    for arguments in ["'t'", "'t', '[1]', 'q', job_key := 'k'", "'t', '[2]', 'q', job_key := 'k'"] {
        assert_eq!(count(format!("{name}.add_job({arguments})")).await, "1", "{name}");
    }
    run(client, &format!("select {name}.add_job('t', job_key := 'd', job_key_mode := 'unsafe_dedupe')"))
        .await;
    let specs = format!(
        "array[row('u',null,'r',null,null,'l',null,null), row('u',null,null,null,null,null,null,null)]::{name}.job_spec[]"
    );
    assert_eq!(count(format!("{name}.add_jobs({specs})")).await, "2", "{name}");
    let payload = value(client, &format!("select payload from {name}._private_jobs where key = 'k'")).await;
    assert_eq!(payload, "[1, 2]");
    assert_eq!(count(format!("{name}.remove_job('k')")).await, "1");
    let ids = format!("(select array_agg(id) from {name}.jobs)");
    assert_eq!(count(format!("{name}.reschedule_jobs({ids}, priority := 1)")).await, "4");
    assert_eq!(count(format!("{name}.permanently_fail_jobs({ids})")).await, "4");
    run(client, &format!("select {name}.force_unlock_workers(array['pool-1'])")).await;
    assert_eq!(count(format!("{name}.complete_jobs({ids})")).await, "4");
    assert_eq!(count(format!("{name}.jobs")).await, "0");
}

#[tokio::test]
async fn any_schema_name_works() {
    let db = Database::empty().await;
    let mut client = db.client().await;
    let names = [
        "with space",
        "o'clock \"quoted\" it''s",
        "$atta$",
        "$xatta$ $atta$",
        "$",
        "Größe 表 😀",
        "a.b",
        "{schema}",
        "%s %I \\",
        "-- comment",
        "select",
        &"x".repeat(63),
        &"é".repeat(31),
    ];
    for name in names {
        let schema = Schema::new(name).unwrap();
        atta::migrate(&mut client, &schema).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let again = atta::migrate(&mut client, &schema).await.unwrap();
        assert!(again.is_empty(), "{name}: {again}");
        assert_functions_work(&client, &schema).await;
    }
}

#[tokio::test]
async fn two_schemas_in_one_database_have_nothing_to_do_with_each_other() {
    let db = Database::migrated().await;
    let mut client = db.client().await;
    let other = Schema::new("other").unwrap();
    atta::migrate(&mut client, &other).await.unwrap();
    run(&client, "select graphile_worker.add_job('t', job_key := 'k')").await;
    assert_functions_work(&client, &other).await;
    assert_eq!(value(&client, "select count(*) from graphile_worker.jobs").await, "1");
    run(&client, "drop schema other cascade").await;
    assert_functions_work(&client, &Schema::default()).await;
}

#[tokio::test]
async fn the_revisions_are_noted_with_their_marks_and_announced() {
    let db = Database::empty().await;
    let mut client = db.client().await;
    let mut listener = Listener::on(&db, "worker:migrate").await;
    atta::migrate(&mut client, &Schema::default()).await.unwrap();
    let rows =
        client.query("select id, breaking from graphile_worker.migrations order by id", &[]).await.unwrap();
    let rows: Vec<(i32, bool)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let expected: Vec<(i32, bool)> =
        (1..=20).map(|id| (id, [1, 3, 11, 13, 14, 16, 19].contains(&id))).collect();
    assert_eq!(rows, expected);
    let notices: Vec<serde_json::Value> =
        listener.received().await.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    let announced: Vec<serde_json::Value> = expected
        .iter()
        .map(|(id, breaking)| serde_json::json!({"migrationNumber": id, "breaking": breaking}))
        .collect();
    assert_eq!(notices, announced);

    atta::migrate(&mut client, &Schema::default()).await.unwrap();
    assert_eq!(listener.received().await, Vec::<String>::new());
}

#[tokio::test]
async fn many_migrations_at_once_install_once() {
    let db = Database::empty().await;
    let mut listener = Listener::on(&db, "worker:migrate").await;
    let mut migrations = JoinSet::new();
    for _ in 0..8 {
        let mut client = db.client().await;
        migrations.spawn(async move { atta::migrate(&mut client, &Schema::default()).await.map(|_| ()) });
    }
    for result in migrations.join_all().await {
        result.unwrap();
    }
    assert_eq!(listener.received().await.len(), 20);
    assert_functions_work(&db.client().await, &Schema::default()).await;
}

#[tokio::test]
async fn the_settings_of_the_session_do_not_matter() {
    let db = Database::empty().await;
    let mut client = db.client().await;
    run(
        &client,
        "set default_transaction_isolation = serializable; set statement_timeout = '1s'; \
         set idle_in_transaction_session_timeout = '1s'; set search_path = ''; \
         set standard_conforming_strings = on; set datestyle = 'German'; set check_function_bodies = off",
    )
    .await;
    atta::migrate(&mut client, &Schema::default()).await.unwrap();
    assert_eq!(value(&client, "select current_setting('statement_timeout')").await, "1s");
    assert!(atta::migrate(&mut client, &Schema::default()).await.unwrap().is_empty());
    assert_functions_work(&client, &Schema::default()).await;
}

#[tokio::test]
async fn a_migration_that_waits_longer_than_the_statement_timeout_still_succeeds() {
    let db = Database::migrated().await;
    let (mut client, holder) = (db.client().await, db.client().await);
    run(&client, "drop view graphile_worker.jobs; set statement_timeout = '50ms'").await;
    run(&holder, "begin; lock table graphile_worker.migrations in share row exclusive mode").await;
    let holder_pid = pid(&holder).await;
    let migrating = tokio::spawn(async move { atta::migrate(&mut client, &Schema::default()).await });
    let observer = db.client().await;
    let waited = format!(
        "select count(*) from pg_stat_activity where {holder_pid} = any (pg_blocking_pids(pid)) \
         and clock_timestamp() - query_start > interval '200 milliseconds'"
    );
    testkit::wait_for("the migration to wait for a while", || async {
        (value(&observer, &waited).await == "1").then_some(())
    })
    .await;
    run(&holder, "rollback").await;
    migrating.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_printed_sql_installs_what_a_migration_would_and_printing_touches_nothing() {
    for name in ["graphile_worker", "o'clock \"$atta$"] {
        let db = Database::empty().await;
        let mut client = db.client().await;
        let schema = Schema::new(name).unwrap();
        let before = fingerprint(&client).await;
        let printed = atta::plan_migration(&client, &schema).await.unwrap().to_string();
        assert_eq!(printed, atta::migration_sql(&schema));
        assert_eq!(fingerprint(&client).await, before);
        run(&client, &printed).await;
        let left = atta::migrate(&mut client, &schema).await.unwrap();
        assert!(left.is_empty(), "{left}");
        assert_functions_work(&client, &schema).await;
    }
}
