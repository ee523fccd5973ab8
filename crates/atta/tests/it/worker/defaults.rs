//! What an add leaves open: the defaults of the task, delays, and how often an add waits for the server.

use std::time::Duration;

use atta::{BatchTask, JobSpec, RawJobSpec, Task, TaskResult, WorkerContext, WorkerUtils, testing};
use serde::{Deserialize, Serialize};
use serde_json::json;
use testkit::{Database, Proxy};

use super::support::options;

#[derive(Serialize, Deserialize)]
struct Charge {
    customer: u32,
}

impl Task for Charge {
    const IDENTIFIER: &'static str = "charge";

    async fn run(self, _ctx: WorkerContext) -> TaskResult {
        Ok(())
    }

    fn default_spec(&self) -> JobSpec {
        JobSpec::builder()
            .queue_name(format!("customer-{}", self.customer))
            .priority(7)
            .max_attempts(3)
            .job_key(format!("charge-{}", self.customer))
            .build()
    }
}

#[derive(Serialize, Deserialize)]
struct Reading {}

impl BatchTask for Reading {
    const IDENTIFIER: &'static str = "readings";

    async fn run_batch(_items: Vec<Reading>, _ctx: WorkerContext) -> TaskResult<Vec<TaskResult>> {
        Ok(Vec::new())
    }

    fn default_spec(items: &[Reading]) -> JobSpec {
        JobSpec::builder().priority(i16::try_from(items.len()).unwrap()).build()
    }
}

#[tokio::test]
async fn typed_adds_use_the_defaults_of_their_task_and_a_spec_overrides_them() {
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let job = utils.add_job(Charge { customer: 1 }, JobSpec::default()).await.unwrap();
    assert_eq!((job.queue_name(), job.priority(), job.max_attempts()), (Some("customer-1"), 7, 3));
    assert_eq!(job.key(), Some("charge-1"));

    let urgent = JobSpec::builder().priority(-1).job_key("own").build();
    let job = utils.add_job(Charge { customer: 2 }, urgent.clone()).await.unwrap();
    assert_eq!((job.queue_name(), job.priority(), job.key()), (Some("customer-2"), -1, Some("own")));

    let mut client = utils.pool().get().await.unwrap();
    let mut transaction = client.transaction().await.unwrap();
    let plain = JobSpec::default();
    let many = [(Charge { customer: 3 }, &plain), (Charge { customer: 4 }, &urgent)];
    let jobs = utils.add_jobs_in(&mut transaction, &many).await.unwrap();
    let keys: Vec<_> = jobs.iter().map(|job| (job.key(), job.priority())).collect();
    assert_eq!(keys, [(Some("charge-3"), 7), (Some("own"), -1)]);
    let batch = utils.add_batch_job_in(&mut transaction, &[Reading {}, Reading {}], plain.clone()).await;
    assert_eq!(batch.unwrap().priority(), 2);
    transaction.rollback().await.unwrap();
    testing::assert_not_added(&utils, "readings").await;

    assert_eq!(utils.add_batch_job(&[Reading {}], plain).await.unwrap().priority(), 1);
    let raw = utils.add_raw_job("charge", json!({ "customer": 9 }), JobSpec::default()).await.unwrap();
    assert_eq!((raw.queue_name(), raw.priority()), (None, 0), "adds by identifier know no defaults");
}

const DELAY: Duration = Duration::from_secs(3600);

/// How far a job's time is behind the time at which it was added, by the database, in seconds.
async fn delay(db: &Database, id: i64) -> f64 {
    let sql =
        "select extract(epoch from run_at - created_at)::float8 from graphile_worker.jobs where id = $1";
    db.client().await.query_one(sql, &[&id]).await.unwrap().get(0)
}

#[tokio::test]
async fn run_in_counts_from_the_database_clock_however_the_job_is_added() {
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let later = || JobSpec::builder().run_in(DELAY).build();
    let one = utils.add_raw_job("a", 1, later()).await.unwrap();
    let jobs = |count: usize| -> Vec<RawJobSpec> {
        (0..count).map(|n| RawJobSpec::new("a", n, later()).unwrap()).collect()
    };
    let few = utils.add_raw_jobs(&jobs(2)).await.unwrap();
    let many = utils.add_raw_jobs(&jobs(60)).await.unwrap();
    for job in [&one, &few[1], &many[59]] {
        assert_eq!(delay(&db, job.id()).await, 3600.0, "{job:?}");
        assert_eq!((job.run_at() - job.created_at()).num_seconds(), 3600);
    }
}

#[tokio::test]
async fn run_in_counts_from_the_clock_of_a_test() {
    let db = Database::migrated().await;
    let clock = testing::Clock::system();
    clock.advance(chrono::TimeDelta::days(100));
    let worker = options(&db).clock(clock.clone()).define_raw_job("a", |_| async {}).init().await.unwrap();
    let utils = worker.create_utils();
    utils.add_raw_job("a", 1, JobSpec::builder().run_in(DELAY)).await.unwrap();
    assert_eq!(testing::run_due_jobs(&worker).await.unwrap().count(), 0);
    clock.advance(chrono::TimeDelta::hours(1));
    assert_eq!(testing::run_due_jobs(&worker).await.unwrap().count(), 1);
}

#[tokio::test]
async fn a_delay_with_a_time_and_a_delay_that_is_too_long_are_rejected() {
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let both = JobSpec::builder().run_in(DELAY).run_at(chrono::Utc::now());
    let error = utils.add_raw_job("a", 1, both).await.unwrap_err();
    assert!(error.is_invalid_input() && error.message().contains("run_in"), "{error}");
    let endless = JobSpec::builder().run_in(Duration::MAX);
    let error = utils.add_raw_job("a", 1, endless).await.unwrap_err();
    assert!(error.is_invalid_input() && error.message().contains("run_in"), "{error}");
    assert_eq!(utils.count_jobs().await.unwrap().total(), 0);
}

#[tokio::test]
async fn adds_take_the_round_trips_that_their_documentation_states() {
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.url());
    let utils = WorkerUtils::connect(&url).unwrap();
    let jobs = |count: usize, key: Option<&str>| -> Vec<RawJobSpec> {
        let spec = |n| JobSpec { job_key: key.map(|key| format!("{key}{n}")), ..JobSpec::default() };
        (0..count).map(|n| RawJobSpec::new("a", n, spec(n)).unwrap()).collect()
    };
    // The connection is opened, and the role's access is known.
    utils.add_raw_jobs(&jobs(50, None)).await.unwrap();
    let mut trips = Vec::new();
    for jobs in [jobs(1, None), jobs(49, None), jobs(200, Some("k")), jobs(50, None), jobs(5_000, None)] {
        let before = proxy.round_trips();
        utils.add_raw_jobs(&jobs).await.unwrap();
        trips.push(proxy.round_trips() - before);
    }
    assert_eq!(trips, [1, 1, 1, 8, 8]);
}
