//! The SQL functions, called with literals of any kind, and with bytes that are not text.

use std::error::Error as StdError;

use bytes::BytesMut;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use testkit::Database;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::support::check;

/// Literals of every type that the functions accept, and of some that they do not.
const TEXTS: [&str; 13] = [
    "null",
    "''",
    "'t'",
    "'it''s'",
    "E'\\n'",
    "repeat('x', 128)",
    "repeat('ä', 129)",
    "repeat('z', 513)",
    "chr(1)",
    "chr(0)",
    "'\u{202e}'",
    "'a,b{}\"'",
    "convert_from('\\xff', 'UTF8')",
];
const NUMBERS: [&str; 14] = [
    "null",
    "0",
    "1",
    "-1",
    "25",
    "32767",
    "32768",
    "-32769",
    "2147483647",
    "2147483648",
    "-9999999999999999999",
    "1e400",
    "'NaN'::numeric",
    "1.5",
];
const TIMES: [&str; 11] = [
    "null",
    "now()",
    "'infinity'",
    "'-infinity'",
    "'294276-12-31 23:59:59.999999Z'",
    "'294277-01-01Z'",
    "'4714-11-24 00:00:00Z BC'",
    "'4715-01-01Z BC'",
    "'0001-01-01 BC'",
    "'2026-13-01'",
    "'yesterday'",
];
const JSONS: [&str; 14] = [
    "null",
    "'null'",
    "'{}'",
    "'[1]'",
    "'{'",
    "''",
    "'\"\\u0000\"'",
    "'\"\\ud800\"'",
    "'1e400000'",
    "'[\"\\u0000\"]'",
    "repeat('9', 5001)::json",
    "(repeat('[', 100000) || repeat(']', 100000))::json",
    "('\"' || repeat('x', 1000000) || '\"')::json",
    "'{\"a\":1,\"a\":2}'",
];
const FLAGS: [&str; 6] = [
    "null",
    "'{}'",
    "array['a', 'a']",
    "array[null]::text[]",
    "array[['a'], ['b']]",
    "array[repeat('f', 10000)]",
];
const IDS: [&str; 9] = [
    "null",
    "'{}'",
    "array[1]",
    "array[null]::bigint[]",
    "array[-9223372036854775808]",
    "array[9223372036854775808]",
    "'{99999999999999999999}'",
    "array[[1], [2]]",
    "array[1.5]",
];
const MODES: [&str; 6] = ["null", "'replace'", "'preserve_run_at'", "'unsafe_dedupe'", "'bogus'", "''"];

fn one(literals: &'static [&'static str]) -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(literals)
}

/// Calls of the functions that add jobs, in this schema.
fn adding(schema: &'static str) -> impl Strategy<Value = String> {
    let job = (
        one(&TEXTS),
        one(&JSONS),
        one(&TEXTS),
        one(&TIMES),
        one(&NUMBERS),
        one(&TEXTS),
        one(&NUMBERS),
        one(&FLAGS),
        one(&MODES),
    );
    let add_job = job.clone().prop_map(|(name, payload, queue, run_at, attempts, key, priority, flags, mode)| {
        format!("add_job({name}, {payload}, {queue}, {run_at}, {attempts}, {key}, {priority}, {flags}, {mode})")
    });
    let row = job.prop_map(move |(name, payload, queue, run_at, attempts, key, priority, flags, _)| {
        format!("row({name}, {payload}, {queue}, {run_at}, {attempts}, {key}, {priority}, {flags})::{schema}.job_spec")
    });
    let good = Just(format!("row('good',null,null,null,null,null,null,null)::{schema}.job_spec"));
    let rows = prop::collection::vec(prop_oneof![2 => good, 1 => row], 0..4);
    let add_jobs =
        (rows, prop::sample::select(vec!["null", "true", "false"])).prop_map(move |(rows, preserve)| {
            format!("add_jobs(array[{}]::{schema}.job_spec[], {preserve})", rows.join(", "))
        });
    prop_oneof![4 => add_job, 3 => add_jobs]
}

/// Calls of every function.
fn call() -> impl Strategy<Value = String> {
    prop_oneof![
        7 => adding("graphile_worker"),
        1 => one(&TEXTS).prop_map(|key| format!("remove_job({key})")),
        1 => one(&IDS).prop_map(|ids| format!("complete_jobs({ids})")),
        1 => (one(&IDS), one(&TEXTS)).prop_map(|(ids, text)| format!("permanently_fail_jobs({ids}, {text})")),
        2 => (one(&IDS), one(&TIMES), one(&NUMBERS), one(&NUMBERS), one(&NUMBERS)).prop_map(
            |(ids, time, priority, attempts, most)| format!("reschedule_jobs({ids}, {time}, {priority}, {attempts}, {most})")
        ),
        1 => one(&FLAGS).prop_map(|names| format!("force_unlock_workers({names})")),
    ]
}

/// Whether the server may return this code for given values: data, constraints, types that do not match, limits, and
/// our own codes.
fn is_about_values(code: &str) -> bool {
    ["22", "23", "54", "GWB"].iter().any(|class| code.starts_with(class))
        || ["0A000", "21000", "42804", "42846", "42883"].contains(&code)
}

/// Over the simple protocol, where everything is text.
#[test]
fn a_call_succeeds_or_changes_nothing() {
    let calls = prop::collection::vec(call(), 1..8);
    check(25, calls, |place, calls| async move {
        place
            .client
            .batch_execute("alter sequence graphile_worker.jobs_id_seq1 restart")
            .await
            .expect("ids begin with 1");
        for call in calls {
            let before = place.count().await;
            let called = place.client.simple_query(&format!("select * from graphile_worker.{call}")).await;
            if let Err(error) = called {
                let Some(error) = error.as_db_error() else {
                    return Err(TestCaseError::fail(format!("{error}: {call}")));
                };
                prop_assert!(is_about_values(error.code().code()), "{error:?}: {call}");
                prop_assert_eq!(place.count().await, before, "{}", call);
            }
            // All remaining jobs can be read.
            let read = place.utils.list_jobs(&atta::JobFilter::default()).await;
            prop_assert!(read.is_ok(), "{read:?} after {call}");
        }
        Ok(())
    });
}

/// The functions of the producer role, called by that role.
#[test]
fn a_producers_call_succeeds_or_changes_nothing() {
    let remove = one(&TEXTS).prop_map(|key| format!("remove_job({key})"));
    let calls = prop::collection::vec(prop_oneof![7 => adding("odd_add"), 1 => remove], 1..8);
    check(15, calls, |place, calls| async move {
        let roles = atta::roles_sql(&atta::Schema::default(), "odd").expect("a prefix for roles");
        let grant = "grant execute on function odd_add.remove_job(text) to odd_producer";
        place.client.batch_execute(&format!("{roles}; {grant}")).await.expect("the roles are made");
        for call in calls {
            let before = place.count().await;
            let sql = format!("set role odd_producer; select * from odd_add.{call}");
            let called = place.client.simple_query(&sql).await;
            place.client.batch_execute("reset role").await.expect("we are ourselves again");
            if let Err(error) = called {
                let Some(error) = error.as_db_error() else {
                    return Err(TestCaseError::fail(format!("{error}: {call}")));
                };
                prop_assert!(is_about_values(error.code().code()), "{error:?}: {call}");
                prop_assert_eq!(place.count().await, before, "{}", call);
            }
        }
        Ok(())
    });
}

/// Bytes in place of a text, without the checks of a driver.
#[derive(Debug)]
struct Bytes(&'static [u8]);

impl ToSql for Bytes {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.extend_from_slice(self.0);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused_by_every_function() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let calls = [
        "add_job($1)",
        "add_job('t', payload := $1::text::json)",
        "add_job('t', queue_name := $1)",
        "add_job('t', job_key := $1)",
        "add_job('t', flags := array[$1])",
        "add_job('t', job_key := 'k', job_key_mode := $1)",
        "add_jobs(array[row($1,null,null,null,null,null,null,null)::graphile_worker.job_spec])",
        "remove_job($1)",
        "permanently_fail_jobs('{1}', $1)",
        "force_unlock_workers(array[$1])",
    ];
    for call in calls {
        for bytes in [&b"\xff"[..], b"a\0b", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"] {
            let sql = format!("select * from graphile_worker.{call}");
            let refused = client.query_typed(&sql, &[(&Bytes(bytes), Type::TEXT)]).await.unwrap_err();
            assert_eq!(refused.code().map(|code| code.code()), Some("22021"), "{call}: {refused:?}");
        }
    }
    let count: i64 = client.query_one("select count(*) from graphile_worker.jobs", &[]).await.unwrap().get(0);
    assert_eq!(count, 0);
}
