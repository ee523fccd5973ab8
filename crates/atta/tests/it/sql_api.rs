//! The functions that anyone can call from SQL.

use testkit::Database;

#[tokio::test]
async fn an_added_job_is_a_row() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let row = client
        .query_one("select * from graphile_worker.add_job('hello', '{\"a\": 1}', job_key := 'k')", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, String>("key"), "k");
    let row = client
        .query_one("select * from graphile_worker.add_job('hello', '[1]', job_key := 'k')", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, i32>("revision"), 1);
}
