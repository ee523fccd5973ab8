//! Payloads that are large, deeply nested, or have extreme numbers: added in every way, and read by a task.

use std::sync::Arc;

use atta::{JobSpec, JobSpecBuilder, RawJobSpec};
use serde_json::value::RawValue;
use tokio::sync::Mutex;

use super::super::worker::support::options;
use super::support::Place;

/// Adds a payload in every way. Returns the ids, or the first error.
async fn add_everywhere(place: &Place, payload: &str) -> atta::Result<Vec<i64>> {
    let raw = || RawValue::from_string(payload.to_owned()).expect("JSON");
    let spec = |payload| RawJobSpec::new("t", payload, JobSpec::default());
    let utils = &place.utils;
    let mut ids = vec![utils.add_raw_job("t", raw(), JobSpec::default()).await?.id()];
    let keyed = JobSpecBuilder::new().job_key("k").build();
    ids.push(utils.add_raw_job("t", raw(), keyed).await?.id());
    ids.extend(utils.add_raw_jobs(&[spec(raw())?, spec(raw())?]).await?.iter().map(|job| job.id()));
    let small = || RawValue::from_string("{}".to_owned()).expect("JSON");
    let mut many = vec![spec(raw())?];
    for _ in 0..60 {
        many.push(spec(small())?);
    }
    ids.push(utils.add_raw_jobs(&many).await?[0].id());
    let sql = "select (graphile_worker.add_job('t', $1::text::json)).id";
    ids.push(place.client.query_one(sql, &[&payload]).await.expect("SQL takes what Rust can add").get(0));
    Ok(ids)
}

async fn assert_comes_through(payload: &str) {
    let place = Place::new().await;
    let ids = add_everywhere(&place, payload).await.expect("the payload is added");
    for id in &ids {
        assert!(place.payload(*id).await == payload, "job {id} has another payload");
        let job = place.utils.get_job(*id).await.expect("the job can be read").expect("the job is there");
        assert!(job.payload_json() == payload, "job {id} is read with another payload");
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let task = {
        let seen = seen.clone();
        move |ctx: atta::WorkerContext| {
            let seen = seen.clone();
            async move { seen.lock().await.push(ctx.job().payload_json().to_owned()) }
        }
    };
    let worker = options(&place.db).define_raw_job("t", task).init().await.expect("the worker starts");
    worker.run_once().await.expect("the worker ends well");
    assert_eq!(place.count().await, 0);
    let seen = seen.lock().await;
    assert_eq!(seen.iter().filter(|seen| *seen == payload).count(), ids.len());
}

#[tokio::test]
async fn ten_megabytes_come_through() {
    assert_comes_through(&format!("{{\"blob\":\"{}\"}}", "0123456789\\n".repeat(900_000))).await;
}

#[tokio::test]
async fn numbers_and_letters_that_no_type_has_come_through() {
    let digits = "9".repeat(5001);
    for payload in [&digits, "1e400", "[-1E-400000]", "\"\\u0000\"", "{\"\\ud800\":\"\\udc00\"}"] {
        assert_comes_through(payload).await;
    }
}

/// JSON as deep as the server's limit allows is accepted; deeper JSON is rejected with an error, and nothing is
/// written.
#[tokio::test]
async fn deeply_nested_json_is_accepted_or_rejected_with_an_error() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert_comes_through(&nested(1000)).await;
    let place = Place::new().await;
    let deep = RawValue::from_string(nested(100_000)).expect("JSON");
    let refused = place.utils.add_raw_job("t", &deep, JobSpec::default()).await.expect_err("it is too deep");
    assert_eq!(refused.db_code(), Some("54001"), "{refused}");
    assert!(refused.hint().is_some() && !refused.is_transient(), "{refused}");
    let good = RawJobSpec::new("t", 1, JobSpec::default()).expect("JSON");
    for count in [2, 60] {
        let mut jobs = vec![good.clone(); count];
        jobs[1] = RawJobSpec::new("t", &deep, JobSpec::default()).expect("JSON");
        assert_eq!(place.utils.add_raw_jobs(&jobs).await.expect_err("too deep").db_code(), Some("54001"));
        assert_eq!(place.utils.insert_raw_jobs(&jobs).await.expect_err("too deep").db_code(), Some("54001"));
    }
    assert_eq!(place.count().await, 0);
    place.utils.add_raw_job("t", 1, JobSpec::default()).await.expect("the connections still work");
}
