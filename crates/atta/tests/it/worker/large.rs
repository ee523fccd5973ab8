//! Large payloads: claims are limited in bytes, not only in rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use atta::{LocalQueueConfig, WorkerContext, WorkerOptions};
use testkit::{Database, wait_for};
use tokio_postgres::Client;

use super::support::{Running, options, wait_until_empty};

const MEGABYTE: usize = 1024 * 1024;

/// Random text, because text that compresses well would be small on the server.
async fn add_large(client: &Client, count: usize, bytes: usize) {
    let sql = format!(
        "insert into graphile_worker._private_tasks (identifier) values ('large') on conflict do nothing;
         insert into graphile_worker._private_jobs (task_id, payload)
         select task.id, to_json(repeated.text)
         from graphile_worker._private_tasks as task
         cross join generate_series(1, {count})
         cross join (
           select string_agg(md5(random()::text), '') as text from generate_series(1, {bytes} / 32)
         ) as repeated
         where task.identifier = 'large'"
    );
    client.batch_execute(&sql).await.unwrap();
}

async fn add_small(client: &Client, count: usize) {
    let sql = format!(
        "insert into graphile_worker._private_tasks (identifier) values ('large') on conflict do nothing;
         insert into graphile_worker._private_jobs (task_id, payload)
         select id, '\"\"' from graphile_worker._private_tasks, generate_series(1, {count}) where identifier = 'large'"
    );
    client.batch_execute(&sql).await.unwrap();
}

/// The resident memory of this process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// Counts the jobs and the bytes of their payloads.
fn counting(options: WorkerOptions, bytes: &Arc<AtomicUsize>) -> WorkerOptions {
    let bytes = bytes.clone();
    options.define_raw_job("large", move |ctx: WorkerContext| {
        bytes.fetch_add(ctx.job().payload_json().len() - 2, Ordering::SeqCst);
        async { tokio::time::sleep(Duration::from_millis(1)).await }
    })
}

/// Small jobs first, so that the worker has learnt to claim many at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_payloads_behind_small_ones_are_claimed_a_few_at_a_time() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for local_queue in [None, Some(LocalQueueConfig::new(2000))] {
        add_small(&client, 5000).await;
        add_large(&client, 300, MEGABYTE).await;
        let bytes = Arc::new(AtomicUsize::new(0));
        let mut options = counting(options(&db).concurrency(24), &bytes);
        if let Some(config) = local_queue {
            options = options.local_queue(config);
        }
        let before = resident();
        let worker = Running::start(options).await;
        let mut most = before;
        wait_for("all jobs to be done", || {
            most = most.max(resident());
            let utils = worker.utils.clone();
            async move { (utils.count_jobs().await.unwrap().total() == 0).then_some(()) }
        })
        .await;
        worker.stop().await.unwrap();
        assert_eq!(bytes.load(Ordering::SeqCst), 300 * MEGABYTE, "every job had its whole payload");
        let grown = (most - before) / MEGABYTE;
        println!("the process grew by {grown} MB");
        // Other tests of this process use memory, too.
        assert!(grown < 200, "the process grew by {grown} MB");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_that_are_larger_than_the_limit_are_run_one_by_one() {
    let db = Database::migrated().await;
    let client = db.client().await;
    add_large(&client, 6, 10 * MEGABYTE).await;
    let bytes = Arc::new(AtomicUsize::new(0));
    let options = counting(options(&db).concurrency(4).max_claim_bytes(MEGABYTE), &bytes);
    let worker = Running::start(options).await;
    wait_until_empty(&worker.utils).await;
    worker.stop().await.unwrap();
    assert_eq!(bytes.load(Ordering::SeqCst), 6 * 10 * MEGABYTE);
}
