//! Changing and removing jobs, with ids, names, numbers and times that do not exist.

use atta::{CleanupTask, JobSpecBuilder, RescheduleJobOptions};
use chrono::DateTime;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::support::{assert_clear, check, is_storable, name, small_number, time};

fn fail(error: atta::Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

fn ids() -> impl Strategy<Value = Vec<i64>> {
    let odd = prop_oneof![Just(i64::MIN), Just(-1), Just(0), Just(i64::MAX), any::<i64>()];
    prop::collection::vec(odd, 0..5)
}

#[test]
fn unknown_ids_change_nothing() {
    check(15, (ids(), name(40)), |place, (ids, reason)| async move {
        let job = place.utils.add_raw_job("t", 1, JobSpecBuilder::new().build()).await.map_err(fail)?;
        let ids: Vec<i64> = ids.into_iter().filter(|id| *id != job.id()).collect();
        let utils = &place.utils;
        prop_assert!(utils.complete_jobs(&ids).await.map_err(fail)?.is_empty());
        prop_assert!(utils.permanently_fail_jobs(&ids, &reason).await.map_err(fail)?.is_empty());
        prop_assert!(utils.retry_jobs(&ids).await.map_err(fail)?.is_empty());
        prop_assert!(utils.unlock_jobs(&ids).await.map_err(fail)?.is_empty());
        prop_assert!(
            utils.reschedule_jobs(&ids, RescheduleJobOptions::default()).await.map_err(fail)?.is_empty()
        );
        for id in ids {
            prop_assert!(utils.get_job(id).await.map_err(fail)?.is_none());
        }
        // A reason may contain anything; characters that can't be stored are replaced.
        let failed = utils.permanently_fail_jobs(&[job.id(), job.id()], &reason).await.map_err(fail)?;
        prop_assert_eq!(failed.len(), 1);
        let stored = reason.replace('\0', "\u{fffd}");
        prop_assert_eq!(failed[0].last_error(), Some(stored.as_str()));
        prop_assert_eq!(place.count().await, 1);
        Ok(())
    });
}

#[test]
fn jobs_are_rescheduled_as_asked_or_stay_as_they_were() {
    let options = (
        prop::option::of(time()),
        prop::option::of(small_number()),
        prop::option::of(small_number()),
        prop::option::of(small_number()),
    )
        .prop_map(|(run_at, priority, attempts, max_attempts)| RescheduleJobOptions {
            run_at,
            priority,
            attempts,
            max_attempts,
        });
    check(40, options, |place, options| async move {
        let before = place.utils.add_raw_job("t", 1, JobSpecBuilder::new().build()).await.map_err(fail)?;
        let wrong = match &options {
            RescheduleJobOptions { max_attempts: Some(count), .. } if *count < 1 => Some("max_attempts"),
            RescheduleJobOptions { run_at: Some(time), .. } if !is_storable(*time) => Some("run_at"),
            _ => None,
        };
        match (place.utils.reschedule_jobs(&[before.id()], options.clone()).await, wrong) {
            (Ok(changed), None) => {
                let job = &changed[0];
                prop_assert_eq!(job.priority(), options.priority.unwrap_or(0));
                prop_assert_eq!(job.attempts(), options.attempts.unwrap_or(0));
                prop_assert_eq!(job.max_attempts(), options.max_attempts.unwrap_or(25));
                let run_at = options.run_at.unwrap_or(before.run_at());
                prop_assert_eq!(
                    Some(job.run_at()),
                    DateTime::from_timestamp_micros(run_at.timestamp_micros())
                );
            }
            (Err(error), Some(field)) => {
                assert_clear(&error, field)?;
                let job = place.utils.get_job(before.id()).await.map_err(fail)?.expect("it is there");
                prop_assert_eq!(format!("{job:?}"), format!("{before:?}"));
            }
            (changed, wrong) => return Err(TestCaseError::fail(format!("{wrong:?} and yet {changed:?}"))),
        }
        Ok(())
    });
}

#[test]
fn unknown_names_change_nothing() {
    check(20, (name(512), name(128)), |place, (odd, other)| async move {
        let utils = &place.utils;
        let keyed = JobSpecBuilder::new().job_key("known").build();
        utils.add_raw_job("t", 1, keyed).await.map_err(fail)?;
        let is_nul = odd.contains('\0') || other.contains('\0');
        match utils.remove_job(&odd).await {
            Ok(removed) => prop_assert!(removed.is_none()),
            Err(error) => assert_clear(&error, "job_key")?,
        }
        match utils.force_unlock_workers(&["a", &odd, &other]).await {
            Ok(()) => prop_assert!(!is_nul),
            Err(error) => assert_clear(&error, "worker_ids")?,
        }
        let tasks =
            [CleanupTask::GcJobQueues, CleanupTask::DeletePermafailedJobs, CleanupTask::GcTaskIdentifiers];
        match utils.cleanup(&tasks, &[&odd, &other]).await {
            Ok(counts) => prop_assert_eq!((counts.jobs, counts.queues), (0, 0)),
            Err(error) => assert_clear(&error, "keep")?,
        }
        prop_assert_eq!(place.count().await, 1);
        Ok(())
    });
}
