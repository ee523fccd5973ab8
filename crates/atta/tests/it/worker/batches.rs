//! Batch tasks: one job, many items.

use atta::{BatchTaskHandler, Claims, IntoBatchResult, Job, JobSpec, TaskError, WorkerContext, WorkerUtils};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use testkit::Database;

use super::support::options;

#[derive(Serialize, Deserialize)]
struct Item {
    id: u32,
    fate: String,
}

impl BatchTaskHandler for Item {
    const IDENTIFIER: &'static str = "items";

    async fn run_batch(items: Vec<Item>, _ctx: WorkerContext) -> impl IntoBatchResult {
        items
            .iter()
            .map(|item| match item.fate.as_str() {
                "good" => Ok(()),
                "dead" => Err(TaskError::new("dead").give_up()),
                other => Err(TaskError::new(format!("{other} {}", item.id))),
            })
            .collect::<Vec<_>>()
    }
}

async fn run(payload: &str) -> (Option<Job>, Option<String>) {
    run_in(&Database::migrated().await, Claims::default(), payload).await
}

/// Adds a job with this payload, and runs it once. Returns what is left of it.
async fn run_in(db: &Database, claims: Claims, payload: &str) -> (Option<Job>, Option<String>) {
    let worker = options(db).claims(claims).define_batch_job::<Item>().init().await.unwrap();
    let utils = worker.create_utils();
    let payload: Box<RawValue> = serde_json::from_str(payload).unwrap();
    let id = utils.add_raw_job("items", payload, JobSpec::default()).await.unwrap().id();
    worker.run_once().await.unwrap();
    let job = utils.get_job(id).await.unwrap();
    let payload = job.as_ref().map(|job| job.payload_json().to_owned());
    (job, payload)
}

#[tokio::test]
async fn only_the_failed_items_are_left_in_order_and_to_the_letter() {
    let (job, payload) = run(
        r#"[{"id":1,"fate":"good"}, {"id":2,  "fate":"bad", "big": 1e400}, {"fate":"good","id":3},{"id":4,"fate":"sad"}]"#,
    )
    .await;
    assert_eq!(payload.unwrap(), r#"[{"id":2,  "fate":"bad", "big": 1e400},{"id":4,"fate":"sad"}]"#);
    let job = job.unwrap();
    assert_eq!(job.last_error(), Some("Batch failures:\nbad 2\nsad 4"));
    assert!(!job.is_permanently_failed());
}

#[tokio::test]
async fn a_batch_without_failed_items_succeeds() {
    assert!(run(r#"[{"id":1,"fate":"good"}]"#).await.0.is_none());
    assert!(run("[]").await.0.is_none());
}

#[tokio::test]
async fn a_job_is_given_up_when_all_its_failed_items_are() {
    let (job, _) = run(r#"[{"id":1,"fate":"dead"},{"id":2,"fate":"good"}]"#).await;
    assert!(job.unwrap().is_permanently_failed());
    let (job, _) = run(r#"[{"id":1,"fate":"dead"},{"id":2,"fate":"bad"}]"#).await;
    assert!(!job.unwrap().is_permanently_failed());
}

#[tokio::test]
async fn a_payload_that_can_not_be_decoded_is_a_failure_with_the_reason() {
    let (job, payload) = run(r#"{"id": 1}"#).await;
    assert_eq!(payload.unwrap(), r#"{"id": 1}"#);
    let error = job.unwrap().last_error().unwrap().to_owned();
    assert!(error.starts_with("the payload can't be decoded as "), "{error}");
    assert!(error.contains("the type of task items: "), "{error}");
}

/// An error with characters that the database lacks does not keep it from storing which items are left.
#[tokio::test]
async fn items_that_succeeded_do_not_run_again_if_an_error_has_characters_that_the_database_lacks() {
    let db = Database::encoded("LATIN1").await;
    WorkerUtils::connect(&db.url()).unwrap().migrate().await.unwrap();
    for claims in [Claims::Held, Claims::Durable] {
        let items = r#"[{"id":1,"fate":"good"},{"id":2,"fate":"né \u20ac \u0142"}]"#;
        let (job, payload) = run_in(&db, claims, items).await;
        assert_eq!(payload.unwrap(), r#"[{"id":2,"fate":"né \u20ac \u0142"}]"#);
        assert_eq!(job.unwrap().last_error(), Some("Batch failures:\nné ? ? 2"));
    }
}
