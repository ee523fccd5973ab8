//! What is rejected, with which code, and that values right at the limits are accepted.

use atta::{JobSpecBuilder, RawJobSpec, WorkerUtils};
use testkit::Database;
use tokio_postgres::Client;
use tokio_postgres::error::DbError;

use super::support::{add, add_all, all_jobs, names, refusal, refused_add, spec_array, value};

/// The code, a part of the message that names the given value, and a part of the hint that names the limit.
fn assert_refused(error: &DbError, code: &str, given: &str, allowed: &str) {
    assert_eq!(error.code().code(), code, "{error}");
    assert!(error.message().contains(given), "{given} in: {error}");
    assert!(error.hint().unwrap_or_default().contains(allowed), "{allowed} in the hint of: {error:?}");
}

/// Checks the same invalid spec in a call of `add_job` in each mode, and as the second job of a batch.
async fn assert_refused_everywhere(
    client: &Client,
    wrong: &str,
    spec: &str,
    code: &str,
    given: &str,
    allowed: &str,
) {
    for mode in ["'replace'", "'preserve_run_at'", "'unsafe_dedupe'", "null"] {
        let error = refused_add(client, &format!("{wrong}, job_key_mode := {mode}")).await;
        assert_refused(&error, code, given, allowed);
    }
    let specs = spec_array(&["'t',null,null,null,null,null,null,null", spec]);
    let error = refusal(client, &format!("select graphile_worker.add_jobs({specs})")).await;
    assert_refused(&error, code, given, allowed);
    assert_eq!(all_jobs(client).await, []);
}

#[tokio::test]
async fn a_long_task_identifier_is_gwbid() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let long = "repeat('x', 129)";
    let spec = format!("{long},null,null,null,null,null,null,null");
    assert_refused_everywhere(&client, long, &spec, "GWBID", "129 characters", "128").await;
    let keyed = format!("{long}, job_key := 'k'");
    assert_refused_everywhere(&client, &keyed, &spec, "GWBID", "xxxxxx", "128").await;
}

#[tokio::test]
async fn a_long_queue_name_is_gwbqn() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let spec = "'t',null,repeat('y', 130),null,null,null,null,null";
    let wrong = "'t', queue_name := repeat('y', 130)";
    assert_refused_everywhere(&client, wrong, spec, "GWBQN", "130 characters", "128").await;
}

#[tokio::test]
async fn a_long_or_empty_job_key_is_gwbjk() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let spec = "'t',null,null,null,null,repeat('z', 513),null,null";
    let wrong = "'t', job_key := repeat('z', 513)";
    assert_refused_everywhere(&client, wrong, spec, "GWBJK", "513 characters", "512").await;
    let spec = "'t',null,null,null,null,'',null,null";
    assert_refused_everywhere(&client, "'t', job_key := ''", spec, "GWBJK", "empty", "1 to 512").await;
}

#[tokio::test]
async fn fewer_than_one_attempt_is_gwbma() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for attempts in ["0", "-1", "-32768"] {
        let spec = format!("'t',null,null,null,{attempts},null,null,null");
        for key in ["null", "'k'"] {
            let wrong = format!("'t', max_attempts := {attempts}, job_key := {key}");
            assert_refused_everywhere(&client, &wrong, &spec, "GWBMA", attempts, "At least 1").await;
        }
    }
}

#[tokio::test]
async fn an_unknown_mode_is_gwbkm_with_a_key_and_of_no_concern_without() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for mode in ["bogus", "REPLACE", ""] {
        let error = refused_add(&client, &format!("'t', job_key := 'k', job_key_mode := '{mode}'")).await;
        assert_refused(&error, "GWBKM", &format!("'{mode}'"), "'preserve_run_at'");
    }
    add(&client, "'t', job_key_mode := 'bogus'").await;
}

#[tokio::test]
async fn numbers_beyond_smallint_are_22003() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for wrong in [
        "max_attempts := 32768",
        "max_attempts := -32769",
        "max_attempts := -2147483648",
        "priority := 32768",
        "priority := -32769",
    ] {
        let given = wrong.rsplit(' ').next().unwrap();
        for key in ["null", "'k'"] {
            let error = refused_add(&client, &format!("'t', {wrong}, job_key := {key}")).await;
            assert_refused(&error, "22003", given, "32767");
        }
    }
    let specs = "row('t',null,null,null,32768,null,null,null)::graphile_worker.job_spec";
    let error = refusal(&client, &format!("select graphile_worker.add_jobs(array[{specs}])")).await;
    assert_eq!(error.code().code(), "22003");
}

#[tokio::test]
async fn a_null_among_the_flags_is_22023() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for key in ["null", "'k'"] {
        let error = refused_add(&client, &format!("'t', job_key := {key}, flags := array['f', null]")).await;
        assert_eq!(error.code().code(), "22023");
    }
}

/// Workers read the flags of every job, so a flag of hundreds of megabytes would stop all of them.
#[tokio::test]
async fn flags_of_more_than_65536_bytes_are_refused() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for flags in ["array[repeat('x', 65537)]", "array[repeat('x', 40000), repeat('y', 30000)]"] {
        for key in ["null", "'k'"] {
            let error = refused_add(&client, &format!("'t', job_key := {key}, flags := {flags}")).await;
            assert_refused(&error, "22023", "bytes", "65,536");
        }
    }
    client
        .batch_execute("select graphile_worker.add_job('t', flags := array[repeat('x', 65536)])")
        .await
        .unwrap();
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let spec = JobSpecBuilder::new().flags(vec!["x".repeat(40_000), "y".repeat(30_000)]).build();
    let jobs = [RawJobSpec::new("t", (), spec).unwrap()];
    let error = utils.insert_raw_jobs(&jobs).await.unwrap_err();
    assert!(error.to_string().contains("65,536"), "{error}");
}

#[tokio::test]
async fn a_null_task_identifier_is_rejected_with_a_documented_code() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for rest in ["", ", job_key := 'k'", ", job_key := 'k', job_key_mode := 'unsafe_dedupe'"] {
        let error = refused_add(&client, &format!("null{rest}")).await;
        assert_refused(&error, "GWBID", "null", "128");
    }
    for specs in [
        "null",
        "null, row('t',null,null,null,null,null,null,null)",
        "row(null,null,null,null,null,'k',null,null)",
    ] {
        let add = format!("select graphile_worker.add_jobs(array[{specs}]::graphile_worker.job_spec[])");
        assert_refused(&refusal(&client, &add).await, "GWBID", "null", "128");
    }
    assert_eq!(value(&client, "select count(*) from graphile_worker.jobs").await, "0");
}

#[tokio::test]
async fn empty_names_are_names() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for rest in ["", ", job_key := 'k'"] {
        let job = add(&client, &format!("'', queue_name := ''{rest}")).await;
        assert_eq!(names(&client, &job).await, (String::new(), Some(String::new())));
    }
}

#[tokio::test]
async fn the_longest_and_largest_are_accepted_and_lengths_are_in_characters() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let longest = "repeat('ä', 128), null, repeat('ö', 128), null, 32767, repeat('ü', 512), 32767";
    let job = add(&client, longest).await;
    assert_eq!(job.key.unwrap().chars().count(), 512);
    assert_eq!((job.max_attempts, job.priority), (32767, 32767));
    let least = add(&client, "'t', max_attempts := 1, priority := -32768, job_key := '1'").await;
    assert_eq!((least.max_attempts, least.priority), (1, -32768));
    let batch =
        add_all(&client, &["repeat('ä', 128),null,repeat('ö', 128),null,1,repeat('x', 512),-32768,null"])
            .await;
    assert_eq!((batch[0].max_attempts, batch[0].priority), (1, -32768));
}
