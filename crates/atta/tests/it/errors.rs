//! What an `Error` answers, and errors that other crates create for their own connections.

use atta::{AddJobs, Error, JobSpec, JobSpecBuilder, WorkerUtils};
use serde_json::json;
use testkit::Database;
use tokio_postgres::types::Type;

/// A connection of an application, for which this crate has no adapter.
struct OwnConnection(tokio_postgres::Client);

impl AddJobs for OwnConnection {
    async fn query_text(&mut self, sql: &str, argument: String) -> atta::Result<Vec<String>> {
        let rows = self.0.query_typed(sql, &[(&argument, Type::TEXT)]).await.map_err(|error| {
            let code = error.code().map(|code| code.code().to_owned());
            let error = Error::driver("adding jobs through a connection of the application", error);
            match code {
                Some(code) => error.with_db_code(code),
                None => error.with_lost_connection(),
            }
        })?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

#[tokio::test]
async fn a_connection_of_another_crate_adds_jobs_and_reports_its_errors() {
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let mut connection = OwnConnection(db.client().await);
    utils.add_raw_job_in(&mut connection, "hello", json!({}), JobSpec::default()).await.unwrap();
    assert_eq!(utils.count_jobs().await.unwrap().total(), 1);

    let invalid = JobSpecBuilder::new().max_attempts(0);
    let refused = utils.add_raw_job_in(&mut connection, "hello", json!({}), invalid).await.unwrap_err();
    assert_eq!(refused.db_code(), Some("GWBMA"), "{refused:?}");
    assert!(refused.is_invalid_input() && !refused.is_config() && !refused.is_transient(), "{refused:?}");
    assert!(refused.driver_error().is_some_and(|error| error.is::<tokio_postgres::Error>()));

    let end_own_session = "select pg_terminate_backend(pg_backend_pid())";
    assert!(connection.0.batch_execute(end_own_session).await.is_err());
    let lost = utils.add_raw_job_in(&mut connection, "hello", json!({}), JobSpec::default()).await;
    assert!(lost.as_ref().unwrap_err().is_transient(), "{lost:?}");
}

#[tokio::test]
async fn a_payload_of_another_type_is_not_a_configuration_error() {
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let job = utils.add_raw_job("hello", json!({ "n": "three" }), JobSpec::default()).await.unwrap();
    let error = job.payload::<Vec<u8>>().unwrap_err();
    assert!(error.is_payload() && !error.is_config() && !error.is_invalid_input(), "{error:?}");
}

#[tokio::test]
async fn a_missing_schema_is_a_configuration_error() {
    let db = Database::empty().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let error = utils.add_raw_job("hello", json!({}), JobSpec::default()).await.unwrap_err();
    assert!(error.is_config() && !error.is_transient(), "{error:?}");
    assert!(error.hint().unwrap().contains("atta migrate"), "{error}");
}

#[tokio::test]
async fn the_text_of_a_refusal_is_not_repeated_by_its_sources() {
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let too_long = "x".repeat(129);
    let error = utils.add_raw_job(too_long, json!({}), JobSpec::default()).await.unwrap_err();
    let reported = format!("{:#}", anyhow::Error::new(error));
    assert_eq!(reported.matches("129 characters").count(), 1, "{reported}");
    assert_eq!(reported.matches("GWBID").count(), 1, "{reported}");
}
