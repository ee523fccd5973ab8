//! What an idle worker costs.

use std::time::{Duration, Instant};

use atta::{WorkerEvent, WorkerUtils};
use serde_json::json;
use testkit::{Database, Proxy, wait_for};

use super::support::{JOBS, Ledger, Setup};
use crate::worker::support::{Running, options};

#[tokio::test]
async fn an_idle_worker_asks_once_every_poll_interval() {
    const LOOKS: u64 = 20;
    // Stale locks are removed at intervals, by a statement that is prepared first.
    const SWEEP: u64 = 3;
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.url());
    let poll = Duration::from_millis(200);
    let options = options(&db).database_url(url).poll_interval(poll).define_raw_job("never", |_| async {});
    let mut events = options.subscribe();
    let worker = Running::start(options).await;
    while testkit::can_listen() && !matches!(events.next().await.unwrap(), WorkerEvent::ListenStarted) {}
    // The cost of the start: connections, prepared statements, a poll after the first LISTEN.
    let start = Instant::now();
    wait_for("the start to be over", || async { (start.elapsed() > 3 * poll).then_some(()) }).await;
    let (start, before) = (Instant::now(), proxy.round_trips());
    wait_for("some looks", || async { (proxy.round_trips() >= before + LOOKS).then_some(()) }).await;
    let (time, count) = (start.elapsed(), proxy.round_trips() - before);
    println!("an idle worker asked {count} times in {time:?}, at a poll interval of {poll:?}");
    // N polls are N - 1 intervals apart. The first one may be counted late, so one more interval is left out.
    let intervals = u32::try_from(count - SWEEP - 2).unwrap();
    assert!(time >= poll * intervals, "{count} questions in {time:?}");
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn an_idle_worker_needs_little_memory() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let worker = Setup { slots: 10, ..Setup::new(&db) }.spawn();
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    utils.add_raw_job("work", json!({}), atta::JobSpec::default()).await.unwrap();
    ledger.started_in(worker.id(), 1).await;
    ledger.counted("the worker to be idle", JOBS, 0).await;
    let Some(memory) = worker.memory() else { return };
    println!("an idle worker has {} kB of memory", memory / 1024);
    // For a debug build, including the test harness.
    assert!(memory < 40 << 20, "{memory} bytes");
}
