//! Roles that may read the tables, but row level security hides the rows from them.

use atta::{JobFilter, Result, Schema, WorkerUtils};

use super::support::Roles;
use crate::sql_api::support::run;

fn assert_hidden<T: std::fmt::Debug>(what: &str, read: Result<T>) {
    let error = read.expect_err(what);
    assert!(error.is_config(), "{what}: {error}");
    assert!(error.to_string().contains("row level security hides"), "{what}: {error}");
    assert!(error.hint().unwrap().contains("--print-roles"), "{what}: {error}");
}

async fn assert_all_hidden(utils: &WorkerUtils) {
    assert_hidden("stats", utils.read_stats(10).await);
    assert_hidden("counts", utils.count_jobs().await);
    assert_hidden("jobs", utils.list_jobs(&JobFilter::default()).await);
    assert_hidden("ids", utils.list_job_ids(&JobFilter::default()).await);
    assert_hidden("job", utils.get_job(1).await);
    assert_hidden("queues", utils.list_queues(None, 10).await);
    assert_hidden("tasks", utils.list_tasks(None, 10).await);
    assert_hidden("workers", utils.list_workers().await);
    assert_hidden("cron", utils.list_known_crontabs().await);
}

#[tokio::test]
async fn a_role_that_can_see_no_rows_gets_an_error() {
    let roles = Roles::new().await;
    run(&roles.owner, "select graphile_worker.add_job('t', queue_name := 'q')").await;
    let login = roles.login("producer");
    let utils = roles.utils("producer", Schema::default());
    // A plain grant.
    run(
        &roles.owner,
        &format!(
            "grant usage on schema graphile_worker to {login};
             grant select on all tables in schema graphile_worker to {login}"
        ),
    )
    .await;
    assert_all_hidden(&utils).await;
    // With a policy, the same utils read.
    run(
        &roles.owner,
        "do $$ declare name text; begin
           for name in select relname from pg_class
             where relnamespace = 'graphile_worker'::regnamespace and relkind = 'r' and relrowsecurity loop
             execute format('create policy all_read on graphile_worker.%I for select using (true)', name);
           end loop;
         end $$",
    )
    .await;
    assert_eq!(utils.count_jobs().await.unwrap().total(), 1);
}

#[tokio::test]
async fn a_member_of_pg_read_all_data_that_can_see_no_rows_gets_an_error() {
    let roles = Roles::new().await;
    let has_role = "select count(*) from pg_roles where rolname = 'pg_read_all_data'";
    if crate::sql_api::support::value(&roles.owner, has_role).await == "0" {
        // Before PostgreSQL 14.
        return;
    }
    run(&roles.owner, &format!("grant pg_read_all_data to {}", roles.login("producer"))).await;
    assert_all_hidden(&roles.utils("producer", Schema::default())).await;
    run(&roles.owner, &format!("alter role {} bypassrls", roles.login("producer"))).await;
    assert_eq!(roles.utils("producer", Schema::default()).count_jobs().await.unwrap().total(), 0);
}
