//! Held claims: kept by a row lock, and written only when that is necessary.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use atta::{JobFilter, JobSpec, JobSpecBuilder, RawJobSpec, WorkerOptions};
use serde_json::json;
use testkit::{Database, wait_for};
use tokio::sync::Semaphore;
use tokio_postgres::Client;

use crate::faults::support::{JOBS, Ledger, Setup};
use crate::worker::support::{Reports, Running, options, wait_until_empty};

/// Counts the updates of jobs from now on.
async fn count_updates(client: &Client) {
    let sql = "create table public.updates (job_id bigint);
      create function public.note_update() returns trigger language plpgsql as
        $$ begin insert into public.updates values (new.id); return new; end $$;
      create trigger note_update after update on graphile_worker._private_jobs
        for each row execute function public.note_update()";
    client.batch_execute(sql).await.unwrap();
}

/// A worker holds no jobs before its first poll: quick jobs are added until one completes without an update.
async fn wait_until_holding(worker: &Running, client: &Client) {
    count_updates(client).await;
    wait_for("the worker to hold jobs", || async {
        client.batch_execute("delete from public.updates").await.unwrap();
        worker.utils.add_raw_job("quick", 0, JobSpec::default()).await.unwrap();
        wait_until_empty(&worker.utils).await;
        (updates(client).await == 0).then_some(())
    })
    .await;
}

async fn updates(client: &Client) -> i64 {
    client.query_one("select count(*) from public.updates", &[]).await.unwrap().get(0)
}

fn quick(db: &Database) -> WorkerOptions {
    options(db).trust_triggers(true).define_raw_job("quick", |_| async {})
}

async fn add_quick(worker: &atta::Worker, count: usize) {
    let jobs: Vec<RawJobSpec> =
        (0..count).map(|n| RawJobSpec::new("quick", n, JobSpec::default()).unwrap()).collect();
    worker.create_utils().add_raw_jobs(&jobs).await.unwrap();
}

#[tokio::test]
async fn quick_jobs_are_deleted_and_never_updated() {
    let db = Database::migrated().await;
    let client = db.client().await;
    // The longest budget: on a busy machine even a quick job may take a while.
    let options = quick(&db).poll_interval(Duration::from_secs(3600)).hold_budget(Duration::from_secs(1));
    let worker = Running::start(options).await;
    wait_until_holding(&worker, &client).await;
    for n in 0..200 {
        worker.utils.add_raw_job("quick", n, JobSpec::default()).await.unwrap();
    }
    wait_until_empty(&worker.utils).await;
    worker.stop().await.unwrap();
    assert_eq!(updates(&client).await, 0);
}

#[tokio::test]
async fn a_job_that_outlives_the_budget_becomes_durable_and_the_rest_stays_untouched() {
    let db = Database::migrated().await;
    let gate = Arc::new(Semaphore::new(0));
    let task_gate = gate.clone();
    let mut reports = Reports::new();
    let task = reports.task(move |_| {
        let gate = task_gate.clone();
        async move { drop(gate.acquire().await) }
    });
    let options = quick(&db).concurrency(1).hold_budget(Duration::from_millis(50));
    let worker = Running::start(options.define_raw_job("gated", task)).await;
    let client = db.client().await;
    wait_until_holding(&worker, &client).await;
    let specs: Vec<RawJobSpec> =
        (0..10).map(|n| RawJobSpec::new("gated", n, JobSpec::default()).unwrap()).collect();
    worker.utils.add_raw_jobs(&specs).await.unwrap();
    // Not always the first of them: on a busy machine that job may be returned before a slot is free for it.
    let running = reports.next().await;
    assert_eq!(running.attempts(), 1);
    wait_for("the running job to be locked", || async {
        let job = worker.utils.get_job(running.id()).await.unwrap().unwrap();
        (job.locked_by() == Some(worker.handle.worker_id()) && job.attempts() == 1).then_some(())
    })
    .await;
    let sql = "select count(*) from graphile_worker.jobs where attempts = 0 and locked_by is null";
    assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 9);
    gate.add_permits(1000);
    wait_until_empty(&worker.utils).await;
    worker.stop().await.unwrap();
}

async fn jobs_left(client: &Client) -> i64 {
    client.query_one("select count(*) from graphile_worker.jobs", &[]).await.unwrap().get(0)
}

/// A job that takes long adds another job of its task. That job is not held, because the task is known to be slow by
/// then, and only the last claim can find it.
#[tokio::test]
async fn run_once_leaves_no_job_of_a_task_that_becomes_slow() {
    let db = Database::migrated().await;
    let slow = |ctx: atta::WorkerContext| async move {
        if ctx.payload::<bool>().unwrap() {
            tokio::time::sleep(Duration::from_millis(600)).await;
            ctx.utils().add_raw_job("slow", false, JobSpec::default()).await.unwrap();
        }
    };
    let options = quick(&db).hold_budget(Duration::from_secs(1)).define_raw_job("slow", slow);
    let worker = options.init().await.unwrap();
    // The first claims of a worker are durable.
    add_quick(&worker, 200).await;
    worker.create_utils().add_raw_job("slow", true, JobSpec::default()).await.unwrap();
    worker.run_once().await.unwrap();
    assert_eq!(jobs_left(&db.client().await).await, 0);
}

/// Jobs that a batch did not start become free when its transaction ends; until then every pick skips them.
#[tokio::test]
async fn run_once_leaves_no_job_that_was_released_slowly() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let sql = "create function public.dawdle() returns trigger language plpgsql as
        $$ begin perform pg_sleep(0.05); return null; end $$;
      create trigger dawdle after delete on graphile_worker._private_jobs
        for each statement execute function public.dawdle()";
    client.batch_execute(sql).await.unwrap();
    let task = |ctx: atta::WorkerContext| async move {
        // Quick at first, so that batches grow; then too slow for a whole batch.
        if ctx.payload::<u64>().unwrap() >= 40 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let options = options(&db).trust_triggers(true).concurrency(4).hold_budget(Duration::from_millis(20));
    let worker = options.define_raw_job("t", task).init().await.unwrap();
    let specs: Vec<RawJobSpec> =
        (0..120).map(|n| RawJobSpec::new("t", n, JobSpec::default()).unwrap()).collect();
    worker.create_utils().add_raw_jobs(&specs).await.unwrap();
    worker.run_once().await.unwrap();
    assert_eq!(jobs_left(&client).await, 0);
}

/// A lane notices a lost connection only when it commits its batch. Until then its jobs are free for all workers. If
/// their task has become slow, the durable claims of the same worker would find them.
#[tokio::test]
async fn a_job_whose_connection_was_lost_is_not_begun_again_by_the_worker_that_runs_it() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut reports = Reports::new();
    let gate = Arc::new(Semaphore::new(0));
    let ended = Arc::new(AtomicUsize::new(0));
    let (opened, counted) = (gate.clone(), ended.clone());
    let task = reports.task(move |ctx: atta::WorkerContext| {
        let (opened, counted) = (opened.clone(), counted.clone());
        async move {
            match ctx.payload::<Option<u64>>().unwrap() {
                Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                None => drop(opened.acquire().await.unwrap()),
            }
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let options = quick(&db).hold_budget(Duration::from_secs(1)).define_raw_job("work", task);
    let worker = Running::start(options).await;
    wait_until_holding(&worker, &client).await;
    let specs: Vec<RawJobSpec> = [None, Some(600)]
        .iter()
        .map(|ms: &Option<u64>| RawJobSpec::new("work", ms, JobSpec::default()).unwrap())
        .collect();
    let added = worker.utils.add_raw_jobs(&specs).await.unwrap();
    let mut begun = vec![reports.next().await.id(), reports.next().await.id()];
    let sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity
               where datname = current_database() and state like 'idle in transaction%'";
    assert!(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0);
    // When this job has ended, its task counts as slow, and all its jobs are claimed durably.
    wait_for("the second job to end", || async { (ended.load(Ordering::SeqCst) > 0).then_some(()) }).await;
    worker.utils.add_raw_job("work", Some(0), JobSpec::default()).await.unwrap();
    begun.push(reports.next().await.id());
    wait_for("the second job to be released", || async {
        worker.utils.get_job(added[1].id()).await.unwrap().is_none().then_some(())
    })
    .await;
    gate.add_permits(1);
    wait_until_empty(&worker.utils).await;
    worker.stop().await.unwrap();
    while let Some(job) = reports.begun() {
        begun.push(job.id());
    }
    for job in &added {
        assert_eq!(begun.iter().filter(|id| **id == job.id()).count(), 1, "{job:?}");
    }
}

/// Such a job is free while it runs, so an add by its key changes it. The new job must not end with the old run.
#[tokio::test]
async fn a_job_that_is_added_by_key_to_one_whose_connection_was_lost_runs() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut reports = Reports::new();
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let task = reports.task(move |ctx: atta::WorkerContext| {
        let opened = opened.clone();
        async move {
            if ctx.payload::<i32>().unwrap() == 1 {
                drop(opened.acquire().await.unwrap());
            }
        }
    });
    let options = quick(&db).hold_budget(Duration::from_secs(1)).define_raw_job("work", task);
    let worker = Running::start(options).await;
    wait_until_holding(&worker, &client).await;
    let by_key = || JobSpecBuilder::new().job_key("the key");
    worker.utils.add_raw_job("work", 1, by_key()).await.unwrap();
    assert_eq!(reports.next().await.payload::<i32>().unwrap(), 1);
    let sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity
               where datname = current_database() and state like 'idle in transaction%'";
    assert!(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0);
    worker.utils.add_raw_job("work", 2, by_key()).await.unwrap();
    gate.add_permits(1);
    assert_eq!(reports.next().await.payload::<i32>().unwrap(), 2);
    wait_until_empty(&worker.utils).await;
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn failures_of_held_jobs_count_and_back_off() {
    let db = Database::migrated().await;
    let worker =
        options(&db).define_raw_job("bad", |_| async { Err::<(), _>("no\0 luck") }).init().await.unwrap();
    let utils = worker.create_utils();
    let id = utils.add_raw_job("bad", 1, JobSpecBuilder::new().max_attempts(2)).await.unwrap().id();
    for attempts in 1..=2 {
        worker.run_once().await.unwrap();
        let job = utils.get_job(id).await.unwrap().unwrap();
        assert_eq!((job.attempts(), job.last_error()), (attempts, Some("no\u{fffd} luck")));
        assert!(job.run_at() > chrono::Utc::now());
        utils
            .reschedule_jobs(
                &[id],
                atta::RescheduleJobOptions { run_at: Some(chrono::Utc::now()), ..Default::default() },
            )
            .await
            .unwrap();
    }
    assert!(utils.get_job(id).await.unwrap().unwrap().is_permanently_failed());
}

#[tokio::test]
async fn nothing_is_held_while_another_tools_functions_are_in_place() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let worker = quick(&db).init().await.unwrap();
    add_quick(&worker, 20).await;
    let foreign = "create or replace function graphile_worker.add_jobs(
        specs graphile_worker.job_spec[], job_key_preserve_run_at boolean default false)
      returns setof graphile_worker._private_jobs language plpgsql as $$ begin return; end $$";
    client.batch_execute(foreign).await.unwrap();
    count_updates(&client).await;
    worker.run_once().await.unwrap();
    assert_eq!(updates(&client).await, 20);
}

/// An insert trigger can't refuse the outcome of a job, so it is no reason to hold nothing.
#[tokio::test]
async fn nothing_is_held_while_the_table_of_jobs_has_triggers_on_update_or_delete() {
    for (operation, is_held) in [("insert", true), ("update", false), ("delete", false)] {
        let db = Database::migrated().await;
        let client = db.client().await;
        let sql = format!(
            "create function public.nothing() returns trigger language plpgsql as $$ begin return null; end $$;
             create trigger nothing after {operation} on graphile_worker._private_jobs
             for each row execute function public.nothing();
             -- Evaluated for inserts and updates. A durable claim counts the attempt.
             create sequence public.updates;
             create function public.note(attempts integer) returns boolean language plpgsql as
               $$ begin if attempts > 0 then perform nextval('public.updates'); end if; return true; end $$;
             alter table graphile_worker._private_jobs add constraint note check (public.note(attempts))"
        );
        client.batch_execute(&sql).await.unwrap();
        let options = options(&db).hold_budget(Duration::from_secs(1));
        let worker = Running::start(options.define_raw_job("quick", |_| async {})).await;
        let count = || async {
            let sql = "select case when is_called then last_value else 0 end from public.updates";
            client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0)
        };
        let run_one = || async {
            worker.utils.add_raw_job("quick", 0, JobSpec::default()).await.unwrap();
            wait_until_empty(&worker.utils).await;
        };
        if is_held {
            // A worker holds nothing before its first poll.
            wait_for("the worker to hold jobs", || async {
                let before = count().await;
                run_one().await;
                (count().await == before).then_some(())
            })
            .await;
        } else {
            // With each poll that follows, the worker could begin to hold jobs.
            for number in 1..=20 {
                run_one().await;
                assert_eq!(count().await, number, "{operation}");
            }
        }
        worker.stop().await.unwrap();
    }
}

#[tokio::test]
async fn nothing_is_held_while_the_fleet_is_under_suspicion() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let worker = quick(&db).init().await.unwrap();
    add_quick(&worker, 20).await;
    client
        .batch_execute("insert into graphile_worker._atta_dead_workers (worker_id) values ('a'), ('b')")
        .await
        .unwrap();
    count_updates(&client).await;
    worker.run_once().await.unwrap();
    assert_eq!(updates(&client).await, 20);
}

/// If a job kills its worker while it is held, neither it nor the other held jobs lose an attempt. Therefore the fleet
/// holds no jobs after two deaths; then the crashes are counted, and the job is found.
#[tokio::test]
async fn a_job_that_kills_its_worker_fails_permanently_and_all_others_complete() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let utils = atta::WorkerUtils::connect(&db.url()).unwrap();
    let good = || RawJobSpec::new("work", json!({ "silent": true }), JobSpec::default()).unwrap();
    // After two deaths, jobs are claimed durably, as many at a time as there are slots. On a busy machine each claim waits
    // for the processor and the disk, and behind a pooler it is planned again: many more jobs would take minutes.
    let count = 500;
    let mut specs: Vec<RawJobSpec> = (0..count).map(|_| good()).collect();
    let killer = JobSpecBuilder::new().max_attempts(2).build();
    specs.insert(count / 2, RawJobSpec::new("work", json!({ "kills": true }), killer).unwrap());
    let killer = utils.add_raw_jobs(&specs).await.unwrap()[count / 2].id();
    let setup = Setup { slots: 4, threshold: Duration::from_secs(1), ..Setup::new(&db) };
    let mut process = setup.spawn();
    let job = wait_for("the killer to be given up", || {
        if process.has_ended() {
            process = setup.spawn();
        }
        let utils = utils.clone();
        async move {
            let job = utils.get_job(killer).await.unwrap();
            job.filter(|job| job.is_permanently_failed() && job.locked_by().is_none())
        }
    })
    .await;
    assert!(job.last_error().unwrap().contains("died"), "{job:?}");
    ledger.counted("the good jobs to complete", JOBS, 1).await;
    let left = utils.list_jobs(&JobFilter::default()).await.unwrap();
    assert!(left.iter().all(|job| job.id() == killer), "none of the good ones failed");
    println!(
        "{count} jobs completed beside one that killed its worker {} times",
        ledger.runs_of(killer).await.len()
    );
}

#[tokio::test]
async fn workers_that_are_killed_under_load_lose_nothing() {
    const KILLS: usize = 6;
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let utils = atta::WorkerUtils::connect(&db.url()).unwrap();
    let specs: Vec<RawJobSpec> = (0..200)
        .map(|n| RawJobSpec::new("work", json!({ "ms": n % 5 }), JobSpec::default()).unwrap())
        .collect();
    let setup = Setup { slots: 8, threshold: Duration::from_secs(1), ..Setup::new(&db) };
    let mut fleet = [setup.spawn(), setup.spawn()];
    let added = AtomicUsize::new(0);
    for kill in 0..KILLS {
        let process = &mut fleet[kill % 2];
        let id = process.id();
        wait_for("it to have its share of the load", || async {
            if ledger.count(JOBS).await < 400 {
                added.fetch_add(utils.add_raw_jobs(&specs).await.unwrap().len(), Ordering::SeqCst);
            }
            let began = ledger.runs().await.iter().filter(|run| run.pid == id).count();
            (began >= 50).then_some(())
        })
        .await;
        process.kill();
        *process = setup.spawn();
    }
    ledger.counted("all jobs to be done", JOBS, 0).await;
    let mut ended: std::collections::HashMap<i64, usize> = std::collections::HashMap::new();
    for run in ledger.runs().await.iter().filter(|run| run.has_ended) {
        *ended.entry(run.job_id).or_default() += 1;
    }
    let repeated = ended.values().filter(|times| **times > 1).count();
    println!(
        "{} jobs through {KILLS} kills: none lost, {repeated} ran to their end more than once",
        ended.len()
    );
    assert_eq!(ended.len(), added.load(Ordering::SeqCst), "every job ran to its end");
}
