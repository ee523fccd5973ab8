//! Listing with filters and pages that make no sense, and with unusual names.

use atta::{JobFilter, JobSpec, JobState};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use testkit::Database;

use super::support::{ODD_TEXTS, assert_clear, check, name, time};

fn fail(error: atta::Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

fn filter() -> impl Strategy<Value = JobFilter> {
    let states = vec![JobState::Ready, JobState::Waiting, JobState::Failed, JobState::Running];
    let text = || prop::option::weighted(0.3, name(128));
    let id = prop_oneof![Just(i64::MIN), Just(-1), Just(0), Just(i64::MAX), any::<i64>()];
    (
        prop::option::weighted(0.2, prop::collection::vec(id.clone(), 0..4)),
        prop::option::weighted(0.2, prop::collection::vec(prop::sample::select(states), 0..3)),
        (text(), text(), text(), text(), text()),
        prop::collection::vec(prop::option::weighted(0.2, time()), 3),
        (prop::option::weighted(0.3, id), any::<bool>()),
        prop_oneof![Just(0), Just(1), Just(100), Just(i32::MAX as u32 + 1), Just(u32::MAX)],
    )
        .prop_map(|(ids, states, texts, times, (after_id, newest_first), limit)| {
            let (task_identifier, queue_name, key, error_contains, locked_by) = texts;
            JobFilter {
                ids,
                states,
                task_identifier,
                queue_name,
                key,
                error_contains,
                created_before: times[0],
                failed_since: times[1],
                locked_before: times[2],
                locked_by,
                after_id,
                newest_first,
                limit,
            }
        })
}

#[test]
fn a_filter_returns_matching_jobs_or_reports_its_invalid_field() {
    check(40, filter(), |place, filter| async move {
        place.utils.add_raw_job("plain", 1, JobSpec::default()).await.map_err(fail)?;
        let texts = [
            &filter.task_identifier,
            &filter.queue_name,
            &filter.key,
            &filter.error_contains,
            &filter.locked_by,
        ];
        let is_nul = texts.into_iter().flatten().any(|text| text.contains('\0'));
        let (jobs, ids) = (place.utils.list_jobs(&filter).await, place.utils.list_job_ids(&filter).await);
        match (jobs, ids) {
            (Ok(jobs), Ok(ids)) => {
                prop_assert!(!is_nul && jobs.len() <= filter.limit as usize);
                prop_assert_eq!(jobs.iter().map(|job| job.id()).collect::<Vec<_>>(), ids);
                let expected = JobFilter::default();
                let is_default = filter.limit > 0
                    && format!("{filter:?}")
                        == format!("{:?}", JobFilter { limit: filter.limit, ..expected });
                prop_assert!(!is_default || jobs.len() == 1);
            }
            (Err(error), Err(_)) => {
                prop_assert!(is_nul, "{}", error);
                assert_clear(&error, "NUL")?;
            }
            (jobs, ids) => return Err(TestCaseError::fail(format!("{jobs:?} but {ids:?}"))),
        }
        Ok(())
    });
}

#[test]
fn overviews_have_every_name_once_with_any_page_size() {
    let limits = prop_oneof![Just(1), Just(2), Just(7), Just(u32::MAX)];
    let names: Vec<&str> = ODD_TEXTS.into_iter().filter(|text| !text.contains('\0')).collect();
    check(6, limits, |place, limit| {
        let names = names.clone();
        async move {
            let utils = &place.utils;
            for name in &names {
                let spec = JobSpec { queue_name: Some((*name).to_owned()), ..JobSpec::default() };
                utils.add_raw_job(*name, 1, spec).await.map_err(fail)?;
            }
            let (mut queues, mut tasks): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
            loop {
                let page = utils.list_queues(queues.last().map(String::as_str), limit).await.map_err(fail)?;
                let next = utils.list_tasks(tasks.last().map(String::as_str), limit).await.map_err(fail)?;
                if page.is_empty() && next.is_empty() {
                    break;
                }
                prop_assert!(page.iter().all(|queue| queue.jobs.ready == 1 && queue.oldest_due_at.is_some()));
                queues.extend(page.into_iter().map(|queue| queue.queue_name));
                tasks.extend(next.into_iter().map(|task| task.task_identifier));
            }
            for mut listed in [queues, tasks] {
                listed.sort_unstable();
                let mut expected = names.clone();
                expected.sort_unstable();
                prop_assert_eq!(listed, expected);
            }
            prop_assert!(utils.list_queues(None, 0).await.map_err(fail)?.is_empty());
            prop_assert!(utils.list_tasks(None, 0).await.map_err(fail)?.is_empty());
            prop_assert!(utils.read_stats(0).await.map_err(fail)?.tasks.is_empty());
            let stats = utils.read_stats(limit).await.map_err(fail)?;
            prop_assert_eq!(stats.tasks.len(), names.len().min(limit as usize));
            prop_assert_eq!(utils.count_jobs().await.map_err(fail)?.total(), names.len() as u64);
            let unknown = utils.unknown_tasks(&["plain", "nobody's"]).await.map_err(fail)?;
            prop_assert_eq!(unknown, ["nobody's"]);
            assert_clear(&utils.unknown_tasks(&["a\0"]).await.unwrap_err(), "identifiers")?;
            assert_clear(&utils.list_queues(Some("\0"), 1).await.unwrap_err(), "after_name")?;
            assert_clear(&utils.list_tasks(Some("\0"), 1).await.unwrap_err(), "after_identifier")?;
            Ok(())
        }
    });
}

#[tokio::test]
async fn nothing_due_has_no_oldest_time() {
    let db = Database::migrated().await;
    let utils = atta::WorkerUtils::connect(&db.url()).unwrap();
    assert_eq!(utils.read_stats(5).await.unwrap().oldest_due_at, None);
    let tomorrow = chrono::Utc::now() + chrono::TimeDelta::days(1);
    let spec = JobSpec { queue_name: Some("q".into()), run_at: Some(tomorrow), ..JobSpec::default() };
    let id = utils.add_raw_job("t", 1, spec).await.unwrap().id();
    for _ in 0..2 {
        assert_eq!(utils.list_queues(None, 5).await.unwrap()[0].oldest_due_at, None);
        assert_eq!(utils.list_tasks(None, 5).await.unwrap()[0].oldest_due_at, None);
        assert_eq!(utils.read_stats(5).await.unwrap().oldest_due_at, None);
        utils.complete_jobs(&[id]).await.unwrap();
    }
}
