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

/// The role may read and write all tables, but row level security shows it none of their rows.
#[tokio::test]
async fn a_run_that_row_level_security_hides_all_jobs_from_is_an_error() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    add(&db, "hello", "").await;
    let login = format!("{}_blind", db.name());
    let make = format!(
        "create role {login} login; grant usage on schema graphile_worker to {login};
         grant all on all tables in schema graphile_worker to {login}"
    );
    db.client().await.batch_execute(&make).await.unwrap();
    let url = db.url().replace("postgres@", &format!("{login}@"));
    for words in [&["run", "--once", "-c", &url][..], &["run", "-c", &url]] {
        let run = folder.atta(words);
        assert_eq!(run.code, 2, "{}", run.err);
        assert!(
            run.err.contains("row level security hides") && run.err.contains("--print-roles"),
            "{}",
            run.err
        );
    }
    assert_eq!(jobs(&db, "true").await, 1);
}

/// The owner of the tables is not exempt from row level security if it is forced.
#[tokio::test]
async fn forced_row_level_security_is_an_error_for_the_owner_too() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    add(&db, "hello", "").await;
    let owner = format!("{}_owner", db.name());
    let make = format!(
        "create role {owner} login; grant all on database {} to {owner};
         alter schema graphile_worker owner to {owner};
         do $$ declare name text; begin
           for name in select oid::regclass from pg_class
             where relnamespace = 'graphile_worker'::regnamespace and relkind = 'r' loop
             execute format('alter table %s owner to {owner}', name);
           end loop;
         end $$;
         alter view graphile_worker.jobs owner to {owner};
         alter table graphile_worker._private_jobs force row level security",
        db.name()
    );
    db.client().await.batch_execute(&make).await.unwrap();
    let url = db.url().replace("postgres@", &format!("{owner}@"));
    for words in [&["run", "--once"][..], &["run"], &["stats"], &["add", "hello"], &["jobs"]] {
        let run = folder.atta(&[words, &["-c", &url]].concat());
        assert_eq!(run.code, 2, "{words:?}: {}", run.err);
        let hint = "run: alter table \"graphile_worker\".\"_private_jobs\" no force row level security";
        assert!(run.err.contains(hint), "{words:?}: {}", run.err);
    }
    // Not by the view, which belongs to the role that sees no rows.
    let count = "select count(*) from graphile_worker._private_jobs";
    let count: i64 = db.client().await.query_one(count, &[]).await.unwrap().get(0);
    assert_eq!(count, 1);
}

/// A worker that can't get the connections that releases need must not claim jobs: they would run, and run again later.
#[tokio::test]
async fn a_worker_with_too_few_connections_runs_no_job_or_all() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    let url = log_in(&db, &folder, "worker").await;
    let mut codes = Vec::new();
    for limit in [4, 5, 6, 7, 8, 20] {
        for queue in ["null", "null", "null", "'q'", "'q'"] {
            let add = format!("select graphile_worker.add_job('hello', queue_name => {queue})");
            db.client().await.batch_execute(&add).await.unwrap();
        }
        let set = format!("alter role {}_worker_login connection limit {limit}", db.name());
        db.client().await.batch_execute(&set).await.unwrap();
        let run = folder.atta(&["run", "--once", "-j", "3", "-c", &url]);
        assert_eq!(jobs(&db, "locked_at is not null or attempts > 0").await, 0, "limit {limit}: {}", run.err);
        match run.code {
            0 => assert_eq!(jobs(&db, "true").await, 0, "limit {limit}: {}", run.err),
            _ => assert!(run.err.contains("too many connections"), "limit {limit}: {}", run.err),
        }
        codes.push(run.code);
    }
    assert!(codes[0] == 2 && codes[5] == 0, "{codes:?}");
}
