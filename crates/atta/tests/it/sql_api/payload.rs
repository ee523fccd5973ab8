//! Payloads: which are stored unchanged, which are merged, and unusual ones.

use testkit::Database;
use tokio_postgres::Client;

use super::support::{add, add_all, job};

/// Adds a second payload over a first one, and returns the stored result.
async fn merged(client: &Client, first: &str, second: &str, mode: &str) -> String {
    let key = format!("job_key := '{}', job_key_mode := '{mode}'", fastrand::u64(..));
    add(client, &format!("'t', '{first}', {key}")).await;
    add(client, &format!("'t', '{second}', {key}")).await.payload
}

#[tokio::test]
async fn no_payload_is_an_empty_object_and_json_null_stays_null() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for key in ["null", "'k'"] {
        assert_eq!(add(&client, &format!("'t', null, job_key := {key}")).await.payload, "{}");
        assert_eq!(add(&client, &format!("'t', 'null', job_key := {key}")).await.payload, "null");
    }
}

#[tokio::test]
async fn the_text_of_a_payload_is_stored_unchanged() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let odd = [
        "{\"b\":1, \"a\" : 1e2,\n\"b\":\t[ ]}",
        "12345678901234567890123456789.000000000000000000000000000010",
        "1e400000",
        "-0.0",
        "\"\\u00e4\\u0000\\ud83d\\ude00 \\/\"",
        "\"\\ud800\"",
        "\"ä 😀\"",
        "[ 1,2 ]",
        "[]",
        "true",
        "\"\"",
        "  {}  ",
    ];
    for text in odd {
        assert_eq!(add(&client, &format!("'t', '{text}'")).await.payload, text);
        let keyed = format!("'t', '{text}', job_key := 'k'");
        assert_eq!(add(&client, &keyed).await.payload, text);
        client.execute("delete from graphile_worker._private_jobs", &[]).await.unwrap();
        let dedupe = format!("{keyed}, job_key_mode := 'unsafe_dedupe'");
        assert_eq!(add(&client, &dedupe).await.payload, text);
        client.execute("delete from graphile_worker._private_jobs", &[]).await.unwrap();
        let batch = add_all(&client, &[&format!("'t','{text}',null,null,null,null,null,null")]).await;
        assert_eq!(batch[0].payload, text);
    }
}

#[tokio::test]
async fn a_payload_of_a_megabyte_is_stored_unchanged() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let text = format!("{{\"blob\": \"{}\"}}", "0123456789abcdef".repeat(1 << 16));
    for key in ["null", "'k'"] {
        let sql = format!("select id from graphile_worker.add_job('t', $1::text::json, job_key := {key})");
        let id: i64 = client.query_one(&sql, &[&text]).await.unwrap().get(0);
        let stored = job(&client, id).await.unwrap().payload;
        assert!(stored == text, "{} bytes instead of {}", stored.len(), text.len());
    }
}

#[tokio::test]
async fn two_arrays_are_joined_and_normalised() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for mode in ["replace", "preserve_run_at"] {
        let joined = merged(&client, "[1e2, {\"b\":1,\"a\":2,\"b\":3}]", "[ \"x\" , [1]]", mode).await;
        assert_eq!(joined, "[100, {\"a\": 2, \"b\": 3}, \"x\", [1]]");
        assert_eq!(merged(&client, "[]", "[1]", mode).await, "[1]");
        assert_eq!(merged(&client, "[1]", "[]", mode).await, "[1]");
        let long = "12345678901234567890.123456789012345678901234567890";
        assert_eq!(merged(&client, &format!("[{long}]"), "[]", mode).await, format!("[{long}]"));
    }
}

#[tokio::test]
async fn payloads_that_are_not_two_arrays_are_replaced() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for mode in ["replace", "preserve_run_at"] {
        assert_eq!(merged(&client, "[1]", "{ \"a\":1e2 }", mode).await, "{ \"a\":1e2 }");
        assert_eq!(merged(&client, "{\"a\": 1}", "[ 1e2 ]", mode).await, "[ 1e2 ]");
        assert_eq!(merged(&client, "{\"a\": 1}", "{\"b\":  2}", mode).await, "{\"b\":  2}");
        assert_eq!(merged(&client, "[1]", "null", mode).await, "null");
        assert_eq!(merged(&client, "\"[1]\"", "[2]", mode).await, "[2]");
    }
}

#[tokio::test]
async fn no_payload_over_an_array_replaces_it_with_an_empty_object() {
    let db = Database::migrated().await;
    let client = db.client().await;
    add(&client, "'t', '[1]', job_key := 'k'").await;
    assert_eq!(add(&client, "'t', job_key := 'k'").await.payload, "{}");
}

#[tokio::test]
async fn unsafe_dedupe_merges_nothing() {
    let db = Database::migrated().await;
    let client = db.client().await;
    assert_eq!(merged(&client, "[ 1 ]", "[2]", "unsafe_dedupe").await, "[ 1 ]");
}

#[tokio::test]
async fn arrays_of_a_running_or_failed_job_are_not_carried_over() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for state in ["locked_at = now(), locked_by = 'pool-1'", "attempts = max_attempts"] {
        let old = add(&client, "'t', '[1]', job_key := 'k'").await;
        let sql = format!("update graphile_worker._private_jobs set {state} where id = $1");
        client.execute(&sql, &[&old.id]).await.unwrap();
        assert_eq!(add(&client, "'t', '[2]', job_key := 'k'").await.payload, "[2]");
        assert_eq!(job(&client, old.id).await.unwrap().payload, "[1]");
        client.execute("delete from graphile_worker._private_jobs", &[]).await.unwrap();
    }
}

/// `jsonb` has no NUL character, no lone surrogate and no huge number: such arrays are joined as texts.
#[tokio::test]
async fn arrays_that_jsonb_rejects_are_merged_as_text() {
    let db = Database::migrated().await;
    join_odd_arrays(&db.client().await).await;
}

/// `jsonb` also has no characters that the encoding of the database lacks.
#[tokio::test]
async fn arrays_with_characters_that_the_database_lacks_are_merged() {
    let db = Database::encoded("LATIN1").await;
    let mut client = db.client().await;
    atta::migrate(&mut client, &atta::Schema::default()).await.unwrap();
    join_odd_arrays(&client).await;
}

async fn join_odd_arrays(client: &Client) {
    let long = format!("\"{}\"", "x".repeat(200_000));
    for odd in ["\"\\u0000\"", "\"\\ud800\"", "1e400000", "\"\\ud83d\\ude00 é\"", "\"]\"", &long] {
        for mode in ["replace", "preserve_run_at"] {
            let both = merged(client, &format!("[{odd}]"), "\n[1] ", mode).await;
            assert_eq!(both.trim_end(), format!("[{odd}, 1]"));
            let turned = merged(client, " [1]\t", &format!("[ {odd}]"), mode).await;
            assert!([format!("[1, {odd}]"), format!(" [1,  {odd}]")].contains(&turned), "{turned}");
            assert_eq!(merged(client, &format!("[{odd}]"), "[ ]", mode).await, format!("[{odd}]"));
            assert_eq!(merged(client, "[ ]", &format!("[{odd}]"), mode).await, format!("[{odd}]"));
        }
    }
}
