//! A worker stands still for so long that it is taken for dead, and then goes on.

use std::sync::Arc;

use atta::{JobSpec, WorkerUtils};
use serde_json::json;
use testkit::{Database, Signal, wait_for};
use tokio::sync::Notify;

use super::support::{JOBS, LOCKED_JOBS, Ledger, Setup};
use crate::worker::support::{Reports, Running};

#[tokio::test]
async fn a_zombie_changes_nothing_and_goes_on_working() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    // Durable: a job that is only held is free again when the server ends the transaction of the sleeper.
    let setup = Setup { is_durable: true, ..Setup::new(&db) };
    let zombie = setup.spawn();
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    // Long enough to be stopped in, and over by the time the zombie rises.
    let id = utils.add_raw_job("work", json!({ "ms": 1500 }), JobSpec::default()).await.unwrap().id();
    ledger.started_in(zombie.id(), 1).await;
    zombie.signal(Signal::Stop);

    let gate = Arc::new(Notify::new());
    let opened = gate.clone();
    let mut reports = Reports::new();
    let gated = reports.task(move |_| {
        let opened = opened.clone();
        async move { opened.notified().await }
    });
    let heir = Running::start(setup.options().define_raw_job("work", gated)).await;
    let taken_over = reports.next().await;
    assert_eq!((taken_over.id(), taken_over.attempts()), (id, 2));

    zombie.signal(Signal::Continue);
    ledger.counted("the zombie to find its claim lost", "select count(*) from public.lost_claims", 1).await;
    let job = utils.get_job(id).await.unwrap().expect("the job is still the heir's");
    assert_eq!((job.locked_by(), job.attempts()), (Some(heir.handle.worker_id()), 2));
    gate.notify_one();
    ledger.counted("the heir to complete it", JOBS, 0).await;
    heir.stop().await.unwrap();

    let registered =
        format!("select count(*) from graphile_worker._atta_workers where pid = {}", zombie.id());
    ledger.counted("the zombie to be registered again", &registered, 1).await;
    let next = utils.add_raw_job("work", json!({}), JobSpec::default()).await.unwrap().id();
    let run = wait_for("the zombie to work", || async {
        ledger.runs_of(next).await.pop().filter(|run| run.has_ended)
    })
    .await;
    assert_eq!((run.pid, run.attempt), (zombie.id(), 1));
}

/// What it had claimed ahead was taken over while it stood still: it must not begin any of it when it wakes.
#[tokio::test]
async fn a_zombie_begins_none_of_the_jobs_that_it_had_claimed_ahead() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let setup = Setup { is_durable: true, slots: 1, local_queue: 5, ..Setup::new(&db) };
    let zombie = setup.spawn();
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    utils.add_raw_job("work", json!({ "ms": 1500 }), JobSpec::default()).await.unwrap();
    ledger.started_in(zombie.id(), 1).await;
    for _ in 0..3 {
        utils.add_raw_job("work", json!({}), JobSpec::default()).await.unwrap();
    }
    ledger.counted("all to be claimed", LOCKED_JOBS, 4).await;
    zombie.signal(Signal::Stop);
    let heir = Running::start(setup.options()).await;
    ledger.counted("the heir to complete them", JOBS, 0).await;
    zombie.signal(Signal::Continue);
    ledger.counted("the zombie to find its claims lost", "select count(*) from public.lost_claims", 4).await;
    let runs = ledger.runs().await;
    assert_eq!(runs.iter().filter(|run| run.pid == zombie.id()).count(), 1, "{runs:?}");
    heir.stop().await.unwrap();
}
