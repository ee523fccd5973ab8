//! Errors for the producer role contain no stored data, and no statement of the owner.

use tokio_postgres::Client;
use tokio_postgres::error::DbError;

use super::support::{Roles, quoted};
use crate::sql_api::support::{pid, refusal, run, value, wait_until_blocked};

/// All parts of an error.
fn parts(error: &DbError) -> String {
    let parts = [
        Some(error.message()),
        error.detail(),
        error.hint(),
        error.where_(),
        error.schema(),
        error.table(),
        error.column(),
        error.constraint(),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

fn assert_tells_nothing(error: &DbError) {
    let parts = parts(error);
    for word in ["secret", "insert into", "select ", "update graphile", "_private_", "with wanted"] {
        assert!(!parts.contains(word), "{word}: {parts}");
    }
}

/// The two ways to call the functions: with one job and with many.
fn calls(add: &str, rest: &str) -> [String; 2] {
    let [payload, key] = rest.split(';').collect::<Vec<_>>()[..] else { panic!("payload;key: {rest}") };
    [
        format!("select {add}.add_job('t', {payload}, job_key := {key})"),
        format!(
            "select {add}.add_jobs(array[row('t', {payload}, null, null, null, {key}, null, null)]::{add}.job_spec[])"
        ),
    ]
}

async fn refusals(client: &Client, calls: &[String], code: &str) {
    for call in calls {
        let error = refusal(client, call).await;
        assert_eq!(error.code().code(), code, "{call}: {error}");
        assert_tells_nothing(&error);
    }
}

#[tokio::test]
async fn merging_an_array_that_jsonb_rejects_reveals_no_stored_data() {
    let roles = Roles::new().await;
    let add = roles.add_schema().quoted();
    let secret = r#"select graphile_worker.add_job('t', '["secret", "\u0000"]', job_key := 'k')"#;
    run(&roles.owner, secret).await;
    let producer = roles.client("producer").await;
    for call in calls(&add, "'[1]';'k'") {
        run(&producer, &call).await;
    }
    let merged = "select payload from graphile_worker._private_jobs where key = 'k'";
    assert_eq!(value(&roles.owner, merged).await, r#"["secret", "\u0000", 1, 1]"#);
}

/// Constraints and triggers of the owner see stored rows, and errors of the server quote values.
#[tokio::test]
async fn texts_of_constraint_and_trigger_errors_are_hidden_from_producers() {
    let roles = Roles::new().await;
    let add = roles.add_schema().quoted();
    run(
        &roles.owner,
        r#"select graphile_worker.add_job('t', '["secret"]', job_key := 'k');
           alter table graphile_worker._private_jobs
             add constraint short check (json_typeof(payload) <> 'array' or json_array_length(payload) < 2)"#,
    )
    .await;
    let producer = roles.client("producer").await;
    refusals(&producer, &calls(&add, "'[1]';'k'"), "23514").await;
    run(
        &roles.owner,
        "alter table graphile_worker._private_jobs drop constraint short;
         create function graphile_worker.cast_it() returns trigger language plpgsql as
           $$ begin perform (old.payload ->> 0)::integer; return new; end $$;
         create trigger cast_it before update on graphile_worker._private_jobs
           for each row execute function graphile_worker.cast_it()",
    )
    .await;
    refusals(&producer, &calls(&add, "'[1]';'k'"), "22P02").await;
    run(
        &roles.owner,
        "create or replace function graphile_worker.cast_it() returns trigger language plpgsql as
           $$ begin assert old.payload ->> 0 <> 'secret', 'secret'; return new; end $$",
    )
    .await;
    refusals(&producer, &calls(&add, "'[1]';'k'"), "P0004").await;
    run(
        &roles.owner,
        "create or replace function graphile_worker.cast_it() returns trigger language plpgsql as
           $$ begin raise exception 'not today' using detail = old.payload; end $$",
    )
    .await;
    for call in calls(&add, "'[1]';'k'") {
        let error = refusal(&producer, &call).await;
        assert_eq!((error.code().code(), error.message()), ("P0001", "not today"));
        assert_tells_nothing(&error);
    }
    // Not even if the producer asks for all messages of the server.
    run(&producer, "set client_min_messages = debug5; set debug_print_parse = on").await;
    refusals(&producer, &calls(&add, "'[1]';'k'"), "P0001").await;
}

#[tokio::test]
async fn errors_of_timeouts_locks_and_invalid_arguments_reveal_no_statement() {
    let roles = Roles::new().await;
    let add = roles.add_schema().quoted();
    run(&roles.owner, r#"select graphile_worker.add_job('t', '["secret"]', job_key := 'k')"#).await;
    run(&roles.owner, "begin; update graphile_worker._private_jobs set priority = 1").await;
    let producer = roles.client("producer").await;
    run(&producer, "set lock_timeout = '20ms'").await;
    refusals(&producer, &calls(&add, "'[1]';'k'"), "55P03").await;
    run(&producer, "set lock_timeout = 0; set statement_timeout = '20ms'").await;
    refusals(&producer, &calls(&add, "'[1]';'k'"), "57014").await;
    run(&producer, "reset statement_timeout").await;
    let waits_for = pid(&producer).await;
    let observer = roles.db.client().await;
    let cancel = async {
        wait_until_blocked(&observer, waits_for).await;
        run(&observer, &format!("select pg_cancel_backend({waits_for})")).await;
    };
    let call = format!("select {add}.add_job('t', job_key := 'k')");
    let (error, ()) = tokio::join!(refusal(&producer, &call), cancel);
    assert_eq!(error.code().code(), "57014");
    assert_tells_nothing(&error);
    run(&roles.owner, "rollback").await;

    // The producer's own mistakes are explained.
    for (arguments, code, word) in [
        (format!("'{}'", "x".repeat(129)), "GWBID", "129 characters"),
        ("null".to_owned(), "GWBID", "null"),
        ("'t', job_key := ''".to_owned(), "GWBJK", "empty"),
        ("'t', max_attempts := 0".to_owned(), "GWBMA", "max_attempts"),
        ("'t', priority := 99999".to_owned(), "22003", "priority"),
        ("'t', flags := array['a', null]".to_owned(), "22023", "flag"),
        ("'t', job_key := 'x', job_key_mode := 'y'".to_owned(), "GWBKM", "job_key_mode"),
    ] {
        let error = refusal(&producer, &format!("select {add}.add_job({arguments})")).await;
        assert_eq!(error.code().code(), code, "{arguments}");
        assert!(error.message().contains(word) && error.hint().is_some(), "{error:?}");
        assert_tells_nothing(&error);
    }
    let twice = "row('t', null, null, null, null, 'a', null, null)";
    let call = format!("select {add}.add_jobs(array[{twice}, {twice}]::{add}.job_spec[])");
    let error = refusal(&producer, &call).await;
    assert!(error.message().contains("job key 'a'"), "{error:?}");
    assert_tells_nothing(&error);
}

#[tokio::test]
async fn serialization_failures_of_adds_and_removals_reveal_no_statement() {
    let roles = Roles::new().await;
    let add = roles.add_schema().quoted();
    let grant = format!(
        "grant execute on function {add}.remove_job(text) to {}",
        quoted(&format!("{}_producer", roles.prefix))
    );
    run(&roles.owner, &grant).await;
    run(&roles.owner, r#"select graphile_worker.add_job('t', '["secret"]', job_key := 'k')"#).await;
    let producer = roles.client("producer").await;
    for call in [format!("{add}.add_job('t', job_key := 'k')"), format!("{add}.remove_job('k')")] {
        run(
            &producer,
            &format!("begin isolation level repeatable read; select count(*) from {add}.migrations"),
        )
        .await;
        run(&roles.owner, "update graphile_worker._private_jobs set priority = priority + 1").await;
        refusals(&producer, &[format!("select {call}")], "40001").await;
        run(&producer, "rollback").await;
    }
    assert_eq!(value(&roles.owner, "select count(*) from graphile_worker.jobs").await, "1");
}
