//! Every public async function that consists of one statement or one transaction. After a drop, the state is that
//! before the call or that after it.

use atta::{
    BatchTaskHandler, CleanupTask, ConnectionSettings, IntoBatchResult, JobFilter, JobKeyMode, JobSpec,
    JobSpecBuilder, RescheduleJobOptions, Schema, WorkerContext, WorkerOptions, testing,
};
use futures_util::future::LocalBoxFuture;
use serde_json::json;

use super::connections::{Added, specs};
use super::world::World;
use super::{Drops, MOST_POLLS, poll_and_drop};

/// A call of a function; its name consists of its file and its function.
pub(super) struct Case {
    pub(super) name: &'static str,
    call: for<'a> fn(&'a World) -> LocalBoxFuture<'a, ()>,
}

macro_rules! cases {
    ($($name:literal: |$world:ident| $call:expr;)*) => {
        &[$(Case { name: $name, call: |$world| Box::pin(async move { $call.await.unwrap(); }) }),*]
    };
}

#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Item {}

impl BatchTaskHandler for Item {
    const IDENTIFIER: &'static str = "added";

    async fn run_batch(_items: Vec<Item>, _ctx: WorkerContext) -> impl IntoBatchResult {}
}

pub(super) const ADDING: &[Case] = cases! {
    "utils/add.rs add_job": |world| world.utils.add_job(Added {}, JobSpec::default());
    "utils/add.rs add_jobs": |world| world.utils.add_jobs(&[(Added {}, &JobSpec::default()), (Added {}, &JobSpec::default())]);
    "utils/add.rs add_batch_job": |world| world.utils.add_batch_job(&[Item {}, Item {}], JobSpec::default());
    "utils/add.rs add_raw_job": |world| world.utils.add_raw_job("added", json!({}), JobSpec::default());
    "utils/add.rs add_raw_job": |world| world.utils.add_raw_job("seed", json!({}), JobSpecBuilder::new().job_key("k"));
    "utils/add.rs add_raw_job": |world| world.utils.add_raw_job(
        "seed", json!({}), JobSpecBuilder::new().job_key("k").job_key_mode(JobKeyMode::UnsafeDedupe));
    "utils/add.rs add_raw_job": |world| world.utils.clone().with_prepared_statements(true).add_raw_job(
        "added", json!({}), JobSpec::default());
    "utils/add.rs add_raw_jobs": |world| world.utils.add_raw_jobs(&specs(3));
    "utils/add.rs add_raw_jobs": |world| world.utils.add_raw_jobs(&specs(60));
    "utils/bulk.rs insert_raw_jobs": |world| world.utils.insert_raw_jobs(&specs(3));
    "utils/bulk.rs insert_raw_jobs": |world| world.utils.insert_raw_jobs(&specs(5_000));
    "run.rs quick_add_job": |world| atta::quick_add_job(&world.db.url(), "added", json!({}), JobSpec::default());
    "run.rs quick_add_job": |world| atta::quick_add_job(world.utils.clone(), "added", json!({}), JobSpec::default());
};

pub(super) const MANAGING: &[Case] = cases! {
    "utils/admin.rs remove_job": |world| world.utils.remove_job("k");
    "utils/admin.rs complete_jobs": |world| world.utils.complete_jobs(&[1, 3]);
    "utils/admin.rs permanently_fail_jobs": |world| world.utils.permanently_fail_jobs(&[1, 3], "no");
    "utils/admin.rs reschedule_jobs": |world| world.utils.reschedule_jobs(
        &[1, 3], RescheduleJobOptions { priority: Some(7), ..RescheduleJobOptions::default() });
    "utils/admin.rs retry_jobs": |world| world.utils.retry_jobs(&[2, 3]);
    "utils/admin.rs unlock_jobs": |world| world.utils.unlock_jobs(&[4]);
    "utils/admin.rs force_unlock_workers": |world| world.utils.force_unlock_workers(&["gone"]);
    "utils/admin.rs cleanup": |world| world.utils.cleanup(&[CleanupTask::DeletePermafailedJobs], &[]);
    "utils/admin.rs cleanup": |world| world.utils.cleanup(&[CleanupTask::GcTaskIdentifiers], &[]);
    "utils/admin.rs cleanup": |world| world.utils.cleanup(&[CleanupTask::GcJobQueues], &[]);
    "testing.rs drain_queue": |world| testing::drain_queue(&world.utils, "q");
};

pub(super) const READING: &[Case] = cases! {
    "utils/read.rs get_job": |world| world.utils.get_job(1);
    "utils/read.rs list_jobs": |world| world.utils.list_jobs(&JobFilter::default());
    "utils/read.rs list_jobs_with_states": |world| world.utils.list_jobs_with_states(&JobFilter::default());
    "utils/read.rs list_job_ids": |world| world.utils.list_job_ids(&JobFilter::default());
    "utils/read.rs count_matching_jobs": |world| world.utils.count_matching_jobs(&JobFilter::default());
    "utils/read.rs count_jobs": |world| world.utils.count_jobs();
    "utils/overview.rs list_queues": |world| world.utils.list_queues(None, 10);
    "utils/overview.rs list_tasks": |world| world.utils.list_tasks(None, 10);
    "utils.rs read_clock": |world| world.utils.read_clock();
    "utils/overview.rs list_workers": |world| world.utils.list_workers();
    "utils/overview.rs list_known_crontabs": |world| world.utils.list_known_crontabs();
    "utils/overview.rs read_stats": |world| world.utils.read_stats(10);
    "utils/overview.rs read_job_counters": |world| world.utils.read_job_counters();
    "utils/overview.rs unknown_tasks": |world| world.utils.unknown_tasks(&["seed", "none"]);
    "testing.rs jobs_of": |world| testing::jobs_of(&world.utils, "seed");
    "testing.rs assert_added": |world| async { Some(testing::assert_added(&world.utils, "other").await) };
    "testing.rs assert_not_added": |world| async {
        testing::assert_not_added(&world.utils, "none").await;
        Some(())
    };
    "utils.rs migrate": |world| world.utils.migrate();
    "migrate.rs plan_migration": |world| async {
        let client = world.utils.pool().get().await.unwrap();
        atta::plan_migration(&client, &Schema::default()).await
    };
    "db/connection.rs connect": |world| async {
        ConnectionSettings::new(&world.db.url()).unwrap().connect().await
    };
    "db/connection.rs cancel": |world| async {
        let settings = ConnectionSettings::new(&world.db.url()).unwrap();
        settings.cancel(&settings.connect().await?.cancel_token()).await
    };
    "worker/options/init.rs init": |world| WorkerOptions::default().database_url(world.db.url()).define_job::<Added>().init();
};

#[tokio::test]
async fn a_dropped_add_is_all_or_nothing() {
    drop_all(ADDING).await;
}

#[tokio::test]
async fn a_dropped_change_is_all_or_nothing() {
    drop_all(MANAGING).await;
}

#[tokio::test]
async fn a_dropped_question_changes_nothing() {
    drop_all(READING).await;
}

async fn drop_all(cases: &[Case]) {
    let world = World::new().await;
    for case in cases {
        world.reset().await;
        let before = world.digest().await;
        (case.call)(&world).await;
        let after = world.digest().await;
        for drops in Drops::BOTH {
            drop_one(&world, case, drops, &before, &after).await;
        }
    }
}

/// Drops one call after each number of polls, up to the number with which it ends.
async fn drop_one(world: &World, case: &Case, drops: Drops, before: &str, after: &str) {
    for polls in 0..MOST_POLLS {
        let what = format!("{}, {drops:?}, {polls} polls", case.name);
        world.reset().await;
        let ended = poll_and_drop((case.call)(world), polls, drops).await.is_some();
        if ended {
            assert_eq!(world.digest().await, after, "acknowledged and lost: {what}");
        }
        world.settle(&what).await;
        let now = world.digest().await;
        assert!(now == after || (!ended && now == before), "half done: {what}\n{now}");
        world.utils.add_raw_job("probe", json!({}), JobSpec::default()).await.unwrap();
        assert_eq!(world.count("probe").await, 1, "the next job is not committed: {what}");
        // The connection of the pool, and none that a dropped future left.
        world.wait_for_connections(1, &what).await;
        if ended {
            return;
        }
    }
    panic!("{} did not end", case.name);
}
