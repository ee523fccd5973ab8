//! A schema that older releases of graphile-worker still use: which commands migrate it, and their messages.

use testkit::Database;

use crate::{Folder, add, jobs};

/// A database at the revision of graphile-worker 0.16, as far as a migration checks it.
async fn at_revision_18() -> Database {
    let db = Database::migrated().await;
    let older = "delete from graphile_worker.migrations where id > 18";
    db.client().await.batch_execute(older).await.expect("the schema becomes an older one");
    db
}

async fn revision(db: &Database) -> i32 {
    let sql = "select max(id) from graphile_worker.migrations";
    db.client().await.query_one(sql, &[]).await.expect("the revision is read").get(0)
}

#[tokio::test]
async fn a_worker_refuses_a_migration_that_stops_older_releases() {
    let (db, folder) = (at_revision_18().await, Folder::with_hello());
    add(&db, "hello", "").await;
    for words in [&["run", "--once"][..], &["run"], &["--cleanup", "GC_JOB_QUEUES"]] {
        let refused = folder.atta(&[words, &["-c", &db.url()]].concat());
        assert_eq!(refused.code, 2, "{words:?}: {}", refused.err);
        for part in ["graphile-worker 0.16 and older stop working", "hint: run: atta migrate"] {
            assert!(refused.err.contains(part), "{words:?}: {}", refused.err);
        }
        assert_eq!((revision(&db).await, jobs(&db, "true").await), (18, 1), "{words:?}");
    }
    let allowed = folder.atta(&["run", "--once", "--allow-breaking-migration", "-c", &db.url()]);
    assert_eq!(allowed.code, 0, "{}", allowed.err);
    let logged =
        allowed.err.lines().find(|line| line.contains("the schema was migrated")).unwrap_or_default();
    assert!(logged.contains("WARN") && logged.contains("graphile-worker 0.16 and older"), "{}", allowed.err);
    assert_eq!((revision(&db).await, jobs(&db, "true").await), (20, 0));
}

#[tokio::test]
async fn an_explicit_migration_is_applied_and_reports_which_releases_stop_working() {
    for words in [&["migrate"][..], &["migrate", "--yes"], &["--schema-only"]] {
        let (db, folder) = (at_revision_18().await, Folder::with_hello());
        let done = folder.atta(&[words, &["-c", &db.url()]].concat());
        assert_eq!((done.code, revision(&db).await), (0, 20), "{words:?}: {}", done.err);
        assert!(done.err.contains("graphile-worker 0.16 and older stop working"), "{words:?}: {}", done.err);
        let again = folder.atta(&[words, &["-c", &db.url()]].concat());
        assert!(again.code == 0 && !again.err.contains("0.16"), "{words:?}: {}", again.err);
    }
}

#[tokio::test]
async fn every_migration_of_a_worker_is_logged_as_a_warning() {
    let (db, folder) = (Database::empty().await, Folder::with_hello());
    let first = folder.atta(&["run", "--once", "-c", &db.url()]);
    assert_eq!(first.code, 0, "{}", first.err);
    let has = |log: &str, text: &str| log.lines().any(|line| line.contains("WARN") && line.contains(text));
    assert!(has(&first.err, "the schema was installed"), "{}", first.err);
    let newer = "delete from graphile_worker.migrations where id > 19";
    db.client().await.batch_execute(newer).await.expect("the schema becomes an older one");
    let second = folder.atta(&["run", "--once", "-c", &db.url()]);
    assert!(second.code == 0 && has(&second.err, "the schema was migrated"), "{}", second.err);
    assert_eq!(revision(&db).await, 20);
}
