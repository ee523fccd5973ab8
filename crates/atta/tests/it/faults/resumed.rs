//! A worker is frozen for so long that it is declared dead, and then resumes.

use std::sync::Arc;

use atta::{JobSpec, WorkerContext, WorkerEvent, WorkerUtils};
use serde_json::json;
use testkit::{Database, Signal, wait_for};
use tokio::sync::Semaphore;
use tokio_postgres::Client;

use super::support::{JOBS, LOCKED_JOBS, Ledger, Setup, event};
use crate::worker::support::{Reports, Running, wait_until_empty};

/// Waits for a permit, and consumes it.
async fn pass(gate: &Semaphore) {
    gate.acquire().await.expect("the gate stays").forget();
}

#[tokio::test]
async fn a_resumed_worker_does_not_change_its_lost_jobs_and_keeps_working() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    // Durable claims: a held job becomes free when the server ends the transaction of the frozen worker.
    let setup = Setup { is_durable: true, ..Setup::new(&db) };
    let resumed = setup.spawn();
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    // Long enough that the worker can be frozen meanwhile, and over when the worker is resumed.
    let id = utils.add_raw_job("work", json!({ "ms": 1500 }), JobSpec::default()).await.unwrap().id();
    ledger.started_in(resumed.id(), 1).await;
    resumed.signal(Signal::Stop);

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

    resumed.signal(Signal::Continue);
    ledger
        .counted("the resumed worker to find its claim lost", "select count(*) from public.lost_claims", 1)
        .await;
    let job = utils.get_job(id).await.unwrap().expect("the job is still the heir's");
    assert_eq!((job.locked_by(), job.attempts()), (Some(heir.handle.worker_id()), 1));
    gate.add_permits(1);
    ledger.counted("the heir to complete it", JOBS, 0).await;
    heir.stop().await.unwrap();

    let registered =
        format!("select count(*) from graphile_worker._atta_workers where pid = {}", resumed.id());
    ledger.counted("the resumed worker to be registered again", &registered, 1).await;
    let next = utils.add_raw_job("work", json!({}), JobSpec::default()).await.unwrap().id();
    let run = wait_for("the resumed worker to work", || async {
        ledger.runs_of(next).await.pop().filter(|run| run.has_ended)
    })
    .await;
    assert_eq!((run.pid, run.attempt), (resumed.id(), 1));
}

/// The jobs that it had claimed ahead were recovered while it was frozen: it must not start any of them when it
/// resumes.
#[tokio::test]
async fn a_resumed_worker_begins_none_of_the_jobs_that_it_had_claimed_ahead() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let setup = Setup { is_durable: true, slots: 1, local_queue: 5, ..Setup::new(&db) };
    let resumed = setup.spawn();
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    utils.add_raw_job("work", json!({ "ms": 1500 }), JobSpec::default()).await.unwrap();
    ledger.started_in(resumed.id(), 1).await;
    for _ in 0..3 {
        utils.add_raw_job("work", json!({}), JobSpec::default()).await.unwrap();
    }
    ledger.counted("all to be claimed", LOCKED_JOBS, 4).await;
    resumed.signal(Signal::Stop);
    let heir = Running::start(setup.options()).await;
    ledger.counted("the heir to complete them", JOBS, 0).await;
    resumed.signal(Signal::Continue);
    ledger
        .counted("the resumed worker to find its claims lost", "select count(*) from public.lost_claims", 4)
        .await;
    let runs = ledger.runs().await;
    assert_eq!(runs.iter().filter(|run| run.pid == resumed.id()).count(), 1, "{runs:?}");
    heir.stop().await.unwrap();
}

/// As if the job had been recovered, and then claimed by the same worker again.
const CLAIM_AGAIN: &str =
    "update graphile_worker._private_jobs set attempts = attempts + 1, locked_at = now() where id = $1";

/// The worker that has claimed a job, and the attempt.
async fn claim_of(client: &Client, id: i64) -> (Option<String>, i16) {
    let sql = "select locked_by, attempts from graphile_worker._private_jobs where id = $1";
    let row = client.query_one(sql, &[&id]).await.expect("the job is there");
    (row.get(0), row.get(1))
}

/// The release of a run is late, and the same worker has claimed the job again meanwhile: the release must not end the
/// new claim.
#[tokio::test]
async fn a_late_release_does_not_end_a_later_claim_of_the_same_worker() {
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

    // A job that was not started is returned, unless it was claimed again.
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

/// An add with the same key takes the key away from a running job, and sets its attempts to the maximum. The claim is
/// still the same.
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
