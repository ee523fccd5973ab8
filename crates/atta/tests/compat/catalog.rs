//! What a schema consists of, as lines that can be compared, and the proof that ours consists of the same as theirs.

use std::collections::BTreeSet;

use testkit::Database;
use tokio::sync::OnceCell;
use tokio_postgres::Client;

use crate::migrate;
use crate::node::node;

/// A line for each object, and one for each row of `migrations`.
pub(crate) async fn catalog(client: &Client) -> BTreeSet<String> {
    let mut lines = lines(client, include_str!("catalog.sql")).await;
    lines.extend(revisions(client).await);
    lines
}

/// A line for each row of `migrations`, without its time. None of them is breaking where that column is missing.
pub(crate) async fn revisions(client: &Client) -> BTreeSet<String> {
    let sql = "select concat_ws(' ', 'revision', migration.id,
                 case when coalesce((to_jsonb(migration) ->> 'breaking')::boolean, false) then 'breaking' end)
               from graphile_worker.migrations as migration";
    lines(client, sql).await
}

/// The functions whose body is ours.
pub(crate) async fn our_functions(client: &Client) -> BTreeSet<String> {
    let sql = "select distinct proname::text from pg_proc
               where pronamespace = 'graphile_worker'::regnamespace
                 and prosrc like '%atta functions, revision%'";
    lines(client, sql).await
}

/// Fails, and says what differs, unless the schema is what a fresh install of ours is.
pub(crate) async fn assert_like_fresh(client: &Client, what: &str) {
    static FRESH: OnceCell<BTreeSet<String>> = OnceCell::const_new();
    let fresh = FRESH
        .get_or_init(|| async {
            let db = Database::migrated().await;
            catalog(&db.client().await).await
        })
        .await;
    assert_same(&catalog(client).await, fresh, what);
    assert_eq!(our_functions(client).await.len(), 7, "functions of ours after {what}");
}

fn assert_same(found: &BTreeSet<String>, wanted: &BTreeSet<String>, what: &str) {
    let too_many: Vec<_> = found.difference(wanted).collect();
    let missing: Vec<_> = wanted.difference(found).collect();
    assert!(
        too_many.is_empty() && missing.is_empty(),
        "{what}:\nnot expected: {too_many:#?}\nmissing: {missing:#?}"
    );
}

async fn lines(client: &Client, sql: &str) -> BTreeSet<String> {
    let rows = client.query(sql, &[]).await.expect("the catalog can be read");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_fresh_install_is_what_graphile_worker_installs() {
    let theirs = Database::empty().await;
    node("0.18.0", &theirs, "migrate").await;
    let theirs = catalog(&theirs.client().await).await;
    for kind in ["relation", "column", "constraint", "index", "sequence", "function", "revision"] {
        assert!(theirs.iter().any(|line| line.starts_with(kind)), "the catalog has no {kind}");
    }
    let ours = Database::empty().await;
    let mut client = ours.client().await;
    migrate(&mut client).await;
    assert_same(&catalog(&client).await, &theirs, "ours against theirs");
}

#[tokio::test]
async fn what_the_sql_for_hand_use_installs_is_the_same() {
    let db = Database::empty().await;
    let client = db.client().await;
    client.batch_execute(&atta::migration_sql(&atta::Schema::default())).await.unwrap();
    assert_like_fresh(&client, "the printed SQL").await;
}
