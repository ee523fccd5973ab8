//! Every way to add a job, with unusual names, numbers and times.

use atta::{
    BatchTaskHandler, IntoBatchResult, IntoTaskHandlerResult, Job, JobKeyMode, JobSpec, JobSpecBuilder,
    RawJobSpec, TaskHandler, WorkerContext,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::support::{Place, assert_clear, check, expected_refusal, json_text, name, spec};

/// Whether the job has the given values.
fn assert_as_given(job: &Job, identifier: &str, payload: &str, spec: &JobSpec) -> Result<(), TestCaseError> {
    prop_assert_eq!(job.task_identifier(), identifier);
    prop_assert_eq!(job.queue_name(), spec.queue_name.as_deref());
    prop_assert_eq!(job.key(), spec.job_key.as_deref());
    prop_assert_eq!(job.payload_json(), payload);
    prop_assert_eq!(job.priority(), spec.priority.unwrap_or(0));
    prop_assert_eq!(job.max_attempts(), spec.max_attempts.unwrap_or(25));
    if let Some(run_at) = spec.run_at {
        // A leap second is stored as the second after it.
        prop_assert_eq!(job.run_at().timestamp_micros(), run_at.timestamp_micros());
    }
    let mut flags = spec.flags.clone().unwrap_or_default();
    flags.sort_unstable();
    flags.dedup();
    prop_assert_eq!(job.flags(), flags);
    Ok(())
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).expect("JSON")
}

async fn assert_stored(place: &Place, job: &Job) -> Result<(), TestCaseError> {
    let stored =
        place.utils.get_job(job.id()).await.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let Some(stored) = stored else { return Err(TestCaseError::fail("the job is not there")) };
    prop_assert_eq!(
        format!("{:?}", (stored.payload_json(), stored.run_at(), stored.flags(), stored.key())),
        format!("{:?}", (job.payload_json(), job.run_at(), job.flags(), job.key()))
    );
    prop_assert_eq!(
        (stored.task_identifier(), stored.queue_name()),
        (job.task_identifier(), job.queue_name())
    );
    Ok(())
}

#[test]
fn one_job_is_added_unchanged_or_rejected_with_the_invalid_field() {
    check(60, (name(128), json_text(), spec()), |place, (identifier, payload, spec)| async move {
        let added = place.utils.add_raw_job(identifier.as_str(), raw(&payload), spec.clone()).await;
        match (added, expected_refusal(&identifier, &spec)) {
            (Ok(job), None) => {
                assert_as_given(&job, &identifier, &payload, &spec)?;
                assert_stored(&place, &job).await?;
            }
            (Err(error), Some(field)) => {
                assert_clear(&error, field)?;
                prop_assert_eq!(place.count().await, 0);
            }
            (Ok(job), Some(field)) => {
                return Err(TestCaseError::fail(format!("{field} was let in: {job:?}")));
            }
            (Err(error), None) => return Err(TestCaseError::fail(error.to_string())),
        }
        Ok(())
    });
}

/// Few jobs are added by the SQL function, many by COPY; either all of them exist afterwards or none.
#[test]
fn of_many_jobs_all_are_added_or_none() {
    let jobs = prop_oneof![3 => 1..4_usize, 1 => 50..55_usize].prop_flat_map(|count| {
        let odd = prop::option::of((0..count, name(128), json_text(), spec()));
        (Just(count), odd, any::<bool>())
    });
    check(30, jobs, |place, (count, odd, wants_them_back)| async move {
        let mut names = vec![("good".to_owned(), "{}".to_owned(), JobSpec::default()); count];
        if let Some((at, identifier, payload, spec)) = odd {
            // This mode is allowed only for single adds: otherwise the whole call would be rejected.
            let spec = JobSpec {
                job_key_mode: spec.job_key_mode.filter(|mode| *mode != JobKeyMode::UnsafeDedupe),
                ..spec
            };
            names[at] = (identifier, payload, spec);
        }
        let wrong = names.iter().find_map(|(identifier, _, spec)| expected_refusal(identifier, spec));
        let specs: Vec<RawJobSpec> = names
            .iter()
            .map(|(identifier, payload, spec)| {
                RawJobSpec::new(identifier.as_str(), raw(payload), spec.clone()).expect("JSON")
            })
            .collect();
        let added = if wants_them_back {
            place.utils.add_raw_jobs(&specs).await.map(Some)
        } else {
            place.utils.insert_raw_jobs(&specs).await.map(|inserted| (inserted == count).then(Vec::new))
        };
        match (added, wrong) {
            (Ok(Some(jobs)), None) => {
                prop_assert_eq!(place.count().await, count as i64);
                for (job, (identifier, payload, spec)) in jobs.iter().zip(&names) {
                    assert_as_given(job, identifier, payload, spec)?;
                }
                for job in jobs.iter().filter(|job| job.task_identifier() != "good") {
                    assert_stored(&place, job).await?;
                }
            }
            (Err(error), Some(field)) => {
                assert_clear(&error, field)?;
                prop_assert_eq!(place.count().await, 0);
            }
            (added, wrong) => return Err(TestCaseError::fail(format!("{wrong:?} and yet {added:?}"))),
        }
        Ok(())
    });
}

/// In a transaction of the caller: invalid input is rejected as everywhere. The caller's own rows and the jobs before
/// are rolled back with the transaction, or stay if there was a savepoint.
#[test]
fn in_a_transaction_all_is_added_or_nothing() {
    let job = || (name(128), json_text(), spec());
    check(
        30,
        (job(), 0..4_u8, any::<bool>()),
        |place, ((identifier, payload, spec), way, commits)| async move {
            let fail = |error: atta::Error| TestCaseError::fail(error.to_string());
            // This mode is not allowed when several jobs are added at once.
            let spec = JobSpec {
                job_key_mode: spec.job_key_mode.filter(|mode| way == 0 || *mode != JobKeyMode::UnsafeDedupe),
                ..spec
            };
            let wrong = expected_refusal(&identifier, &spec);
            let mut client = place.db.client().await;
            let mut transaction = client.transaction().await.expect("a transaction");
            let utils = &place.utils;
            utils.add_raw_job_in(&mut transaction, "first", 1, JobSpec::default()).await.map_err(fail)?;
            let mut savepoint = transaction.transaction().await.expect("a savepoint");
            let raw_spec = RawJobSpec::new(identifier.as_str(), raw(&payload), spec.clone()).map_err(fail)?;
            let many = vec![RawJobSpec::new("good", 1, JobSpec::default()).map_err(fail)?, raw_spec.clone()];
            // Enough jobs that COPY is used.
            let mut crowd = vec![many[0].clone(); 60];
            crowd.push(raw_spec);
            let added = match way {
                0 => {
                    let added =
                        utils.add_raw_job_in(&mut savepoint, identifier.as_str(), raw(&payload), spec).await;
                    added.map(|_| 1)
                }
                1 => utils.add_raw_jobs_in(&mut savepoint, &many).await.map(|jobs| jobs.len()),
                2 => utils.insert_raw_jobs_in(&mut savepoint, &crowd).await,
                _ => utils.add_raw_jobs_in(&mut savepoint, &crowd).await.map(|jobs| jobs.len()),
            };
            let expected = match (added, wrong) {
                (Ok(count), None) => {
                    savepoint.commit().await.expect("what was added stays");
                    1 + count as i64
                }
                (Err(error), Some(field)) => {
                    assert_clear(&error, field)?;
                    savepoint.rollback().await.expect("the caller can go back");
                    1
                }
                (added, wrong) => return Err(TestCaseError::fail(format!("{wrong:?} and yet {added:?}"))),
            };
            prop_assert_eq!(place.count().await, 0, "nobody else sees it yet");
            if commits {
                transaction.commit().await.expect("it commits");
            } else {
                transaction.rollback().await.expect("it rolls back");
            }
            prop_assert_eq!(place.count().await, if commits { expected } else { 0 });
            Ok(())
        },
    );
}

/// A single call that connects by itself.
#[test]
fn a_quick_add_is_added_or_refused_the_same() {
    check(6, (name(128), json_text(), spec()), |place, (identifier, payload, spec)| async move {
        let added =
            atta::quick_add_job(&place.db.url(), identifier.as_str(), raw(&payload), spec.clone()).await;
        match (added, expected_refusal(&identifier, &spec)) {
            (Ok(job), None) => assert_as_given(&job, &identifier, &payload, &spec)?,
            (Err(error), Some(field)) => {
                assert_clear(&error, field)?;
                prop_assert_eq!(place.count().await, 0);
            }
            (added, wrong) => return Err(TestCaseError::fail(format!("{wrong:?} and yet {added:?}"))),
        }
        Ok(())
    });
}

/// The payload for the typed functions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Typed {
    text: String,
    number: f64,
}

impl TaskHandler for Typed {
    const IDENTIFIER: &'static str = "typed";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {}
}

impl BatchTaskHandler for Typed {
    const IDENTIFIER: &'static str = "typed_batch";

    async fn run_batch(_items: Vec<Typed>, _ctx: WorkerContext) -> impl IntoBatchResult {}
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Nothing;

impl TaskHandler for Nothing {
    const IDENTIFIER: &'static str = "nothing";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {}
}

#[test]
fn typed_payloads_come_back_as_they_were() {
    // By default, serde_json does not read every fraction exactly.
    let numbers =
        prop_oneof![Just(-0.0), Just(1e300), Just(f64::from(i32::MIN)), any::<i32>().prop_map(f64::from)];
    check(20, (name(128), numbers), |place, (text, number)| async move {
        let fail = |error: atta::Error| TestCaseError::fail(error.to_string());
        let given = Typed { text, number };
        let spec = JobSpecBuilder::new().build();
        let one = place.utils.add_job(given.clone(), spec.clone()).await.map_err(fail)?;
        prop_assert_eq!(one.payload::<Typed>().map_err(fail)?, given.clone());
        let many = vec![(given.clone(), &spec); 3];
        for job in place.utils.add_jobs(&many).await.map_err(fail)? {
            prop_assert_eq!(job.payload::<Typed>().map_err(fail)?, given.clone());
        }
        let keyed = JobSpecBuilder::new().job_key("k").build();
        let batch =
            place.utils.add_batch_job(std::slice::from_ref(&given), keyed.clone()).await.map_err(fail)?;
        prop_assert_eq!(batch.payload::<Vec<Typed>>().map_err(fail)?, vec![given.clone()]);
        // A batch is merged by jsonb, which has no NUL: then the first batch stays unchanged.
        match place.utils.add_batch_job(std::slice::from_ref(&given), keyed).await {
            Ok(joined) => prop_assert_eq!(joined.payload::<Vec<Typed>>().map_err(fail)?.len(), 2),
            Err(error) => {
                prop_assert!(given.text.contains('\0'), "{error}");
                let first = place.utils.get_job(batch.id()).await.map_err(fail)?.expect("it is there");
                prop_assert_eq!(first.payload_json(), batch.payload_json());
            }
        }
        let unit = place.utils.add_job(Nothing, spec).await.map_err(fail)?;
        prop_assert_eq!(unit.payload::<Nothing>().map_err(fail)?, Nothing);
        Ok(())
    });
}
