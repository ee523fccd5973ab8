//! A keyed add that meets the claim of the very job it is about to change. Graphile's functions lose it (issue 580 of
//! graphile/worker); ours must not.

use testkit::{Database, wait_for};
use tokio_postgres::Client;

use crate::node::node;

/// Adds under the key of a job whose claim commits while the add waits for it. Returns the new job's id, if any.
async fn add_during_a_claim(db: &Database) -> Option<i64> {
    let [watcher, mut claimer, adder] = [db.client().await, db.client().await, db.client().await];
    let sql = "select graphile_worker.add_job('task', job_key => 'key')";
    watcher.query_one(sql, &[]).await.expect("the first add");
    let sql = "select pg_backend_pid()";
    let pid: i32 = adder.query_one(sql, &[]).await.expect("the adder's pid").get(0);

    let claim = claimer.transaction().await.expect("the claim's transaction");
    let sql = "update graphile_worker._private_jobs
               set locked_at = now(), locked_by = 'pool-1', attempts = attempts + 1";
    claim.execute(sql, &[]).await.expect("the claim");
    let sql = r#"select (graphile_worker.add_job('task', '{"new":true}', job_key => 'key')).id"#;
    let (added, ()) = tokio::join!(adder.query_one(sql, &[]), async {
        wait_until_blocked(&watcher, pid).await;
        claim.commit().await.expect("the claim commits");
    });
    added.expect("the second add").get(0)
}

async fn wait_until_blocked(client: &Client, pid: i32) {
    let sql = "select cardinality(pg_blocking_pids($1)) > 0";
    wait_for("the add to wait for the claim", || async {
        let is_blocked: bool = client.query_one(sql, &[&pid]).await.expect("the adder's state").get(0);
        is_blocked.then_some(())
    })
    .await;
}

#[tokio::test]
async fn graphiles_functions_lose_the_add() {
    let db = Database::empty().await;
    node("0.18.0", &db, "migrate").await;
    assert_eq!(
        add_during_a_claim(&db).await,
        None,
        "if this fails, Graphile has mended it: see what we can learn"
    );
}

#[tokio::test]
async fn our_functions_add_a_second_job_and_keep_the_first_from_running_again() {
    let db = Database::migrated().await;
    let added = add_during_a_claim(&db).await.expect("the add returns a job");
    let sql = "select id, key, attempts = max_attempts as exhausted, locked_by, payload::text
               from graphile_worker._private_jobs order by id";
    let rows = db.client().await.query(sql, &[]).await.unwrap();
    let [first, second] = rows.as_slice() else { panic!("{} jobs", rows.len()) };
    assert_eq!(first.get::<_, Option<&str>>("key"), None);
    assert!(first.get::<_, bool>("exhausted"));
    assert_eq!(first.get::<_, &str>("locked_by"), "pool-1");
    assert_eq!(second.get::<_, i64>("id"), added);
    assert_eq!(second.get::<_, &str>("key"), "key");
    assert!(!second.get::<_, bool>("exhausted"));
    assert_eq!(second.get::<_, &str>("payload"), r#"{"new":true}"#);
}
