//! Claims and releases that the database refuses because of one job or queue: a trigger of the application raises an
//! error, or takes very long, or a constraint is violated. Only that job waits, and no job runs twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atta::{Claims, LocalQueueConfig, WorkerContext, WorkerOptions, WorkerUtils};
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

/// The same by a trigger that fires only when the transaction commits, for jobs or queues with this condition.
async fn refuse_at_commit(client: &Client, table: &str, condition: &str, action: &str) {
    let sql = format!(
        "create function public.refuse() returns trigger language plpgsql as $$
         begin
           if {condition} and new.locked_at is not null and old.locked_at is null then {action}; end if;
           return null;
         end $$;
         create constraint trigger refuse after update on graphile_worker.{table}
         deferrable initially deferred for each row execute function public.refuse()"
    );
    client.batch_execute(&sql).await.unwrap();
}

async fn drop_trigger(client: &Client) {
    client.batch_execute("drop function public.refuse() cascade").await.unwrap();
}

/// A constraint that refuses durable claims of jobs with the payload `is_bad`. The worker learns of it only by the error.
async fn refuse_by_constraint(client: &Client) {
    let sql = "alter table graphile_worker._private_jobs add constraint refuse
        check (locked_at is null or payload->>'is_bad' is null) not valid";
    client.batch_execute(sql).await.unwrap();
}

async fn drop_constraint(client: &Client) {
    client.batch_execute("alter table graphile_worker._private_jobs drop constraint refuse").await.unwrap();
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
    // The next attempt after one that took long is half a minute later.
    if action != SLEEP {
        wait_until_left(&client, 0).await;
    }
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
    refuse_by_constraint(&client).await;
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
    drop_constraint(&client).await;
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

/// A worker with four slots whose jobs `work` are counted by their ids, and take the time that their payload says.
fn counting(db: &Database, runs: &Arc<Mutex<HashMap<i64, usize>>>) -> WorkerOptions {
    let runs = runs.clone();
    options(db).claims(Claims::Held).define_raw_job("work", move |context: WorkerContext| {
        *runs.lock().unwrap().entry(context.job().id()).or_default() += 1;
        let payload: serde_json::Value = serde_json::from_str(context.job().payload_json()).unwrap();
        let duration = Duration::from_millis(payload["ms"].as_u64().unwrap_or_default());
        async move { tokio::time::sleep(duration).await }
    })
}

/// A foreign key of the application refuses the deletion of one job. If that rolled back a batch of held jobs, the others
/// would be free for a moment, and another worker would run them a second time.
#[tokio::test]
async fn a_completion_that_a_foreign_key_refuses_makes_no_job_run_twice() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let sql = "create table public.kept (job bigint references graphile_worker._private_jobs (id))";
    client.batch_execute(sql).await.unwrap();
    let runs = Arc::new(Mutex::new(HashMap::new()));
    let workers = [Running::start(counting(&db, &runs)).await, Running::start(counting(&db, &runs)).await];
    for _ in 0..40 {
        let sql = "begin;
            select graphile_worker.add_job('work', '{\"ms\": 2}') from generate_series(1, 12);
            insert into public.kept select max(id) from graphile_worker._private_jobs;
            commit";
        client.batch_execute(sql).await.unwrap();
        wait_for("the jobs to run", || async { (left(&client).await <= 40).then_some(()) }).await;
    }
    wait_until_left(&client, 40).await;
    client.batch_execute("delete from public.kept").await.unwrap();
    wait_until_left(&client, 0).await;
    for worker in workers {
        worker.stop().await.unwrap();
    }
    let runs = runs.lock().unwrap();
    let twice: Vec<_> = runs.iter().filter(|(_, count)| **count > 1).collect();
    assert!(runs.len() == 40 * 12 && twice.is_empty(), "{} jobs, {twice:?}", runs.len());
}

/// A job of the same batch, which runs for as long and may be promoted, is completed while the other is refused.
#[tokio::test]
async fn a_promoted_job_is_released_while_another_of_its_batch_is_refused() {
    let db = Database::migrated().await;
    let client = db.client().await;
    refuse_by_constraint(&client).await;
    let runs = Arc::new(Mutex::new(HashMap::new()));
    let worker = Running::start(counting(&db, &runs)).await;
    // Now its first pick is over, and the next one brings all of these jobs.
    client.batch_execute("select graphile_worker.add_job('work')").await.unwrap();
    wait_until_left(&client, 0).await;
    let sql = "begin;
        select graphile_worker.add_job('work', '{\"ms\": 300, \"is_bad\": true}');
        select graphile_worker.add_job('work', '{\"ms\": 300}') from generate_series(1, 3);
        commit";
    client.batch_execute(sql).await.unwrap();
    wait_until_left(&client, 1).await;
    drop_constraint(&client).await;
    wait_until_left(&client, 0).await;
    worker.stop().await.unwrap();
    assert_eq!(*runs.lock().unwrap().values().max().unwrap(), 1);
}

/// A run until no job is left ends with the database's error, whichever way the database refuses a promotion.
#[tokio::test]
async fn a_single_run_ends_if_a_promotion_is_refused() {
    for is_trigger in [true, false] {
        let db = Database::migrated().await;
        let client = db.client().await;
        match is_trigger {
            true => refuse_jobs(&client, RAISE).await,
            false => refuse_by_constraint(&client).await,
        }
        let sql = "select graphile_worker.add_job('work', '{\"ms\": 300, \"is_bad\": true}');
            select graphile_worker.add_job('work') from generate_series(1, 30)";
        client.batch_execute(sql).await.unwrap();
        let runs = Arc::new(Mutex::new(HashMap::new()));
        let worker =
            counting(&db, &runs).shutdown_grace_period(Duration::from_millis(100)).init().await.unwrap();
        let error =
            tokio::time::timeout(testkit::DEADLINE, worker.run_once()).await.expect("it ends").unwrap_err();
        let expected = if is_trigger { "not this one" } else { "check constraint" };
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(left(&client).await, 1);
    }
}

/// The pauses between the attempts to release a job have become long. A shutdown does not wait for their end: the database
/// may accept the release by now.
#[tokio::test]
async fn a_shutdown_tries_refused_releases_at_once() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let sql = "create sequence public.attempts;
        create function public.refuse() returns trigger language plpgsql as $$
        begin perform nextval('public.attempts'); raise exception 'not this one'; end $$;
        create trigger refuse before delete on graphile_worker._private_jobs
        for each row execute function public.refuse();
        select graphile_worker.add_job('work')";
    client.batch_execute(sql).await.unwrap();
    let runs = Arc::new(Mutex::new(HashMap::new()));
    let options = counting(&db, &runs).shutdown_grace_period(Duration::from_millis(100));
    let worker = Running::start(options).await;
    wait_for("a long pause between two attempts", || async {
        let row = client.query_one("select last_value from public.attempts", &[]).await.unwrap();
        (row.get::<_, i64>(0) >= 8).then_some(())
    })
    .await;
    drop_trigger(&client).await;
    worker.stop().await.unwrap();
    assert_eq!(left(&client).await, 0);
}

/// The error comes with the commit, not with the statement that claims.
#[tokio::test]
async fn a_job_whose_claim_is_refused_at_the_commit_delays_no_other() {
    for (table, condition) in [
        ("_private_jobs", "new.payload->>'is_bad' is not null"),
        ("_private_job_queues", "new.queue_name = 'bad'"),
    ] {
        for action in [RAISE, SLEEP] {
            let db = Database::migrated().await;
            let client = db.client().await;
            refuse_at_commit(&client, table, condition, action).await;
            add(
                &client,
                ", queue_name := 'bad'",
                ", queue_name := case when n % 2 = 0 then 'q' || n % 7 end",
            )
            .await;
            let options = options(&db).concurrency(4).define_raw_job("work", |_: WorkerContext| async {});
            let worker = Running::start(options).await;
            wait_until_left(&client, 1).await;
            drop_trigger(&client).await;
            if action != SLEEP {
                wait_until_left(&client, 0).await;
            }
            worker.stop().await.unwrap();
        }
    }
}

/// A trigger that returns null cancels the change of the job, but not that of its queue. Nobody has the lock of the queue.
#[tokio::test]
async fn a_queue_whose_job_could_not_be_marked_comes_free() {
    let db = Database::migrated().await;
    let client = db.client().await;
    refuse_jobs(&client, "return null").await;
    let sql = "select graphile_worker.add_job('work', '{\"is_bad\": true}', queue_name := 'q');
        select graphile_worker.add_job('work', queue_name := 'q')";
    client.batch_execute(sql).await.unwrap();
    let options = options(&db).recovery_threshold(Duration::from_secs(2));
    let worker = Running::start(options.define_raw_job("work", |_: WorkerContext| async {})).await;
    wait_for("the queue to be locked", || async {
        let sql = "select locked_by from graphile_worker._private_job_queues";
        client.query_one(sql, &[]).await.unwrap().get::<_, Option<String>>(0)
    })
    .await;
    drop_trigger(&client).await;
    wait_until_left(&client, 0).await;
    worker.stop().await.unwrap();
}

/// A trigger can raise any SQLSTATE, also those of lost connections, of conflicts between transactions, of a server that
/// shuts down, and of texts that can't be converted.
const CODES: [&str; 8] = ["40001", "40P01", "55P03", "08006", "57P01", "25P03", "54000", "22P05"];

#[tokio::test]
async fn a_job_whose_claim_is_refused_as_if_the_server_was_away_delays_no_other() {
    for code in CODES {
        let raise = format!("raise exception using errcode = '{code}', message = 'not this one'");
        only_the_refused_job_waits(&raise, "", "", Claims::Durable, 0).await;
    }
}

#[tokio::test]
async fn a_job_whose_release_is_refused_as_if_the_server_was_away_delays_no_other() {
    for code in CODES {
        let db = Database::migrated().await;
        let client = db.client().await;
        let sql = format!(
            "create function public.refuse() returns trigger language plpgsql as $$
             begin
               if old.payload->>'is_bad' is not null then
                 raise exception using errcode = '{code}', message = 'not this one';
               end if;
               return old;
             end $$;
             create trigger refuse before delete on graphile_worker._private_jobs
             for each row execute function public.refuse()"
        );
        client.batch_execute(&sql).await.unwrap();
        add(&client, ", queue_name := 'bad'", ", queue_name := case when n % 2 = 0 then 'q' || n % 7 end")
            .await;
        let options = options(&db).concurrency(4).define_raw_job("work", |_: WorkerContext| async {});
        let worker = Running::start(options).await;
        wait_until_left(&client, 1).await;
        drop_trigger(&client).await;
        wait_until_left(&client, 0).await;
        worker.stop().await.unwrap();
    }
}

/// Each attempt to claim one of them takes a second. The others must not wait until no attempt is due.
#[tokio::test]
async fn many_jobs_whose_claims_take_for_ever_do_not_keep_others_from_starting() {
    let db = Database::migrated().await;
    let client = db.client().await;
    refuse_jobs(&client, SLEEP).await;
    let sql = "select graphile_worker.add_job('work', '{\"is_bad\": true}', priority := -1) from generate_series(1, 12);
        select graphile_worker.add_job('work', '{}') from generate_series(1, 100)";
    client.batch_execute(sql).await.unwrap();
    let options = options(&db).concurrency(4).define_raw_job("work", |_: WorkerContext| async {});
    let worker = Running::start(options).await;
    wait_until_left(&client, 12).await;
    drop_trigger(&client).await;
    worker.stop().await.unwrap();
}

/// A run until no job is left runs everything else, and then ends with the database's error.
#[tokio::test]
async fn a_single_run_ends_if_a_completion_is_refused() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let sql = "create function public.refuse() returns trigger language plpgsql as $$
        begin
          if old.payload->>'is_bad' is not null then raise exception 'not this one'; end if;
          return old;
        end $$;
        create trigger refuse before delete on graphile_worker._private_jobs
        for each row execute function public.refuse()";
    client.batch_execute(sql).await.unwrap();
    add(&client, "", "").await;
    let runs = Arc::new(Mutex::new(HashMap::new()));
    let options = counting(&db, &runs).shutdown_grace_period(Duration::from_millis(100));
    let worker = options.init().await.unwrap();
    let error =
        tokio::time::timeout(testkit::DEADLINE, worker.run_once()).await.expect("it ends").unwrap_err();
    assert!(error.to_string().contains("not this one"), "{error}");
    assert_eq!((left(&client).await, runs.lock().unwrap().len()), (1, 31));
}
