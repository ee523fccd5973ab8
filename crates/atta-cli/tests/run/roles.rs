//! The worker, run with the worker role.

use testkit::Database;

use crate::{Folder, add, jobs};

/// Creates the roles with the printed SQL, and a login that has the rights of one. Returns the URL.
async fn log_in(db: &Database, folder: &Folder, kind: &str) -> String {
    let printed = folder.atta(&["migrate", "--print-roles", "--role-prefix", db.name()]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    let client = db.client().await;
    client.batch_execute(&printed.out).await.expect("the roles are made");
    let login = format!("{}_{kind}_login", db.name());
    let make = format!("create role {login} login in role {}_{kind}", db.name());
    client.batch_execute(&make).await.expect("somebody to log in");
    db.url().replace("postgres@", &format!("{login}@"))
}

#[tokio::test]
async fn a_worker_that_may_not_migrate_runs_on_a_schema_that_needs_none() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    let url = log_in(&db, &folder, "worker").await;
    add(&db, "hello", "").await;
    let run = folder.atta(&["run", "--once", "-c", &url]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.err.contains("hello from job") && !run.err.contains("WARN"), "{}", run.err);
    assert_eq!(jobs(&db, "true").await, 0);
    let schema_only = folder.atta(&["--schema-only", "-c", &url]);
    assert!(schema_only.code == 0 && schema_only.err.contains("is up to date"), "{}", schema_only.err);
}

#[tokio::test]
async fn a_worker_that_may_not_migrate_names_the_role_that_can() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    let url = log_in(&db, &folder, "worker").await;
    db.client().await.batch_execute("drop view graphile_worker.jobs").await.unwrap();
    let stale = folder.atta(&["run", "--once", "-c", &url]);
    assert_eq!(stale.code, 2);
    assert!(
        stale.err.contains("permission denied") && stale.err.contains("hint: the tables of schema"),
        "{}",
        stale.err
    );

    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    add(&db, "hello", "").await;
    let reader = log_in(&db, &folder, "reader").await;
    for words in [&["run", "--once", "-c", &reader][..], &["run", "-c", &reader]] {
        let refused = folder.atta(words);
        assert_eq!(refused.code, 2, "{}", refused.err);
        assert!(refused.err.contains("hint: connect as the role that owns the tables"), "{}", refused.err);
        assert!(refused.err.contains("atta migrate --print-roles"), "{}", refused.err);
    }
}
