//! A worker stands still for so long that it is taken for dead, and then goes on.

use std::sync::Arc;

use atta::{JobSpec, WorkerContext, WorkerEvent, WorkerUtils};
use serde_json::json;
use testkit::{Database, Signal, wait_for};
use tokio::sync::Semaphore;
use tokio_postgres::Client;

use super::support::{JOBS, LOCKED_JOBS, Ledger, Setup, event};
use crate::worker::support::{Reports, Running, wait_until_empty};

/// Waits at a gate that lets through one for each permit.
async fn pass(gate: &Semaphore) {
    gate.acquire().await.expect("the gate stays").forget();
}

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

    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let mut reports = Reports::new();
    let gated = reports.task(move |_| {
        let opened = opened.clone();
        async move { pass(&opened).await }
    });
    let heir = Running::start(setup.options().define_raw_job("work", gated)).await;
    let taken_over = reports.next().await;
    assert_eq!((taken_over.id(), taken_over.attempts()), (id, 1));

    zombie.signal(Signal::Continue);
    ledger.counted("the zombie to find its claim lost", "select count(*) from public.lost_claims", 1).await;
    let job = utils.get_job(id).await.unwrap().expect("the job is still the heir's");
    assert_eq!((job.locked_by(), job.attempts()), (Some(heir.handle.worker_id()), 1));
    gate.add_permits(1);
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

/// As if the job had been taken from the worker, and claimed by it again.
const CLAIM_AGAIN: &str =
    "update graphile_worker._private_jobs set attempts = attempts + 1, locked_at = now() where id = $1";

/// Who has a job, and at which attempt.
async fn claim_of(client: &Client, id: i64) -> (Option<String>, i16) {
    let sql = "select locked_by, attempts from graphile_worker._private_jobs where id = $1";
    let row = client.query_one(sql, &[&id]).await.expect("the job is there");
    (row.get(0), row.get(1))
}

/// The release of a run is late, and the worker has claimed the job again meanwhile: that claim is another one.
#[tokio::test]
async fn a_late_release_leaves_a_later_claim_of_the_same_worker_alone() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let mut reports = Reports::new();
    let gated = reports.task(move |ctx: WorkerContext| {
        let opened = opened.clone();
        async move {
            pass(&opened).await;
            let fails: bool = ctx.payload().expect("a payload of ours");
            if fails { Err("as planned") } else { Ok(()) }
        }
    });
    let setup = Setup { is_durable: true, slots: 1, local_queue: 5, ..Setup::new(&db) };
    let worker = setup.options().define_raw_job("gated", gated).init().await.unwrap();
    let mut events = worker.events();
    let worker = Running::with(worker);
    let me = Some(worker.handle.worker_id().to_owned());
    for fails in [false, true] {
        for queue in [None, Some("a queue")] {
            let spec = JobSpec { queue_name: queue.map(str::to_owned), ..JobSpec::default() };
            let id = worker.utils.add_raw_job("gated", fails, spec).await.unwrap().id();
            reports.next().await;
            client.execute(CLAIM_AGAIN, &[&id]).await.unwrap();
            gate.add_permits(1);
            event(&mut events, |event| matches!(event, WorkerEvent::ClaimLost { .. }).then_some(())).await;
            assert_eq!(claim_of(&client, id).await, (me.clone(), 2));
            client
                .batch_execute(
                    "update graphile_worker._private_job_queues set locked_by = null, locked_at = null",
                )
                .await
                .unwrap();
        }
    }

    // One that was not begun is given back, unless it was claimed again.
    worker.utils.add_raw_job("gated", false, JobSpec::default()).await.unwrap();
    reports.next().await;
    let first = worker.utils.add_raw_job("gated", false, JobSpec::default()).await.unwrap().id();
    let second = worker.utils.add_raw_job("gated", false, JobSpec::default()).await.unwrap().id();
    wait_for("both to be claimed ahead", || async {
        let (first, second) = (claim_of(&client, first).await.0, claim_of(&client, second).await.0);
        (first.is_some() && second.is_some()).then_some(())
    })
    .await;
    client.execute(CLAIM_AGAIN, &[&first]).await.unwrap();
    gate.add_permits(1);
    worker.stop().await.unwrap();
    assert_eq!(claim_of(&client, first).await, (me, 2));
    assert_eq!(claim_of(&client, second).await, (None, 0));
}

/// A keyed add while it runs takes its key, and sets its attempts to the most: it is still the same claim.
#[tokio::test]
async fn a_job_whose_key_was_used_again_while_it_ran_is_released_all_the_same() {
    let db = Database::migrated().await;
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let mut reports = Reports::new();
    let gated = reports.task(move |_| {
        let opened = opened.clone();
        async move { pass(&opened).await }
    });
    let setup = Setup { is_durable: true, ..Setup::new(&db) };
    let worker = Running::start(setup.options().define_raw_job("gated", gated)).await;
    let keyed = || JobSpec { job_key: Some("key".to_owned()), ..JobSpec::default() };
    let first = worker.utils.add_raw_job("gated", 1, keyed()).await.unwrap().id();
    reports.next().await;
    let second = worker.utils.add_raw_job("gated", 2, keyed()).await.unwrap().id();
    assert_ne!(first, second);
    reports.next().await;
    gate.add_permits(2);
    wait_until_empty(&worker.utils).await;
    worker.stop().await.unwrap();
}
