//! `atta migrate`.

use testkit::Database;

use crate::atta;

#[tokio::test]
async fn installs_once_and_then_has_nothing_to_do() {
    let db = Database::empty().await;
    let first = atta(&["migrate", "-c", &db.url()]);
    assert_eq!((first.code, first.err.as_str()), (0, ""));
    assert!(first.out.starts_with("schema \"graphile_worker\" installed\n"), "{}", first.out);
    let second = atta(&["migrate", "-c", &db.url()]);
    assert_eq!(second.out, "schema \"graphile_worker\" is up to date\n");
    db.client().await.execute("select graphile_worker.add_job('hello')", &[]).await.unwrap();
}

#[tokio::test]
async fn a_dry_run_shows_what_a_migration_would_do_and_touches_nothing() {
    let db = Database::empty().await;
    let dry = atta(&["migrate", "-c", &db.url(), "-s", "my jobs", "--dry-run"]);
    assert_eq!(dry.code, 0, "{}", dry.err);
    assert!(dry.out.contains("create schema \"my jobs\";"), "{}", dry.out);
    let client = db.client().await;
    let schemas = "select 1 from pg_namespace where nspname = 'my jobs'";
    assert!(client.query_opt(schemas, &[]).await.unwrap().is_none());
    client.batch_execute(&dry.out).await.unwrap();
    let done = atta(&["migrate", "-c", &db.url(), "-s", "my jobs", "--dry-run"]);
    assert_eq!(done.out, "-- nothing to do\n");
}

#[test]
fn printing_needs_no_database() {
    let printed = atta(&["migrate", "--print"]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert!(printed.out.starts_with("begin") && printed.out.ends_with("commit;\n"), "{}", printed.out);
}

#[test]
fn errors_name_the_problem_and_the_fix() {
    let nowhere = atta(&["migrate"]);
    assert_eq!(nowhere.code, 2);
    assert!(nowhere.err.starts_with("error: no database given\nhint: use -c"), "{}", nowhere.err);

    let closed = atta(&["migrate", "-c", "postgres://someone:secret@127.0.0.1:1/app"]);
    assert_eq!(closed.code, 2);
    assert!(closed.err.contains("can't connect to 127.0.0.1:1/app: Connection refused"), "{}", closed.err);
    assert!(!closed.err.contains("secret"));

    let nonsense = atta(&["migrate", "-c", "postgres://host:port/app"]);
    assert!(nonsense.err.starts_with("error: invalid connection string"), "{}", nonsense.err);

    let both = atta(&["migrate", "--print", "--dry-run"]);
    assert_eq!(both.code, 2);
    assert!(both.err.contains("cannot be used with"), "{}", both.err);

    let schema = atta(&["migrate", "--print", "-s", "pg_jobs"]);
    assert!(schema.err.starts_with("error: invalid schema name \"pg_jobs\""), "{}", schema.err);
}

#[tokio::test]
async fn a_missing_privilege_is_named_with_the_statement_that_grants_it() {
    let db = Database::empty().await;
    let client = db.client().await;
    let role = format!("visitor_of_{}", db.name());
    client.batch_execute(&format!("create role {role} login")).await.unwrap();
    let url = db.url().replace("postgres@", &format!("{role}@"));
    let denied = atta(&["migrate", "-c", &url]);
    assert_eq!(denied.code, 2);
    let hint = format!("grant create on database \"{}\" to \"{role}\"", db.name());
    assert!(denied.err.contains("hint: ") && denied.err.contains(&hint), "{}", denied.err);
    client.batch_execute(&format!("drop role {role}")).await.unwrap();
}

#[tokio::test]
async fn a_schema_of_another_role_is_migrated_with_a_warning_that_names_both_roles() {
    let db = Database::empty().await;
    let client = db.client().await;
    let role = format!("owner_of_{}", db.name());
    let create = format!("create role {role}; create schema graphile_worker authorization {role}");
    client.batch_execute(&create).await.unwrap();
    let warned = atta(&["migrate", "-c", &db.url()]);
    assert_eq!(warned.code, 0, "{}", warned.err);
    let warning = format!(
        "warning: schema \"graphile_worker\" belongs to role \"{role}\", and what this command creates in it will belong to role \"postgres\"\n"
    );
    assert!(warned.err.starts_with(&warning) && warned.err.contains("hint: "), "{}", warned.err);
    let again = atta(&["migrate", "-c", &db.url()]);
    assert_eq!((again.code, again.err.as_str()), (0, ""), "nothing is created");
    client.batch_execute(&format!("drop schema graphile_worker cascade; drop role {role}")).await.unwrap();
    let own = atta(&["migrate", "-c", &db.url()]);
    assert_eq!((own.code, own.err.as_str()), (0, ""));
}
