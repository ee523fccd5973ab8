//! Installing and upgrading the schema, without other tools: those are in `tests/compat`.

use testkit::Database;

#[tokio::test]
async fn a_fresh_install_leaves_nothing_to_do() {
    let db = Database::empty().await;
    let mut client = db.client().await;
    let schema = atta::Schema::default();
    let plan = atta::migrate(&mut client, &schema).await.unwrap();
    assert_eq!(plan.from_revision(), None);
    let again = atta::migrate(&mut client, &schema).await.unwrap();
    assert!(again.is_empty(), "{again}");
}
