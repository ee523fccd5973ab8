//! The script itself: repeated, with unusual names, in the wrong place.

use atta::{Schema, roles_sql};
use testkit::Database;

use super::support::{Roles, quoted};
use crate::sql_api::support::{refusal, run, value};

/// All privileges, policies and functions.
const RIGHTS: &str = "select concat(
    (select string_agg(concat(relname, relacl, relowner), ',' order by oid) from pg_class
     where relnamespace not in ('pg_catalog'::regnamespace, 'pg_toast'::regnamespace)),
    (select string_agg(concat(oid, proname, proacl, proowner, prosecdef, proconfig), ',' order by oid) from pg_proc
     where pronamespace <> 'pg_catalog'::regnamespace),
    (select string_agg(concat(nspname, nspacl, nspowner), ',' order by oid) from pg_namespace),
    (select string_agg(concat(oid, polname, polrelid, polroles), ',' order by oid) from pg_policy))";

#[tokio::test]
async fn a_second_run_changes_nothing() {
    let roles = Roles::new().await;
    let before = value(&roles.owner, RIGHTS).await;
    assert!(before.contains("_producer"), "{before}");
    roles.apply().await;
    assert_eq!(value(&roles.owner, RIGHTS).await, before);
}

#[tokio::test]
async fn names_that_need_quotes_are_quoted() {
    let db = Database::empty().await;
    let odd = "my \"odd\"; 'jobs' -- $atta$ {schema}\n";
    let prefix = format!("{} {odd}", db.name());
    let roles = Roles::on(db, Schema::new(odd).unwrap(), prefix).await;
    roles.apply().await;
    let (jobs, add) = (roles.schema.quoted(), roles.add_schema().quoted());
    run(&roles.client("producer").await, &format!("select {add}.add_job('t', job_key := 'k')")).await;
    let reader = roles.client("reader").await;
    assert_eq!(value(&reader, &format!("select count(*) from {jobs}._private_jobs")).await, "1");
    let worker = roles.client("worker").await;
    run(&worker, &format!("update {jobs}._private_jobs set priority = 1")).await;
    assert_eq!(refusal(&worker, &format!("truncate {jobs}._private_jobs")).await.code().code(), "42501");
}

#[tokio::test]
async fn without_a_schema_it_fails_with_a_hint_and_changes_nothing() {
    let db = Database::empty().await;
    let client = db.client().await;
    let refused = client.batch_execute(&roles_sql(&Schema::default(), db.name()).unwrap()).await.unwrap_err();
    let refused = refused.as_db_error().unwrap();
    assert_eq!(refused.message(), "schema graphile_worker has no table of jobs");
    assert_eq!(refused.hint(), Some("Install it first: atta migrate"));
    run(&client, "rollback").await;
    let made = format!("select count(*) from pg_roles where rolname like '{}%'", db.name());
    assert_eq!(value(&client, &made).await, "0");
}

#[tokio::test]
async fn a_schema_of_another_role_is_not_used() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let (stranger, add) = (format!("{}_stranger", db.name()), format!("{}_add", db.name()));
    run(&client, &format!("create role {stranger}; create schema {add} authorization {stranger}")).await;
    let refused = client.batch_execute(&roles_sql(&Schema::default(), db.name()).unwrap()).await.unwrap_err();
    let refused = refused.as_db_error().unwrap();
    assert!(refused.message().ends_with(&format!("belongs to role {stranger}")), "{refused}");
    assert!(refused.hint().unwrap().contains("--role-prefix"), "{refused}");
}

#[tokio::test]
async fn a_superuser_gives_the_functions_to_the_owner_of_the_tables() {
    let db = Database::empty().await;
    let superuser = db.client().await;
    let owner = format!("{}_owner", db.name());
    run(
        &superuser,
        &format!("create role {owner} login; create schema graphile_worker authorization {owner}"),
    )
    .await;
    let mut client = db.client_as(&owner).await;
    atta::migrate(&mut client, &Schema::default()).await.unwrap();
    let sql = roles_sql(&Schema::default(), db.name()).unwrap();
    run(&superuser, &sql).await;
    let strangers = format!(
        "select count(*) filter (where pg_get_userbyid(proowner) <> '{owner}') || ' of ' || count(*)
         from pg_proc where pronamespace = '{}'::regnamespace",
        quoted(&format!("{}_add", db.name()))
    );
    assert_eq!(value(&superuser, &strangers).await, "0 of 3");
    // From now on, the owner can run it without a superuser.
    run(&client, &sql).await;
}

#[tokio::test]
async fn tables_that_came_later_are_given_by_the_next_run() {
    let roles = Roles::new().await;
    run(&roles.owner, "drop table graphile_worker._atta_dead_workers").await;
    let mut owner = roles.db.client().await;
    atta::migrate(&mut owner, &Schema::default()).await.unwrap();
    let worker = roles.client("worker").await;
    let write = "insert into graphile_worker._atta_dead_workers (worker_id) values ('w')";
    assert_eq!(refusal(&worker, write).await.code().code(), "42501");
    roles.apply().await;
    run(&worker, write).await;
    assert_eq!(value(&worker, "select count(*) from graphile_worker._atta_dead_workers").await, "1");
}
