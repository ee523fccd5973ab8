//! What users of Graphile Worker do from SQL: triggers, named arguments, wrappers with rights, uninstalling.

use testkit::Database;

use super::support::{add, all_jobs, jobs_of, names, refusal, run, value};

#[tokio::test]
async fn a_trigger_adds_a_job_for_a_new_row_and_only_if_the_row_stays() {
    let db = Database::migrated().await;
    let client = db.client().await;
    run(
        &client,
        "create table orders (id integer primary key);
         create function order_placed() returns trigger language plpgsql as $$
         begin
           perform graphile_worker.add_job('confirm_order', json_build_object('order', new.id));
           return new;
         end $$;
         create trigger order_placed after insert on orders for each row execute function order_placed();
         insert into orders values (5);",
    )
    .await;
    run(&client, "begin; insert into orders values (6); rollback").await;
    let jobs = all_jobs(&client).await;
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].payload, "{\"order\" : 5}");
    assert_eq!(names(&client, &jobs[0]).await.0, "confirm_order");
}

#[tokio::test]
async fn one_trigger_function_serves_many_tables_with_the_task_as_its_argument() {
    let db = Database::migrated().await;
    let client = db.client().await;
    run(
        &client,
        "create function enqueue() returns trigger language plpgsql as $$
         declare
           changed record := case tg_op when 'DELETE' then old else new end;
         begin
           perform graphile_worker.add_job(
             tg_argv[0],
             json_build_object('table', tg_table_name, 'op', tg_op, 'id', changed.id)
           );
           return changed;
         end $$;
         create table people (id integer primary key, email text, verified boolean not null default false);
         create table invoices (id integer primary key, total numeric);
         create trigger a after insert on people for each row when (not new.verified)
           execute function enqueue('verify_email');
         create trigger b after insert or update or delete on people for each row
           execute function enqueue('sync_person');
         create trigger c after update on invoices for each row when (old.total is distinct from new.total)
           execute function enqueue('draw_invoice');
         insert into people values (1, 'a@example.com');
         update people set verified = true;
         delete from people;
         insert into invoices values (2, 10);
         update invoices set total = 10;
         update invoices set total = 20;",
    )
    .await;
    let seen = "select string_agg(concat_ws(' ', task.identifier, payload ->> 'table', payload ->> 'op', \
                payload ->> 'id'), ', ' order by job.id) from graphile_worker._private_jobs as job \
                join graphile_worker._private_tasks as task on task.id = job.task_id";
    assert_eq!(
        value(&client, seen).await,
        "verify_email people INSERT 1, sync_person people INSERT 1, sync_person people UPDATE 1, \
         sync_person people DELETE 1, draw_invoice invoices UPDATE 2"
    );
}

#[tokio::test]
async fn named_arguments_come_in_any_order_and_times_may_be_computed_from_parameters() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let job = add(&client, "'remind', run_at := now() + interval '2 days'").await;
    assert_eq!((job.run_at - job.created_at).num_hours(), 48);

    let sql = "select extract(epoch from run_at - created_at)::integer, priority, max_attempts, key, payload::text \
               from graphile_worker.add_job($1, payload := $2, queue_name := $3, max_attempts := $4, \
               run_at := now() + ($5 * interval '1 second'), priority := $6, job_key := $7)";
    let payload = serde_json::json!({"a": [1, "two"]});
    let row = client
        .query_one(sql, &[&"remind", &payload, &"q", &12_i32, &90.0_f64, &3_i32, &"remind 7"])
        .await
        .unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2), row.get(3)), (90_i32, 3_i16, 12_i16, "remind 7"));
    assert_eq!(row.get::<_, String>(4), "{\"a\":[1,\"two\"]}");
}

#[tokio::test]
async fn the_second_of_two_adds_with_one_key_in_one_transaction_wins() {
    let db = Database::migrated().await;
    let client = db.client().await;
    run(
        &client,
        "begin; select graphile_worker.add_job('mail', '{\"count\": 1}', job_key := 'abc'); \
         select graphile_worker.add_job('mail', '{\"count\": 2}', job_key := 'abc'); commit;",
    )
    .await;
    let jobs = all_jobs(&client).await;
    assert_eq!(jobs.len(), 1);
    assert_eq!((jobs[0].payload.as_str(), jobs[0].revision), ("{\"count\": 2}", 1));
}

#[tokio::test]
async fn arrays_gather_under_a_key_until_the_job_runs_in_a_window_that_stays_or_moves() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for (mode, stays) in [("preserve_run_at", true), ("replace", false)] {
        let add_invoice = |id: u32| {
            format!(
                "'bill', '[{{\"id\": {id}}}]', job_key := '{mode}', job_key_mode := '{mode}', \
                 run_at := now() + interval '10 seconds'"
            )
        };
        let first = add(&client, &add_invoice(42)).await;
        let second = add(&client, &add_invoice(67)).await;
        assert_eq!(second.payload, "[{\"id\": 42}, {\"id\": 67}]");
        assert_eq!((second.id, second.run_at == first.run_at), (first.id, stays));
    }
}

#[tokio::test]
async fn a_key_is_one_for_all_tasks_and_free_again_once_its_job_is_gone() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let first = add(&client, "'one', job_key := 'abc'").await;
    let second = add(&client, "'two', job_key := 'abc'").await;
    assert_eq!(second.id, first.id);
    assert_eq!(names(&client, &second).await.0, "two");
    assert_eq!(jobs_of(&client, "graphile_worker.remove_job('abc')").await, [second]);
    let third = add(&client, "'one', job_key := 'abc'").await;
    assert_eq!((third.id > first.id, third.revision), (true, 0));
}

#[tokio::test]
async fn a_role_without_rights_adds_through_a_function_of_the_owner() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let role = format!("{}_visitor", db.name());
    run(
        &client,
        &format!(
            "create role {role} login;
             create function request_mail(recipient text) returns bigint
             language sql security definer set search_path = pg_catalog as $$
               select id from graphile_worker.add_job('mail', json_build_object('to', recipient), job_key := recipient)
             $$;"
        ),
    )
    .await;
    let visitor = db.client_as(&role).await;
    for statement in ["select graphile_worker.add_job('mail')", "select * from graphile_worker.jobs"] {
        assert_eq!(refusal(&visitor, statement).await.code().code(), "42501");
    }
    for _ in 0..2 {
        run(&visitor, "select request_mail('a@example.com')").await;
    }
    let jobs = all_jobs(&client).await;
    assert_eq!((jobs.len(), jobs[0].payload.as_str()), (1, "{\"to\" : \"a@example.com\"}"));
}

/// Row security is on, without policies: plain grants are not enough, and that shows as an error.
#[tokio::test]
async fn a_role_with_grants_alone_cannot_add() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let role = format!("{}_granted", db.name());
    run(
        &client,
        &format!(
            "create role {role} login; grant usage on schema graphile_worker to {role}; \
             grant all on all tables in schema graphile_worker to {role}; \
             grant all on all sequences in schema graphile_worker to {role};"
        ),
    )
    .await;
    let granted = db.client_as(&role).await;
    for arguments in ["'t'", "'t', job_key := 'k'"] {
        let error = refusal(&granted, &format!("select graphile_worker.add_job({arguments})")).await;
        assert_eq!(error.code().code(), "42501");
        assert!(error.message().contains("row-level security"), "{error}");
    }
}

#[tokio::test]
async fn dropping_the_schema_uninstalls_and_a_migration_installs_again() {
    let db = Database::migrated().await;
    let mut client = db.client().await;
    add(&client, "'t'").await;
    run(&client, "drop schema graphile_worker cascade").await;
    let left = "select count(*) from pg_class where relname like '\\_private%' or relname like '\\_atta%'";
    assert_eq!(value(&client, left).await, "0");
    atta::migrate(&mut client, &atta::Schema::default()).await.unwrap();
    assert_eq!(add(&client, "'t'").await.id, 1);
}
