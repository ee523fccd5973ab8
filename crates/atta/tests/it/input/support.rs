//! Unusual values, and how many cases are tried.

use std::env;
use std::future::Future;

use atta::{Error, JobKeyMode, JobSpec, WorkerUtils};
use chrono::{DateTime, TimeDelta, Utc};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use testkit::Database;
use tokio::runtime::Runtime;
use tokio_postgres::Client;

/// A database for all cases of a property, and its connections.
pub(crate) struct Place {
    pub(crate) db: Database,
    pub(crate) utils: WorkerUtils,
    pub(crate) client: Client,
}

impl Place {
    pub(crate) async fn new() -> Place {
        let db = Database::migrated().await;
        let utils = WorkerUtils::connect(&db.url()).expect("the URL can be read");
        let client = db.client().await;
        Place { db, utils, client }
    }

    pub(crate) async fn count(&self) -> i64 {
        let sql = "select count(*) from graphile_worker._private_jobs";
        self.client.query_one(sql, &[]).await.expect("jobs are counted").get(0)
    }

    pub(crate) async fn clear(&self) {
        self.client
            .batch_execute("delete from graphile_worker._private_jobs")
            .await
            .expect("jobs are deleted");
    }

    pub(crate) async fn payload(&self, id: i64) -> String {
        let sql = "select payload::text from graphile_worker._private_jobs where id = $1";
        self.client.query_one(sql, &[&id]).await.expect("the job is there").get(0)
    }
}

/// Tries a property with `cases` values, or with the number in the environment. The table has no jobs at the start of
/// each case.
pub(crate) fn check<S: Strategy, F: Future<Output = Result<(), TestCaseError>>>(
    cases: u32,
    values: S,
    property: impl Fn(std::sync::Arc<Place>, S::Value) -> F,
) {
    let asked = env::var("ATTA_PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let config = Config {
        cases: asked.unwrap_or(cases),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let runtime = Runtime::new().expect("a runtime");
    let place = std::sync::Arc::new(runtime.block_on(Place::new()));
    let tried = TestRunner::new(config).run(&values, |value| {
        runtime.block_on(async {
            place.clear().await;
            match tokio::time::timeout(testkit::DEADLINE, property(place.clone(), value)).await {
                Ok(held) => held,
                Err(_) => Err(TestCaseError::fail("it hangs")),
            }
        })
    });
    if let Err(failure) = tried {
        panic!("{failure}");
    }
}

/// Checks that a user can act on the error: it names the field and has a hint, or has a code of the SQL API.
pub(crate) fn assert_clear(error: &Error, field: &str) -> Result<(), TestCaseError> {
    let text = error.to_string();
    prop_assert!(text.contains(field), "{field} is not in: {text}");
    prop_assert!(error.hint().is_some(), "no hint: {text}");
    prop_assert!(!error.is_transient(), "it is told to try again: {text}");
    Ok(())
}

/// Texts that are names, or nearly: at the length limits, empty, with NUL, quotes, placeholders, characters of every
/// length.
pub(crate) fn name(limit: usize) -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(ODD_TEXTS.to_vec()).prop_map(str::to_owned),
        2 => "\\PC{0,20}",
        1 => prop::collection::vec(any::<char>(), 0..20).prop_map(|chars| chars.into_iter().collect()),
        2 => (limit.saturating_sub(1)..limit + 2, prop::sample::select(vec!['x', 'ä', '😀', '\u{7f}']))
            .prop_map(|(length, letter)| letter.to_string().repeat(length)),
    ]
}

/// Texts that are known to cause trouble.
pub(crate) const ODD_TEXTS: [&str; 22] = [
    "",
    " ",
    "plain",
    "\0",
    "a\0b",
    "it's",
    "\"quoted\"",
    "back\\slash",
    "\\u0000",
    "{schema}",
    "$atta$",
    "$1",
    "%s %L",
    "a,b",
    "{a,\"b\"}",
    "null",
    "NULL",
    "line\nbreak\r\n\ttab",
    "\u{202e}right to left",
    "\u{feff}bom",
    "e\u{301}",
    "👩‍👩‍👧",
];

/// Times around all limits.
pub(crate) fn time() -> impl Strategy<Value = DateTime<Utc>> {
    let at = |text: &str| DateTime::parse_from_rfc3339(text).expect("a time").to_utc();
    let edges = vec![
        DateTime::<Utc>::MIN_UTC,
        DateTime::<Utc>::MAX_UTC,
        at("0001-01-01T00:00:00Z"),
        at("0001-01-01T00:00:00Z") - TimeDelta::microseconds(1),
        at("0000-01-01T00:00:00Z"),
        at("9999-12-31T00:00:00Z"),
        at("9999-12-31T00:00:00Z") + TimeDelta::microseconds(1),
        at("1970-01-01T00:00:00Z"),
        at("2000-01-01T00:00:00.123456789Z"),
        at("2016-12-31T23:59:60Z"),
        at("2026-03-29T02:30:00.999999999+01:00"),
    ];
    prop_oneof![
        3 => prop::sample::select(edges),
        1 => (-9_000_000_000_000_i64..9_000_000_000_000, 0..1_000_000_000_u32).prop_filter_map("no time", |(s, n)| {
            DateTime::from_timestamp(s, n)
        }),
        1 => Just(Utc::now()),
    ]
}

/// Whether the database can store such a time.
pub(crate) fn is_storable(time: DateTime<Utc>) -> bool {
    (-62_135_596_800..=253_402_214_400).contains(&time.timestamp()) && {
        let last = DateTime::from_timestamp(253_402_214_400, 0).expect("a time");
        time <= last
    }
}

pub(crate) fn small_number() -> impl Strategy<Value = i16> {
    prop_oneof![prop::sample::select(vec![i16::MIN, -1, 0, 1, 25, i16::MAX]), any::<i16>()]
}

/// Any spec, with valid and invalid fields.
pub(crate) fn spec() -> impl Strategy<Value = JobSpec> {
    let modes = vec![JobKeyMode::Replace, JobKeyMode::PreserveRunAt, JobKeyMode::UnsafeDedupe];
    (
        prop::option::weighted(0.3, name(128)),
        prop::option::weighted(0.3, time()),
        prop::option::weighted(0.3, small_number()),
        prop::option::weighted(0.3, name(512)),
        prop::option::weighted(0.3, prop::sample::select(modes)),
        prop::option::weighted(0.3, small_number()),
        prop::option::weighted(0.3, prop::collection::vec(name(20), 0..4)),
    )
        .prop_map(|(queue_name, run_at, max_attempts, job_key, job_key_mode, priority, flags)| JobSpec {
            queue_name,
            run_at,
            max_attempts,
            job_key,
            job_key_mode,
            priority,
            flags,
            ..JobSpec::default()
        })
}

/// A part of the error with which an add of this job must fail; none if it must succeed.
pub(crate) fn expected_refusal(identifier: &str, spec: &JobSpec) -> Option<&'static str> {
    let is_nul = |text: &str| text.contains('\0');
    let is_long = |text: &str, most: usize| text.chars().count() > most;
    let queue = spec.queue_name.as_deref().unwrap_or_default();
    let key = spec.job_key.as_deref();
    if is_nul(identifier) {
        Some("identifier")
    } else if is_nul(queue) {
        Some("queue_name")
    } else if key.is_some_and(is_nul) {
        Some("job_key")
    } else if spec.flags.iter().flatten().any(|flag| is_nul(flag)) {
        Some("flags")
    } else if spec.run_at.is_some_and(|time| !is_storable(time)) {
        Some("run_at")
    } else if is_long(identifier, 128) {
        Some("task identifier")
    } else if is_long(queue, 128) {
        Some("queue name")
    } else if spec.max_attempts.is_some_and(|count| count < 1) {
        Some("max_attempts")
    } else if key.is_some_and(|key| key.is_empty() || is_long(key, 512)) {
        Some("job key")
    } else {
        None
    }
}

/// JSON texts that PostgreSQL can store, including unusual ones.
pub(crate) fn json_text() -> impl Strategy<Value = String> {
    let odd = [
        "null",
        "{}",
        "[]",
        "\"\"",
        "true",
        "-0.0",
        "1e400",
        "-1e-400",
        "1E+400000",
        "\"\\u0000\"",
        "{\"a\":\"x\\u0000y\"}",
        "\"\\ud800\"",
        "{\"\\udc00\":1}",
        "\"\\ud83d\\ude00\"",
        "{\"a\":1,\"a\":2}",
        "[ 1 ,\n2 ]",
        "\"\u{7f}\u{80}\u{2028}😀\"",
        "[[[[[[]]]]]]",
        "\"\\\\u0000\"",
    ];
    let long_number = "9".repeat(5001);
    let nested = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let mut odd: Vec<String> = odd.into_iter().map(str::to_owned).collect();
    odd.extend([long_number, nested]);
    prop_oneof![
        3 => prop::sample::select(odd),
        1 => "\\PC{0,30}".prop_map(|text| serde_json::Value::String(text).to_string()),
    ]
}
