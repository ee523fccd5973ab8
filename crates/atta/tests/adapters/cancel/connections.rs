//! Every connection and transaction that can add jobs, with every way to add.

use ::diesel_async::AsyncPgConnection;
use ::sea_orm::DatabaseConnection;
use ::sqlx::pool::PoolConnection;
use ::sqlx::{PgConnection, Postgres};
use atta::WorkerUtils;
use atta::{
    AddJobs, IntoTaskHandlerResult, JobKeyMode, JobSpec, JobSpecBuilder, RawJobSpec, TaskHandler,
    WorkerContext,
};
use serde_json::json;

use super::callers::Caller;
use super::functions::Item;
use super::world::World;
use super::{Drops, MOST_POLLS, poll_and_drop};

/// The list that [`coverage`](super::coverage) compares with the implementations of `AddJobs`.
pub(super) const COVERED: &[&str] = &[
    "tokio_postgres::Client",
    "tokio_postgres::Transaction<'_>",
    "deadpool_postgres::Object",
    "deadpool_postgres::Transaction<'_>",
    // The connection of a pool that `WorkerUtils::with_prepared_statements` uses: see `functions`.
    "Preparing",
    // The transaction of `WorkerUtils::add_raw_jobs` and `insert_raw_jobs`: see `functions`.
    "Own<'_>",
    "PgConnection",
    "Transaction<'_, Postgres>",
    "PoolConnection<Postgres>",
    "DatabaseConnection",
    "DatabaseTransaction",
    "AsyncPgConnection",
];

#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Added {}

impl TaskHandler for Added {
    const IDENTIFIER: &'static str = "added";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {}
}

/// A way to add jobs of the task `added`.
#[derive(Clone, Copy, Debug)]
enum Add {
    Typed,
    TypedFew,
    Batch,
    Raw,
    Deduped,
    Few,
    /// By COPY where the connection can.
    Many,
    Inserted,
}

impl Add {
    const ALL: [Add; 8] =
        [Add::Typed, Add::TypedFew, Add::Batch, Add::Raw, Add::Deduped, Add::Few, Add::Many, Add::Inserted];

    fn count(self) -> i64 {
        match self {
            Add::Typed | Add::Batch | Add::Raw | Add::Deduped => 1,
            Add::TypedFew | Add::Few => 3,
            Add::Many | Add::Inserted => 60,
        }
    }

    async fn call(self, utils: &WorkerUtils, carrier: &mut impl AddJobs) {
        let deduped = JobSpecBuilder::new().job_key("once").job_key_mode(JobKeyMode::UnsafeDedupe);
        let usual = JobSpec::default();
        let jobs = specs(usize::try_from(self.count()).unwrap());
        let added = match self {
            Add::Typed => utils.add_job_in(carrier, Added {}, usual).await.map(drop),
            Add::TypedFew => {
                let few = [(Added {}, &usual), (Added {}, &usual), (Added {}, &usual)];
                utils.add_jobs_in(carrier, &few).await.map(drop)
            }
            Add::Batch => utils.add_batch_job_in(carrier, &[Item {}, Item {}], usual).await.map(drop),
            Add::Raw => utils.add_raw_job_in(carrier, "added", json!({}), usual).await.map(drop),
            Add::Deduped => utils.add_raw_job_in(carrier, "added", json!({}), deduped).await.map(drop),
            Add::Few | Add::Many => utils.add_raw_jobs_in(carrier, &jobs).await.map(drop),
            Add::Inserted => utils.insert_raw_jobs_in(carrier, &jobs).await.map(drop),
        };
        added.unwrap();
    }
}

pub(super) fn specs(count: usize) -> Vec<RawJobSpec> {
    (0..count).map(|n| RawJobSpec::new("added", json!({ "n": n }), JobSpec::default()).unwrap()).collect()
}

async fn probe(utils: &WorkerUtils, carrier: &mut impl AddJobs) {
    utils.add_raw_job_in(carrier, "probe", json!({}), JobSpec::default()).await.unwrap();
}

/// Drops adds outside a transaction. The caller continues with the same connection.
async fn outside<C: Caller>() {
    let world = World::new().await;
    let mut caller = C::open(&world.db).await;
    for (add, drops) in Add::ALL.into_iter().flat_map(|add| Drops::BOTH.map(|drops| (add, drops))) {
        for polls in 0..MOST_POLLS {
            let what = format!("{add:?}, {drops:?}, {polls} polls");
            world.reset().await;
            // The library queries the rights of a role once per `WorkerUtils`. A new one per case makes this query part
            // of every case.
            let utils = WorkerUtils::new(world.utils.pool().clone(), world.utils.schema().clone());
            let ended = poll_and_drop(add.call(&utils, &mut caller), polls, drops).await;
            if ended.is_some() {
                assert_eq!(world.count("added").await, add.count(), "acknowledged and lost: {what}");
            }
            caller.insert().await;
            assert_eq!(world.count_applied().await, 1, "the caller's own row is not committed: {what}");
            probe(&utils, &mut caller).await;
            assert_eq!(world.count("probe").await, 1, "the next job is not committed: {what}");
            world.settle(&what).await;
            let added = world.count("added").await;
            assert!(added == 0 || added == add.count(), "{added} jobs: {what}");
            if ended.is_some() {
                break;
            }
            assert!(polls + 1 < MOST_POLLS, "{what}");
        }
    }
}

/// Drops adds within a transaction. The caller continues with it, and commits or rolls back.
async fn inside<C: Caller>(commits: bool) {
    let world = World::new().await;
    let mut caller = C::open(&world.db).await;
    for (add, drops) in Add::ALL.into_iter().flat_map(|add| Drops::BOTH.map(|drops| (add, drops))) {
        for polls in 0..MOST_POLLS {
            let what = format!("{add:?}, {drops:?}, {polls} polls, commits: {commits}");
            world.reset().await;
            let utils = WorkerUtils::new(world.utils.pool().clone(), world.utils.schema().clone());
            let mut transaction = caller.begin().await;
            let ended = poll_and_drop(add.call(&utils, &mut transaction), polls, drops).await;
            assert_eq!(world.count("added").await, 0, "committed before the transaction: {what}");
            if commits {
                C::insert_in(&mut transaction).await;
                probe(&utils, &mut transaction).await;
                C::commit(transaction).await;
            } else {
                C::rollback(transaction).await;
            }
            let rows = (world.count_applied().await, world.count("probe").await, world.count("added").await);
            match (commits, ended.is_some()) {
                (true, true) => assert_eq!(rows, (1, 1, add.count()), "acknowledged and lost: {what}"),
                (true, false) => {
                    assert!(rows == (1, 1, 0) || rows == (1, 1, add.count()), "{rows:?}: {what}")
                }
                (false, _) => assert_eq!(rows, (0, 0, 0), "rolled back: {what}"),
            }
            caller.insert().await;
            assert_eq!(world.count_applied().await, rows.0 + 1, "the connection works on: {what}");
            world.settle(&what).await;
            if ended.is_some() {
                break;
            }
            assert!(polls + 1 < MOST_POLLS, "{what}");
        }
    }
}

macro_rules! dropped_adds {
    ($($library:ident: $caller:ty,)*) => {$(
        mod $library {
            use super::*;

            #[tokio::test]
            async fn a_dropped_add_outside_a_transaction_leaves_nothing_behind() {
                outside::<$caller>().await;
            }

            #[tokio::test]
            async fn a_dropped_add_leaves_the_callers_transaction_to_be_committed() {
                inside::<$caller>(true).await;
            }

            #[tokio::test]
            async fn a_dropped_add_leaves_the_callers_transaction_to_be_rolled_back() {
                inside::<$caller>(false).await;
            }
        }
    )*};
}

dropped_adds! {
    tokio_postgres_client: tokio_postgres::Client,
    deadpool_object: deadpool_postgres::Object,
    sqlx_connection: PgConnection,
    sqlx_pool_connection: PoolConnection<Postgres>,
    sea_orm_connection: DatabaseConnection,
    diesel_async_connection: AsyncPgConnection,
}
