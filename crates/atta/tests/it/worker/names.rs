//! Names that users of the crate graphile_worker call.

use std::time::Duration;

use atta::{Cron, JobSpec, LocalQueueConfig, Schema, Task, TaskResult, WorkerContext, WorkerUtils};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use testkit::Database;

use super::support::options;

#[derive(Serialize, Deserialize)]
struct Report {}

impl Task for Report {
    const IDENTIFIER: &'static str = "report";

    async fn run(self, _ctx: WorkerContext) -> TaskResult {
        Ok(())
    }
}

fn time(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

#[test]
fn a_yearly_item_is_due_once_a_year() {
    let item = Cron::yearly_on::<Report>(5, 1, 4, 30).unwrap();
    assert_eq!(item.next_after(time("2025-05-01T04:30:00Z")), Some(time("2026-05-01T04:30:00Z")));
    let leap_day = Cron::yearly_on::<Report>(2, 29, 0, 0).unwrap();
    assert_eq!(leap_day.next_after(time("2025-01-01T00:00:00Z")), Some(time("2028-02-29T00:00:00Z")));
    assert!(Cron::yearly_on::<Report>(13, 1, 0, 0).unwrap_err().is_config());
}

#[test]
fn a_local_queue_has_a_default_size() {
    let config = LocalQueueConfig::default();
    assert_eq!((config.size, config.ttl), (100, Duration::from_secs(300)));
    assert_eq!(config.with_size(7).size, 7);
}

#[tokio::test]
async fn crontab_items_come_from_a_list_and_from_a_file() {
    let db = Database::migrated().await;
    let folder = std::env::temp_dir().join(format!("atta-crontab-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("crontab");
    std::fs::write(&file, "# nightly\n0 3 * * * report ?id=from_file\n").unwrap();
    let listed = Cron::daily_at::<Report>(4, 0).unwrap().id("from_list");
    let worker = options(&db)
        .define_job::<Report>()
        .with_crons([listed])
        .crontab_file(&file)
        .unwrap()
        .init()
        .await
        .unwrap();
    let utils = worker.create_utils();
    let running = super::support::Running::with(worker);
    let mut known = testkit::wait_for("both items to be registered", || async {
        let known = utils.list_known_crontabs().await.unwrap();
        (known.len() == 2).then(|| known.into_iter().map(|item| item.identifier).collect::<Vec<_>>())
    })
    .await;
    known.sort();
    assert_eq!(known, ["from_file", "from_list"]);
    running.stop().await.unwrap();

    std::fs::write(&file, "0 3 * * report\n").unwrap();
    let invalid = options(&db).crontab_file(&file).unwrap_err();
    assert!(invalid.is_config() && invalid.message().contains(file.to_str().unwrap()), "{invalid}");
    std::fs::remove_dir_all(&folder).unwrap();
    let missing = options(&db).crontab_file(&file).unwrap_err();
    assert!(missing.is_config() && missing.message().contains(file.to_str().unwrap()), "{missing}");
}

#[tokio::test]
async fn single_calls_take_a_schema_or_a_pool() {
    let db = Database::empty().await;
    let (url, schema) = (db.url(), Schema::new("other").unwrap());
    atta::run_migrations((url.as_str(), schema.clone())).await.unwrap();
    let pool = WorkerUtils::connect(&url).unwrap().pool().clone();
    let utils = WorkerUtils::new(pool.clone(), schema.clone());
    atta::quick_add_job((url.as_str(), schema.clone()), "a", 1, JobSpec::default()).await.unwrap();
    atta::quick_add_job((pool.clone(), schema), "a", 1, JobSpec::builder().priority(1)).await.unwrap();
    assert_eq!(utils.count_jobs().await.unwrap().total(), 2);
    assert!(!pool.is_closed(), "a pool of the caller's stays open");

    let error = atta::quick_add_job(&url, "a", 1, JobSpec::new()).await.unwrap_err();
    assert!(error.hint().unwrap().contains("not installed"), "the default schema does not exist: {error}");
    atta::run_migrations(pool).await.unwrap();
    atta::quick_add_job(&url, "a", 1, None::<JobSpec>).await.unwrap();
}

#[tokio::test]
async fn a_worker_itself_requests_its_shutdown() {
    let db = Database::migrated().await;
    let worker = options(&db).define_job::<Report>().init().await.unwrap();
    assert_eq!(worker.schema().name(), "graphile_worker");
    let run = worker.run();
    worker.request_shutdown();
    tokio::time::timeout(testkit::DEADLINE, run).await.expect("it ends").unwrap();
}

/// A program needs no dependency of its own, in the same version, to name the types of public signatures.
#[tokio::test]
async fn the_types_of_public_signatures_are_re_exported() {
    fn pool(utils: &WorkerUtils) -> &atta::deadpool_postgres::Pool {
        utils.pool()
    }
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let mut client: atta::deadpool_postgres::Object = pool(&utils).get().await.unwrap();
    let mut transaction: atta::tokio_postgres::Transaction<'_> =
        atta::tokio_postgres::Client::transaction(&mut client).await.unwrap();
    let run_at: atta::chrono::DateTime<atta::chrono::Utc> = time("2030-01-01T00:00:00Z");
    let payload = atta::serde_json::json!({ "n": 1 });
    let spec = JobSpec::builder().run_at(run_at);
    let job = utils.add_raw_job_in(&mut transaction, "a", payload, spec).await.unwrap();
    assert_eq!(job.run_at(), run_at);
    let token: atta::CancellationToken = super::support::options(&db)
        .define_job::<Report>()
        .with_cron(Cron::every_minute::<Report>().unwrap().time_zone(atta::chrono_tz::Europe::Paris))
        .init()
        .await
        .unwrap()
        .handle()
        .shutdown_token();
    assert!(!token.is_cancelled());
}
