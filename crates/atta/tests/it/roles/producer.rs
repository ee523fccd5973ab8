//! The producer role.

use atta::{JobKeyMode, JobSpec, JobSpecBuilder, RawJobSpec};
use serde_json::json;

use super::support::{Roles, assert_denied, quoted};
use crate::sql_api::support::{Listener, refusal, run, value};

#[tokio::test]
async fn a_producer_adds_by_graphile_s_names_and_arguments() {
    let roles = Roles::new().await;
    let add = roles.add_schema().quoted();
    let mut notices = Listener::on(&roles.db, "jobs:insert").await;
    let producer = roles.client("producer").await;
    let one = format!(
        "select id || ' ' || payload::text || ' ' || priority || ' ' || max_attempts || ' ' || (flags ->> 'x')
         from {add}.add_job('email', '{{\"to\":  1}}', queue_name := 'q', priority := 3, max_attempts := 2, flags := array['x'])"
    );
    assert_eq!(value(&producer, &one).await, "1 {\"to\":  1} 3 2 true");
    let many = format!(
        "select string_agg(id || payload::text, ' ') from {add}.add_jobs(array[
           row('email', '[2]', 'q', null, null, 'k', null, null), row('other', null, null, null, null, null, null, null)
         ]::{add}.job_spec[])"
    );
    assert_eq!(value(&producer, &many).await, "3[2] 2{}");
    assert_eq!(notices.counts().await, [Some(1), Some(2)]);
    let stored =
        "select string_agg(concat_ws(' ', job.id, task.identifier, queue.queue_name, job.payload), ', ' order by job.id)
         from graphile_worker._private_jobs as job
         join graphile_worker._private_tasks as task on task.id = job.task_id
         left join graphile_worker._private_job_queues as queue on queue.id = job.job_queue_id";
    assert_eq!(value(&roles.owner, stored).await, "1 email q {\"to\":  1}, 2 other {}, 3 email q [2]");
    let mistake =
        refusal(&producer, &format!("select {add}.add_job('x', job_key := 'k', job_key_mode := 'y')")).await;
    assert_eq!(mistake.code().code(), "GWBKM");
}

#[tokio::test]
async fn a_producer_learns_nothing_about_a_job_except_its_own_values() {
    let roles = Roles::new().await;
    let add = roles.add_schema().quoted();
    run(
        &roles.owner,
        "select graphile_worker.add_job('t', '[\"secret\"]', job_key := 'merged');
         select graphile_worker.add_job('t', '\"secret\"', job_key := 'deduped', flags := array['secret']);
         update graphile_worker._private_jobs
         set last_error = 'secret', locked_at = now(), locked_by = 'secret' where key = 'deduped'",
    )
    .await;
    let producer = roles.client("producer").await;
    for call in [
        format!("{add}.add_job('t', '[1]', job_key := 'merged')"),
        format!(
            "{add}.add_jobs(array[row('t', '[2]', null, null, null, 'merged', null, null)]::{add}.job_spec[])"
        ),
        format!("{add}.add_job('t', '3', job_key := 'deduped', job_key_mode := 'unsafe_dedupe')"),
        format!(
            "{add}.add_job('t', '3', job_key := 'deduped', job_key_mode := 'unsafe_dedupe', flags := array['mine'])"
        ),
    ] {
        let told = value(&producer, &format!("select row_to_json(job) from {call} as job")).await;
        assert!(told.contains("\"key\"") && !told.contains("secret"), "{told}");
    }
    let merged = "select payload from graphile_worker._private_jobs where key = 'merged'";
    assert_eq!(value(&roles.owner, merged).await, "[\"secret\", 1, 2]");
}

#[tokio::test]
async fn a_producer_can_do_nothing_else() {
    let roles = Roles::new().await;
    let add = roles.add_schema().quoted();
    run(&roles.owner, "select graphile_worker.add_job('t', job_key := 'k')").await;
    let producer = roles.client("producer").await;
    assert_denied(
        &producer,
        &[
            "select payload from graphile_worker._private_jobs",
            "select id from graphile_worker.jobs",
            "select 1 from graphile_worker._private_tasks",
            "select 1 from graphile_worker._private_job_queues",
            "select 1 from graphile_worker._private_known_crontabs",
            "select 1 from graphile_worker._atta_workers",
            "select 1 from graphile_worker.migrations",
            "insert into graphile_worker._private_tasks (identifier) values ('x')",
            "update graphile_worker._private_jobs set priority = 1",
            "delete from graphile_worker._private_jobs",
            "select graphile_worker.add_job('t')",
            "select graphile_worker.remove_job('k')",
            "select graphile_worker.complete_jobs(array[1])",
            "select graphile_worker.permanently_fail_jobs(array[1])",
            "select graphile_worker.reschedule_jobs(array[1])",
            "select graphile_worker.force_unlock_workers(array['w'])",
            "do $$ begin lock table graphile_worker._private_jobs; end $$",
            "drop table graphile_worker._private_jobs",
            "drop schema graphile_worker cascade",
            &format!("select {add}.remove_job('k')"),
            &format!("create table {add}.x (y int)"),
            &format!("create function {add}.f() returns int language sql as 'select 1'"),
            &format!("drop function {add}.add_jobs"),
            &format!("alter function {add}.remove_job(text) security invoker"),
            &format!("drop schema {add} cascade"),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_login_without_a_role_can_not_add_jobs() {
    let roles = Roles::new().await;
    let nobody = format!("{}_nobody", roles.db.name());
    run(&roles.owner, &format!("create role {nobody} login")).await;
    let client = roles.db.client_as(&nobody).await;
    let add = roles.add_schema().quoted();
    assert_denied(&client, &[&format!("select {add}.add_job('t')"), "select graphile_worker.add_job('t')"])
        .await;
    // With USAGE on the schema, the functions themselves still can't be executed.
    run(&roles.owner, &format!("grant usage on schema {add} to {nobody}")).await;
    assert_denied(
        &client,
        &[&format!("select {add}.add_job('t')"), &format!("select {add}.remove_job('k')")],
    )
    .await;
}

#[tokio::test]
async fn functions_in_a_producers_search_path_do_not_run_as_the_owner() {
    let roles = Roles::new().await;
    let login = roles.login("producer");
    run(&roles.owner, &format!("create schema evil authorization {login}")).await;
    let producer = roles.client("producer").await;
    run(
        &producer,
        "create function evil.now() returns timestamptz language plpgsql as
           $$ begin raise exception 'ran as %', current_user; end $$;
         create function evil.coalesce_() returns int language sql as 'select 1';
         create function evil.random() returns float8 language plpgsql as
           $$ begin raise exception 'ran as %', current_user; end $$;
         create temp table _private_jobs (id int);
         set search_path = evil, pg_temp, pg_catalog",
    )
    .await;
    let add = roles.add_schema().quoted();
    run(&producer, &format!("select {add}.add_job('t'); select {add}.add_job('t', job_key := 'k')")).await;
    // This shows that the attack would work. Our own functions name the schema of everything that they call.
    run(&roles.owner, "grant usage on schema evil to public; set search_path = evil, pg_catalog").await;
    let hijacked = refusal(&roles.owner, "select now()").await;
    assert!(hijacked.message().starts_with("ran as"), "{hijacked}");
    run(&roles.owner, "select graphile_worker.add_job('t')").await;
}

#[tokio::test]
async fn removing_by_key_can_be_granted_besides() {
    let roles = Roles::new().await;
    let add = roles.add_schema().quoted();
    let grant = format!(
        "grant execute on function {add}.remove_job(text) to {}",
        quoted(&format!("{}_producer", roles.prefix))
    );
    run(&roles.owner, &grant).await;
    roles.apply().await;
    let producer = roles.client("producer").await;
    run(&producer, &format!("select {add}.add_job('t', '1', job_key := 'k')")).await;
    assert_eq!(value(&producer, &format!("select (job).id from {add}.remove_job('k') as job")).await, "1");
    assert_eq!(value(&producer, &format!("select {add}.remove_job('k') is null")).await, "true");
    assert_eq!(value(&roles.owner, "select count(*) from graphile_worker.jobs").await, "0");
}

#[tokio::test]
async fn the_library_adds_with_the_rights_of_a_producer() {
    let roles = Roles::new().await;
    let utils = roles.utils("producer", roles.add_schema());
    let job = utils
        .add_raw_job("email", json!({ "to": 1 }), JobSpecBuilder::new().queue_name("q").job_key("k"))
        .await
        .unwrap();
    assert_eq!((job.task_identifier(), job.queue_name(), job.key()), ("email", Some("q"), Some("k")));
    let deduped = JobSpecBuilder::new().job_key("k").job_key_mode(JobKeyMode::UnsafeDedupe);
    assert_eq!(utils.add_raw_job("email", 2, deduped).await.unwrap().id(), job.id());

    let job_of = |n: usize| RawJobSpec::new("many", n, JobSpec::default()).unwrap();
    // Enough jobs that a COPY would be used, which a producer can't do.
    for count in [3, 100] {
        let jobs: Vec<RawJobSpec> = (0..count).map(job_of).collect();
        let added = utils.add_raw_jobs(&jobs).await.unwrap();
        assert_eq!(added.len(), count);
        assert_eq!((added[1].task_identifier(), added[1].payload::<usize>().unwrap()), ("many", 1));
        assert_eq!(utils.insert_raw_jobs(&jobs).await.unwrap(), count);
    }
    let mut client = roles.client("producer").await;
    let mut transaction = client.transaction().await.unwrap();
    utils.add_raw_job_in(&mut transaction, "gone", 1, JobSpec::default()).await.unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(value(&roles.owner, "select count(*) from graphile_worker.jobs").await, "207");

    let error = roles.utils("producer", roles.schema.clone()).add_raw_job("t", 1, JobSpec::default()).await;
    let error = error.unwrap_err();
    assert!(error.is_config() && error.db_code() == Some("42501"), "{error:?}");
    assert!(error.hint().unwrap().contains("atta migrate --print-roles"), "{error}");
}
