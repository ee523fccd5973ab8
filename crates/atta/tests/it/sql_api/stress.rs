//! Producers and claimers on one key for a while, in random order: nothing is lost, and the last write wins.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use testkit::{Database, wait_for};
use tokio::task::JoinSet;
use tokio_postgres::{Client, Row};

use super::support::{run, value};

const DURATION: Duration = Duration::from_secs(20);
const EACH: usize = 8;

/// As Node does it: locks one due job that no other worker has.
const CLAIM: &str = "update graphile_worker._private_jobs \
    set locked_at = now(), locked_by = $1::text, attempts = attempts + 1 \
    where id = (select id from graphile_worker._private_jobs where is_available and run_at <= now() \
      order by priority, run_at limit 1 for update skip locked) \
    returning id, revision, payload::text";
const COMPLETE: &str = "delete from graphile_worker._private_jobs where id = $1";
const FAIL: &str = "update graphile_worker._private_jobs \
    set locked_at = null, locked_by = null, last_error = 'boom' where id = $1 and locked_by = $2::text";
/// A claim that keeps the row locked until the job is done.
const HOLD: &str = "delete from graphile_worker._private_jobs \
    where id = (select id from graphile_worker._private_jobs where is_available and run_at <= now() \
      limit 1 for update skip locked) \
    returning id, revision, payload::text";

/// A job as an add returned it, or as a claim found it.
#[derive(Clone, Debug)]
struct Seen {
    id: i64,
    revision: i32,
    payload: String,
}

impl Seen {
    fn of(row: &Row) -> Seen {
        Seen { id: row.get(0), revision: row.get(1), payload: row.get(2) }
    }
}

#[derive(Default)]
struct Record {
    added: Mutex<Vec<Seen>>,
    ran: Mutex<Vec<Seen>>,
}

/// The calls of a producer: `$1` is the payload as text.
const ADDS: [&str; 3] = [
    "select id, revision, payload::text from graphile_worker.add_job('t', $1::text::json, job_key := 'k', \
     max_attempts := 2)",
    "select id, revision, payload::text from graphile_worker.add_job('t', $1::text::json, job_key := 'k', \
     job_key_mode := 'preserve_run_at')",
    "select id, revision, payload::text from graphile_worker.add_jobs(\
     array[row('t',$1::text::json,null,null,null,'k',null,null)]::graphile_worker.job_spec[])",
];

async fn add_until(
    client: Client,
    record: Arc<Record>,
    end: Instant,
    producer: usize,
    quote: fn(String) -> String,
) {
    let mut count = 0;
    while Instant::now() < end {
        let marker = quote(format!("{producer}-{count}"));
        add(&client, &record, ADDS[count % ADDS.len()], marker).await;
        count += 1;
    }
}

async fn add(client: &Client, record: &Record, sql: &str, marker: String) {
    let row = client.query_one(sql, &[&marker]).await.expect("every add succeeds");
    let id: Option<i64> = row.get(0);
    let Some(id) = id else { panic!("the add of {marker} returned null") };
    // The text of the add itself: the returned payload may be merged with the existing one.
    let added = Seen { id, revision: row.get(1), payload: marker };
    record.added.lock().expect("no producer panicked").push(added);
}

/// Claims until the producers are done and no job is left to run.
async fn claim_until(client: Client, record: Arc<Record>, end: Instant, claimer: usize, fails: bool) {
    let owner = format!("pool-{claimer}");
    for round in claimer.. {
        let finished = Instant::now() >= end;
        let claimed = match round % 4 {
            0 => hold(&client).await,
            _ => client
                .query_opt(CLAIM, &[&owner])
                .await
                .expect("every claim succeeds")
                .map(|row| Seen::of(&row)),
        };
        let Some(claimed) = claimed else {
            // Another claimer may still fail its job, which makes the job due again; that claimer then claims it
            // itself.
            if finished {
                return;
            }
            continue;
        };
        record.ran.lock().expect("no claimer panicked").push(claimed.clone());
        match round % 4 {
            0 => {}
            1 if fails => {
                client.execute(FAIL, &[&claimed.id, &owner]).await.expect("every failure is noted");
            }
            _ => {
                client.execute(COMPLETE, &[&claimed.id]).await.expect("every job is completed");
            }
        }
    }
}

async fn hold(client: &Client) -> Option<Seen> {
    run(client, "begin").await;
    let claimed = client.query_opt(HOLD, &[]).await.expect("every claim succeeds").map(|row| Seen::of(&row));
    run(client, "select pg_sleep(0.002); commit").await;
    claimed
}

/// Runs all of them, then one last add, then the remaining jobs. Returns the record.
async fn stress(fails: bool, quote: fn(String) -> String) -> Record {
    let db = Database::migrated().await;
    let record = Arc::new(Record::default());
    let end = Instant::now() + DURATION;
    let (mut producers, mut claimers) = (JoinSet::new(), JoinSet::new());
    for n in 0..EACH {
        producers.spawn(add_until(db.client().await, record.clone(), end, n, quote));
        claimers.spawn(claim_until(db.client().await, record.clone(), end, n, fails));
    }
    producers.join_all().await;
    let client = db.client().await;
    add(&client, &record, ADDS[0], quote("last".into())).await;
    claimers.join_all().await;
    let left = "select count(*) from graphile_worker._private_jobs where is_available";
    wait_for("the last jobs to run", || async {
        claim_until(db.client().await, record.clone(), Instant::now(), 0, false).await;
        (value(&client, left).await == "0").then_some(())
    })
    .await;
    Arc::into_inner(record).expect("all producers and claimers have ended")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_adds_and_claims_of_one_key_lose_no_add_and_the_last_one_wins() {
    let record = stress(true, |marker| format!("\"{marker}\"")).await;
    let (added, ran) = (record.added.into_inner().unwrap(), record.ran.into_inner().unwrap());
    assert!(added.len() > 100 && ran.len() > 100, "{} adds, {} runs", added.len(), ran.len());

    let written: HashMap<(i64, i32), &str> =
        added.iter().map(|it| ((it.id, it.revision), it.payload.as_str())).collect();
    assert_eq!(written.len(), added.len(), "two adds were given the same write");
    let mut last_run = HashMap::new();
    for it in &ran {
        assert_eq!(written.get(&(it.id, it.revision)), Some(&it.payload.as_str()), "{it:?}");
        let last = last_run.entry(it.id).or_insert(it.revision);
        *last = it.revision.max(*last);
    }
    for it in &added {
        // The add was overwritten before it ran, or it ran.
        assert!(last_run.get(&it.id) >= Some(&it.revision), "lost: {it:?}");
    }
    assert!(ran.iter().any(|it| it.payload == "\"last\""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrays_added_under_one_key_are_run_element_by_element_exactly_once() {
    let record = stress(false, |marker| format!("[\"{marker}\", \"{marker}b\"]")).await;
    let elements = |seen: Mutex<Vec<Seen>>| {
        let mut all: Vec<String> = Vec::new();
        for it in seen.into_inner().unwrap() {
            all.extend(serde_json::from_str::<Vec<String>>(&it.payload).unwrap());
        }
        all.sort();
        all
    };
    let (added, ran) = (elements(record.added), elements(record.ran));
    assert!(added.len() > 100, "{} elements", added.len());
    assert_eq!(ran.len(), added.len());
    assert!(ran == added, "as many, but not the same");
}

/// Batches that overlap, each in a different order, while other sessions repeat `changes`.
async fn run_batches_against(changes: Vec<String>) {
    let db = Database::migrated().await;
    let (mut batches, mut others) = (JoinSet::new(), JoinSet::new());
    for order in ["n", "-n", "md5(n::text)", "n % 7, n"] {
        let client = db.client().await;
        let sql = format!(
            "select count(*) from graphile_worker.add_jobs((select array_agg(\
             row('t' || n % 3, to_json(n), 'q' || n % 5, null, null, 'key ' || n, null, null)::\
             graphile_worker.job_spec order by {order}) from generate_series(1, 60) as n where n % 10 <> $1))"
        );
        batches.spawn(async move {
            for round in 0..100 {
                let row = client.query_one(&sql, &[&(round % 10)]).await;
                let added: i64 = row.expect("no batch is chosen to end a deadlock").get(0);
                assert_eq!(added, 54);
            }
        });
    }
    for change in changes {
        let client = db.client().await;
        others.spawn(async move {
            loop {
                run(&client, &change).await;
            }
        });
    }
    batches.join_all().await;
    others.abort_all();
    while let Some(ended) = others.join_next().await {
        assert!(ended.is_err_and(|error| error.is_cancelled()), "a change failed");
    }
}

/// Some of the keys exist, in every state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_batches_in_opposite_orders_never_deadlock() {
    let changes = [
        "update graphile_worker._private_jobs set locked_at = now(), locked_by = 'x', attempts = attempts + 1",
        "update graphile_worker._private_jobs set attempts = max_attempts",
        "delete from graphile_worker._private_jobs",
    ];
    let one = "where id = (select id from graphile_worker._private_jobs \
               order by random() limit 1 for update skip locked)";
    run_batches_against(changes.map(|change| format!("{change} {one}")).into()).await;
}

/// One job per call. A call for many jobs locks them by id, not by key, and PostgreSQL may end it because of a deadlock
/// with a batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_and_administrators_calls_for_one_job_never_deadlock() {
    let one = "array[(select id from graphile_worker.jobs order by random() limit 1)]";
    let changes = vec![
        format!("select graphile_worker.reschedule_jobs({one}, attempts := 1)"),
        format!("select graphile_worker.permanently_fail_jobs({one})"),
        format!("select graphile_worker.complete_jobs({one})"),
        "select graphile_worker.remove_job('key ' || floor(random() * 60))".into(),
    ];
    run_batches_against(changes).await;
}
