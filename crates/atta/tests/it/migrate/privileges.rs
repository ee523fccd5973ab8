//! Roles with few privileges: the error names what is missing, with the statement that grants it.

use atta::Schema;
use testkit::Database;
use tokio_postgres::Client;

use super::{assert_functions_work, fingerprint};
use crate::sql_api::support::run;

/// A role of this test that may log in and nothing else.
async fn role(db: &Database, client: &Client, name: &str) -> String {
    let role = format!("{}_{name}", db.name());
    run(client, &format!("create role {role} login")).await;
    role
}

/// The hint of a migration as `role`, which must fail because of missing privileges and change nothing.
async fn hint(db: &Database, role: &str) -> String {
    let observer = db.client().await;
    let before = fingerprint(&observer).await;
    let mut client = db.client_as(role).await;
    let error = atta::migrate(&mut client, &Schema::default()).await.expect_err("the migration is refused");
    assert!(error.is_config(), "{error:?}");
    assert_eq!(error.db_code(), Some("42501"), "{error:?}");
    assert_eq!(fingerprint(&observer).await, before);
    error.hint().expect("a hint").to_owned()
}

#[tokio::test]
async fn a_role_that_may_not_create_a_schema_gets_a_grant_as_a_hint_and_it_works() {
    let db = Database::empty().await;
    let owner = db.client().await;
    let role = role(&db, &owner, "Lowly").await.to_lowercase();
    let hint = hint(&db, &role).await;
    let grant = format!("grant create on database \"{}\" to \"{role}\";", db.name());
    assert!(hint.contains(&grant), "{hint}");
    run(&owner, &grant).await;
    let mut client = db.client_as(&role).await;
    atta::migrate(&mut client, &Schema::default()).await.unwrap();
    assert_functions_work(&client, &Schema::default()).await;
}

#[tokio::test]
async fn a_role_with_a_schema_of_its_own_needs_no_rights_on_the_database() {
    let db = Database::empty().await;
    let owner = db.client().await;
    let role = role(&db, &owner, "tenant").await;
    run(&owner, &format!("create schema graphile_worker authorization {role}")).await;
    let mut client = db.client_as(&role).await;
    atta::migrate(&mut client, &Schema::default()).await.unwrap();
    assert!(atta::migrate(&mut client, &Schema::default()).await.unwrap().is_empty());
    assert_functions_work(&client, &Schema::default()).await;
}

#[tokio::test]
async fn for_an_empty_schema_of_another_role_the_hint_is_a_grant_that_works() {
    let db = Database::empty().await;
    let owner = db.client().await;
    let role = role(&db, &owner, "guest").await;
    run(&owner, "create schema graphile_worker").await;
    let hint = hint(&db, &role).await;
    let grant = format!("grant usage, create on schema \"graphile_worker\" to \"{role}\";");
    assert!(hint.contains(&grant), "{hint}");
    run(&owner, &grant).await;
    let mut client = db.client_as(&role).await;
    atta::migrate(&mut client, &Schema::default()).await.unwrap();
    assert_functions_work(&client, &Schema::default()).await;
}

#[tokio::test]
async fn tables_of_another_role_are_named_with_it() {
    let db = Database::empty().await;
    let superuser = db.client().await;
    let (theirs, ours) = (role(&db, &superuser, "theirs").await, role(&db, &superuser, "ours").await);
    run(&superuser, &format!("create schema graphile_worker authorization {theirs}")).await;
    let mut client = db.client_as(&theirs).await;
    atta::migrate(&mut client, &Schema::default()).await.unwrap();

    for grants in ["select 1", &format!("grant usage, create on schema graphile_worker to {ours}")] {
        run(&superuser, grants).await;
        let hint = hint(&db, &ours).await;
        assert!(hint.contains(&format!("belong to role \"{theirs}\"")), "{hint}");
        assert!(hint.contains(&format!("grant \"{theirs}\" to \"{ours}\";")), "{hint}");
    }
    run(&superuser, &format!("grant {theirs} to {ours}")).await;
    let mut client = db.client_as(&ours).await;
    assert!(atta::migrate(&mut client, &Schema::default()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_role_that_may_not_replace_functions_works_with_those_that_are_there() {
    for lock in ["select", "select, update"] {
        let db = Database::migrated().await;
        let owner = db.client().await;
        let role = role(&db, &owner, "runner").await;
        run(
            &owner,
            &format!(
                "grant usage on schema graphile_worker to {role}; \
                 grant {lock} on all tables in schema graphile_worker to {role}; \
                 create or replace function graphile_worker.force_unlock_workers(worker_ids text[]) returns void \
                 language sql as $$ select null::void $$"
            ),
        )
        .await;
        let before = fingerprint(&owner).await;
        let mut client = db.client_as(&role).await;
        let plan = atta::migrate(&mut client, &Schema::default()).await.unwrap();
        assert_eq!(plan.titles().collect::<Vec<_>>(), ["force_unlock_workers"]);
        assert_eq!(fingerprint(&owner).await, before);
        // `discard all` fails inside a transaction: this checks that none is left open.
        run(&client, "discard all").await;
    }
}

#[tokio::test]
async fn a_role_that_may_not_create_missing_objects_is_rejected() {
    let db = Database::migrated().await;
    let owner = db.client().await;
    let role = role(&db, &owner, "runner").await;
    run(
        &owner,
        &format!(
            "grant usage on schema graphile_worker to {role}; \
             grant select on all tables in schema graphile_worker to {role}; \
             drop view graphile_worker.jobs"
        ),
    )
    .await;
    let hint = hint(&db, &role).await;
    assert!(hint.contains("belong to role \"postgres\""), "{hint}");
    assert!(!hint.contains("grant"), "nobody is told to grant the role of a superuser: {hint}");
}
