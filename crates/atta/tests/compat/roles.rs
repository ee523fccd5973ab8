//! Graphile Worker itself with the rights of our roles.

use atta::{Schema, roles_sql};
use testkit::Database;

use crate::node::release;

#[tokio::test]
async fn node_adds_and_works_with_the_rights_of_a_producer_and_a_worker() {
    for version in ["0.17.3", "0.18.0"] {
        let db = Database::migrated().await;
        let client = db.client().await;
        let prefix = db.name();
        let sql = roles_sql(&Schema::default(), prefix).expect("a prefix for roles");
        client.batch_execute(&sql).await.expect("the roles are made");
        let make = format!(
            "create role {prefix}_a login in role {prefix}_producer; create role {prefix}_w login in role {prefix}_worker;
             create table public.ran (by text, job_id bigint, task text, payload json);
             grant insert on public.ran to {prefix}_w"
        );
        client.batch_execute(&make).await.expect("somebody to log in");
        let url = |login: &str| db.url().replace("postgres@", &format!("{prefix}_{login}@"));
        for (login, command, schema) in
            [("a", "add_through", format!("{prefix}_add")), ("w", "work", String::new())]
        {
            let mut node = release(version, &url(login), command);
            let output = tokio::task::spawn_blocking(move || node.arg(schema).output().expect("Node starts"));
            let output = output.await.expect("running Node does not panic");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{version} {command}: {said}");
        }
        let ran = "select string_agg(payload::text, ' ' order by job_id) from public.ran";
        let ran: Option<String> = client.query_one(ran, &[]).await.expect("the ledger is read").get(0);
        assert_eq!(ran.as_deref(), Some("{\"one\":1} {\"two\":2}"), "{version}");
        let left: i64 =
            client.query_one("select count(*) from graphile_worker.jobs", &[]).await.expect("a count").get(0);
        assert_eq!(left, 0, "{version}");
    }
}
