//! Claims that the database refuses because of one job or queue: a trigger of the application raises an error, or takes
//! very long. Only that job waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use atta::{Claims, LocalQueueConfig, WorkerContext, WorkerUtils};
use testkit::{Database, wait_for};
use tokio_postgres::Client;

use crate::worker::support::{Running, options};

/// A trigger that runs `action` when the job with the payload `{"is_bad": true}` is claimed durably.
async fn refuse_jobs(client: &Client, action: &str) {
    let sql = format!(
        "create function public.refuse() returns trigger language plpgsql as $$
         begin
           if new.payload->>'is_bad' is not null and new.locked_at is not null and old.locked_at is null then {action}; end if;
           return new;
         end $$;
         create trigger refuse before update on graphile_worker._private_jobs
         for each row execute function public.refuse()"
    );
    client.batch_execute(&sql).await.unwrap();
}

async fn drop_trigger(client: &Client) {
    client.batch_execute("drop function public.refuse() cascade").await.unwrap();
}

/// How many jobs are left.
async fn left(client: &Client) -> i64 {
    client.query_one("select count(*) from graphile_worker._private_jobs", &[]).await.unwrap().get(0)
}

async fn wait_until_left(client: &Client, count: i64) {
    wait_for("all other jobs to be completed", || async { (left(client).await == count).then_some(()) })
        .await;
}

const RAISE: &str = "raise exception 'not this one'";
const SLEEP: &str = "perform pg_sleep(100)";

/// Adds a job that is refused, which is more urgent than all others, and then 30 others. `other` is their add.
async fn add(client: &Client, bad: &str, other: &str) {
    let sql = format!(
        "select graphile_worker.add_job('work', '{{\"is_bad\": true}}', priority := -1{bad});
         select graphile_worker.add_job('work', '{{}}'{other}) from generate_series(1, 30) as n"
    );
    client.batch_execute(&sql).await.unwrap();
}

/// Runs the jobs, waits until only the refused one is left, and then lets the database accept it.
async fn only_the_refused_job_waits(action: &str, bad: &str, other: &str, claims: Claims, ahead: usize) {
    let db = Database::migrated().await;
    let client = db.client().await;
    refuse_jobs(&client, action).await;
    add(&client, bad, other).await;
    let options =
        options(&db).concurrency(4).claims(claims).define_raw_job("work", |_: WorkerContext| async {});
    let options = if ahead > 0 { options.local_queue(LocalQueueConfig::new(ahead)) } else { options };
    let worker = Running::start(options).await;
    wait_until_left(&client, 1).await;
    drop_trigger(&client).await;
    wait_until_left(&client, 0).await;
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn a_job_whose_claim_is_refused_delays_no_other() {
    only_the_refused_job_waits(RAISE, "", "", Claims::Durable, 0).await;
}

#[tokio::test]
async fn a_job_whose_claim_is_refused_delays_no_other_with_a_local_queue() {
    only_the_refused_job_waits(RAISE, "", "", Claims::Durable, 20).await;
}

#[tokio::test]
async fn a_queued_job_whose_claim_is_refused_delays_no_other_queue() {
    let queues = ", queue_name := 'q' || n % 7";
    only_the_refused_job_waits(RAISE, ", queue_name := 'bad'", queues, Claims::Held, 0).await;
}

#[tokio::test]
async fn a_job_whose_claim_takes_for_ever_delays_no_other() {
    only_the_refused_job_waits(SLEEP, "", "", Claims::Durable, 0).await;
}

/// The jobs behind the refused one, in the same queue, keep their order: they wait for it.
#[tokio::test]
async fn a_refused_job_keeps_its_queue_in_order() {
    let db = Database::migrated().await;
    let client = db.client().await;
    refuse_jobs(&client, RAISE).await;
    add(&client, ", queue_name := 'one'", ", queue_name := case when n = 1 then 'one' else 'q' || n end")
        .await;
    let options = options(&db).concurrency(4).define_raw_job("work", |_: WorkerContext| async {});
    let worker = Running::start(options).await;
    wait_until_left(&client, 2).await;
    drop_trigger(&client).await;
    wait_until_left(&client, 0).await;
    worker.stop().await.unwrap();
}

/// Held jobs of which one runs for longer than the hold budget, and can't be claimed durably: the others are completed.
#[tokio::test]
async fn a_held_job_that_can_not_be_promoted_delays_no_other_of_its_batch() {
    let db = Database::migrated().await;
    let client = db.client().await;
    refuse_jobs(&client, RAISE).await;
    add(&client, "", "").await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let options = options(&db).concurrency(4).define_raw_job("work", move |context: WorkerContext| {
        let is_bad = context.job().payload_json().contains("is_bad");
        counted.fetch_add(1, Ordering::Relaxed);
        async move { tokio::time::sleep(Duration::from_millis(if is_bad { 300 } else { 0 })).await }
    });
    let worker = Running::start(options).await;
    wait_until_left(&client, 1).await;
    drop_trigger(&client).await;
    wait_until_left(&client, 0).await;
    worker.stop().await.unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 31, "each job runs once");
}

/// A run until no job is left does everything else, and then fails with the database's error.
#[tokio::test]
async fn a_single_run_reports_a_job_that_it_can_not_claim() {
    let db = Database::migrated().await;
    let client = db.client().await;
    refuse_jobs(&client, RAISE).await;
    add(&client, "", "").await;
    let options = options(&db).concurrency(4).claims(Claims::Durable);
    let options = options.define_raw_job("work", |_: WorkerContext| async {});
    let error = options.init().await.unwrap().run_once().await.unwrap_err();
    assert!(error.to_string().contains("not this one"), "{error}");
    assert_eq!(WorkerUtils::connect(&db.url()).unwrap().count_jobs().await.unwrap().total(), 1);
}
