//! Releases that can't be written at once: rows that other transactions have locked, statements that the database
//! rejects or that take long, claims that were lost. Each may delay only its own job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atta::{
    Claims, Job, JobSpec, JobSpecBuilder, RawJobSpec, WorkerContext, WorkerEvent, WorkerEvents,
    WorkerOptions, WorkerUtils,
};
use serde_json::{Value, json};
use testkit::{Database, fill_sql, wait_for};
use tokio::sync::Semaphore;
use tokio_postgres::Client;

use super::support::{JOBS, LOCKED_QUEUES, event};
use crate::worker::support::{Reports, Running, options};

/// A worker with four slots, a task `gated` that waits for a permit, and a task `quick` that does not.
struct Fixture {
    db: Database,
    client: Client,
    utils: WorkerUtils,
    gate: Arc<Semaphore>,
    reports: Reports,
    events: WorkerEvents,
    worker: Running,
}

impl Fixture {
    async fn start(change: impl Fn(WorkerOptions) -> WorkerOptions) -> Fixture {
        let db = Database::migrated().await;
        let (client, gate, reports) = (db.client().await, Arc::new(Semaphore::new(0)), Reports::new());
        let opened = gate.clone();
        let gated = reports.task(move |_: WorkerContext| {
            let opened = opened.clone();
            async move { opened.acquire().await.expect("the gate stays").forget() }
        });
        let options = options(&db).poll_interval(Duration::from_millis(200)).define_raw_job("gated", gated);
        let options = change(options.define_raw_job("quick", reports.task(|_| async {})));
        let events = options.subscribe();
        let worker = Running::start(options).await;
        let utils = WorkerUtils::connect(&db.url()).expect("a connection string");
        Fixture { db, client, utils, gate, reports, events, worker }
    }

    async fn add(&self, task: &str, payload: Value, spec: JobSpecBuilder) -> i64 {
        self.utils.add_raw_job(task, payload, spec).await.expect("a job is added").id()
    }

    /// Adds a job and waits until it runs.
    async fn begin(&mut self, payload: Value, spec: JobSpecBuilder) -> i64 {
        let id = self.add("gated", payload, spec).await;
        assert_eq!(self.reports.next().await.id(), id);
        id
    }

    async fn counted(&self, what: &str, sql: &str, wanted: i64) {
        wait_for(what, || async {
            let count: i64 = self.client.query_one(sql, &[]).await.expect("a count").get(0);
            (count == wanted).then_some(())
        })
        .await;
    }

    /// Checks that jobs of other queues and jobs without a queue start and are released.
    async fn works(&mut self) {
        for n in 0..6 {
            let queue = format!("other {}", n % 3);
            self.add("quick", json!({}), in_queue(&queue)).await;
            self.add("quick", json!({}), JobSpecBuilder::new()).await;
        }
        self.counted("other jobs to run and be released", QUICK, 0).await;
        while self.reports.begun().is_some() {}
    }
}

const QUICK: &str = "select count(*) from graphile_worker.jobs where task_identifier = 'quick'";

fn in_queue(name: &str) -> JobSpecBuilder {
    JobSpecBuilder::new().queue_name(name)
}

/// Debouncing by key, in two transactions that stay open.
#[tokio::test]
async fn transactions_that_re_add_running_jobs_delay_only_their_releases() {
    let mut it = Fixture::start(|options| options).await;
    let mut transactions = Vec::new();
    for key in ["one", "two"] {
        it.begin(json!({}), in_queue(key).job_key(key)).await;
        let client = it.db.client().await;
        let add = format!("begin; select graphile_worker.add_job('gated', job_key := '{key}')");
        client.batch_execute(&add).await.unwrap();
        transactions.push(client);
    }
    it.gate.add_permits(2);
    it.works().await;
    it.counted("the first two to be locked still", LOCKED_QUEUES, 2).await;
    // One permit for each job that the transactions add.
    it.gate.add_permits(2);
    for transaction in transactions {
        transaction.batch_execute("commit").await.unwrap();
    }
    it.counted("all to be done", JOBS, 0).await;
    it.counted("all queues to be free", LOCKED_QUEUES, 0).await;
    it.worker.stop().await.unwrap();
}

/// Many jobs are completed by one statement that does not lock them first.
#[tokio::test]
async fn one_locked_job_delays_no_other_of_many_that_are_completed_together() {
    let mut it = Fixture::start(|options| options.claims(Claims::Durable).concurrency(200)).await;
    let specs: Vec<RawJobSpec> =
        (0..200).map(|_| RawJobSpec::new("gated", json!({}), JobSpec::default()).unwrap()).collect();
    let ids: Vec<i64> = it.utils.add_raw_jobs(&specs).await.unwrap().iter().map(Job::id).collect();
    for _ in 0..200 {
        it.reports.next().await;
    }
    let mut locker = it.db.client().await;
    let transaction = locker.transaction().await.unwrap();
    let lock = "select from graphile_worker._private_jobs where id = $1 for update";
    transaction.execute(lock, &[&ids[100]]).await.unwrap();
    it.gate.add_permits(200);
    it.counted("all others to be released", JOBS, 1).await;
    it.works().await;
    transaction.commit().await.unwrap();
    it.counted("the last one to be released", JOBS, 0).await;
    it.worker.stop().await.unwrap();
}

/// A transaction that locks only the row of a queue.
#[tokio::test]
async fn a_locked_queue_row_delays_only_the_releases_of_its_jobs() {
    let mut it = Fixture::start(|options| options).await;
    it.begin(json!({}), in_queue("kept")).await;
    let other = it.db.client().await;
    other.batch_execute("begin; select from graphile_worker._private_job_queues for update").await.unwrap();
    it.gate.add_permits(1);
    it.works().await;
    it.counted("the job to be there still", JOBS, 1).await;
    other.batch_execute("commit").await.unwrap();
    it.counted("it to be released", JOBS, 0).await;
    it.counted("its queue to be free", LOCKED_QUEUES, 0).await;
    it.worker.stop().await.unwrap();
}

const REFUSE: &str = "create function public.refuse() returns trigger language plpgsql as $$
    begin
      if old.payload ->> 'refused' is not null then raise exception 'not this one'; end if;
      return old;
    end $$;
    create trigger refuse before delete on graphile_worker._private_jobs for each row execute function public.refuse()";

#[tokio::test]
async fn a_release_that_the_database_refuses_delays_no_other() {
    let mut it = Fixture::start(|options| options).await;
    it.client.batch_execute(REFUSE).await.unwrap();
    for n in 0..3 {
        it.begin(json!({ "refused": true }), in_queue(&format!("refused {n}"))).await;
    }
    it.gate.add_permits(3);
    it.works().await;
    it.works().await;
    it.counted("the refused ones to be there still", JOBS, 3).await;
    it.client.batch_execute("drop trigger refuse on graphile_worker._private_jobs").await.unwrap();
    it.counted("the refused ones to be released", JOBS, 0).await;
    it.worker.stop().await.unwrap();
}

const SLOW: &str = "create function public.slow() returns trigger language plpgsql as $$
    begin
      if old.payload ->> 'slow' is not null then perform pg_sleep(10); end if;
      return old;
    end $$;
    create trigger slow before delete on graphile_worker._private_jobs for each row execute function public.slow()";

/// The other jobs are completed while this release sleeps.
#[tokio::test]
async fn a_release_that_takes_ten_seconds_delays_only_its_own_job() {
    let mut it = Fixture::start(|options| options).await;
    it.client.batch_execute(SLOW).await.unwrap();
    for n in 0..3 {
        it.begin(json!({ "slow": true }), in_queue(&format!("slow {n}"))).await;
    }
    it.gate.add_permits(3);
    it.works().await;
    it.works().await;
    it.counted("the slow ones to be there still", JOBS, 3).await;
    it.counted("the slow ones to be released", JOBS, 0).await;
    it.worker.stop().await.unwrap();
}

fn loses_claim(event: &WorkerEvent) -> Option<i64> {
    match event {
        WorkerEvent::ClaimLost { job } => Some(job.id()),
        _ => None,
    }
}

#[tokio::test]
async fn a_running_job_whose_row_is_deleted_leaves_its_queue_free() {
    let mut it = Fixture::start(|options| options).await;
    let id = it.begin(json!({}), in_queue("line")).await;
    it.client.execute("delete from graphile_worker._private_jobs where id = $1", &[&id]).await.unwrap();
    it.gate.add_permits(1);
    assert_eq!(event(&mut it.events, loses_claim).await, id);
    it.add("quick", json!({}), in_queue("line")).await;
    it.counted("the next of the queue to be done", JOBS, 0).await;
    it.counted("the queue to be free", LOCKED_QUEUES, 0).await;
    it.worker.stop().await.unwrap();
}

#[tokio::test]
async fn a_running_job_whose_attempts_are_edited_is_released() {
    let mut it = Fixture::start(|options| options).await;
    let id = it.begin(json!({}), in_queue("line")).await;
    it.client
        .execute("update graphile_worker._private_jobs set attempts = 0 where id = $1", &[&id])
        .await
        .unwrap();
    it.gate.add_permits(1);
    it.add("quick", json!({}), in_queue("line")).await;
    it.counted("both to be done", JOBS, 0).await;
    it.counted("the queue to be free", LOCKED_QUEUES, 0).await;
    it.worker.stop().await.unwrap();
}

const UNLOCK: &str =
    "update graphile_worker._private_jobs set locked_by = null, locked_at = null where id = $1";

/// The row of the job shows that it is free, so it runs again.
#[tokio::test]
async fn a_running_job_that_is_unlocked_leaves_its_queue_free() {
    let mut it = Fixture::start(|options| options).await;
    let id = it.begin(json!({}), in_queue("line")).await;
    it.client.execute(UNLOCK, &[&id]).await.unwrap();
    it.gate.add_permits(2);
    assert_eq!(event(&mut it.events, loses_claim).await, id);
    assert_eq!(it.reports.next().await.id(), id);
    it.counted("it to be done", JOBS, 0).await;
    it.counted("the queue to be free", LOCKED_QUEUES, 0).await;
    it.worker.stop().await.unwrap();
}

#[tokio::test]
async fn a_shutdown_frees_the_queues_of_lost_claims() {
    let at_once = |options: WorkerOptions| {
        options.shutdown_grace_period(Duration::ZERO).shutdown_abort_period(Duration::ZERO)
    };
    let mut it = Fixture::start(at_once).await;
    let deleted = it.begin(json!({}), in_queue("deleted")).await;
    let unlocked = it.begin(json!({}), in_queue("unlocked")).await;
    let edited = it.begin(json!({}), in_queue("edited")).await;
    it.client.execute("delete from graphile_worker._private_jobs where id = $1", &[&deleted]).await.unwrap();
    it.client.execute(UNLOCK, &[&unlocked]).await.unwrap();
    let edit = "update graphile_worker._private_jobs set attempts = 0 where id = $1";
    it.client.execute(edit, &[&edited]).await.unwrap();
    let Fixture { client, worker, .. } = it;
    worker.stop().await.unwrap();
    for sql in [LOCKED_QUEUES, super::support::LOCKED_JOBS] {
        assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0, "{sql}");
    }
}

/// A job that can't be released is left to recovery.
#[tokio::test]
async fn a_shutdown_does_not_wait_long_for_a_job_that_cannot_be_released() {
    let at_once = |options: WorkerOptions| {
        options.shutdown_grace_period(Duration::ZERO).shutdown_abort_period(Duration::ZERO)
    };
    let mut it = Fixture::start(at_once).await;
    it.begin(json!({}), in_queue("kept")).await;
    let other = it.db.client().await;
    other.batch_execute("begin; select from graphile_worker._private_jobs for update").await.unwrap();
    it.gate.add_permits(1);
    let Fixture { client, worker, .. } = it;
    let start = Instant::now();
    worker.stop().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let registered = "select count(*) from graphile_worker._atta_workers";
    assert_eq!(client.query_one(registered, &[]).await.unwrap().get::<_, i64>(0), 1, "others will find it");
}

/// The commits of three held batches take ten seconds each.
#[tokio::test]
async fn jobs_start_while_all_held_batches_take_long_to_commit() {
    let mut it = Fixture::start(|options| options).await;
    it.client.batch_execute(SLOW).await.unwrap();
    for _ in 0..3 {
        it.add("quick", json!({ "slow": true }), JobSpecBuilder::new()).await;
        it.reports.next().await;
    }
    let slow = "select count(*) from graphile_worker._private_jobs where payload ->> 'slow' is not null";
    it.add("quick", json!({}), JobSpecBuilder::new()).await;
    it.reports.next().await;
    it.counted("the slow ones to be there still", slow, 3).await;
    it.counted("all to be released", JOBS, 0).await;
    it.worker.stop().await.unwrap();
}

/// The statements that end durable claims of jobs that were run. Those for failures and returned jobs have more
/// parameters than these.
const RELEASES: &[(&str, &str)] = &[
    ("complete_claimed", include_str!("../../../sql/queries/complete_claimed.sql")),
    ("complete_claim", include_str!("../../../sql/queries/complete_claim.sql")),
    ("complete_many_claimed", include_str!("../../../sql/queries/complete_many_claimed.sql")),
    ("complete_claimed_queued", include_str!("../../../sql/queries/complete_claimed_queued.sql")),
    ("fail_claimed", include_str!("../../../sql/queries/fail_claimed.sql")),
    ("return_claimed", include_str!("../../../sql/queries/return_claimed.sql")),
];

/// Waits while another session holds the advisory lock 1, and then returns its argument.
const AT_GATE: &str = "create function public.at_gate(worker text) returns text as $$
    begin
        perform pg_advisory_lock_shared(1);
        perform pg_advisory_unlock_shared(1);
        return worker;
    end $$ language plpgsql volatile";

#[tokio::test]
async fn a_job_whose_row_changes_during_its_release_is_still_the_workers() {
    let db = Database::migrated().await;
    let (client, other) = (db.client().await, db.client().await);
    client.batch_execute(AT_GATE).await.unwrap();
    for (name, sql) in RELEASES {
        let add = "select graphile_worker.add_job('task', job_key => $1)";
        client.query(add, &[name]).await.unwrap();
        let claim = "update graphile_worker._private_jobs set locked_by = 'w', locked_at = now()
                     where key = $1 returning id, locked_at::text";
        let claimed = client.query_one(claim, &[name]).await.unwrap();
        let (id, locked_at): (i64, String) = (claimed.get(0), claimed.get(1));
        // The statement has taken its snapshot, but has not reached the row yet.
        let sql = fill_sql(sql)
            .replace("$1::text", "public.at_gate('w')")
            .replace("$2::bigint[]", &format!("array[{id}::bigint]"))
            .replace("$3::timestamptz[]", &format!("array['{locked_at}'::timestamptz]"))
            .replace("$3::timestamptz", &format!("'{locked_at}'::timestamptz"))
            .replace("$4::integer[]", "array[null::integer]")
            .replace("$5::float8", "0::float8")
            .replace("$5::text[]", "array['error'::text]")
            .replace("$6::text[]", "array[null::text]")
            .replace("$7::float8[]", "array[null::float8]")
            .replace("$8::timestamptz[]", "array[null::timestamptz]")
            .replace("$9::boolean[]", "array[false]");
        other.batch_execute("select pg_advisory_lock(1)").await.unwrap();
        let changed = async {
            wait_for("the release to be at the gate", || async {
                let waits = "select from pg_locks where locktype = 'advisory' and not granted";
                (!other.query(waits, &[]).await.unwrap().is_empty()).then_some(())
            })
            .await;
            other.query(add, &[name]).await.unwrap();
            other.batch_execute("select pg_advisory_unlock(1)").await.unwrap();
        };
        let (rows, ()) = tokio::join!(client.query(&sql, &[]), changed);
        let rows = rows.unwrap();
        assert_eq!(rows.len(), 1, "{name}: the release says what became of its job");
        assert_eq!(rows[0].get::<_, i64>(0), id, "{name}");
    }
}

#[tokio::test]
async fn a_job_whose_row_changes_during_its_claim_is_left_to_the_next_claim() {
    let db = Database::migrated().await;
    let (client, other) = (db.client().await, db.client().await);
    client.batch_execute(AT_GATE).await.unwrap();
    let add = "select graphile_worker.add_job('task', job_key => 'key')";
    client.query(add, &[]).await.unwrap();
    let sql = fill_sql(include_str!("../../../sql/queries/claim_level.sql"))
        .replace("$1::text", "'w'::text")
        .replace("$2::text", "'task'::text")
        .replace("$3::smallint", "0::smallint")
        .replace("$4::timestamptz", "(now() + interval '1 hour')")
        .replace("$5::bigint", "10::bigint")
        .replace("$6::text[]", "array[public.at_gate('task')]")
        .replace("$7::timestamptz", "null::timestamptz")
        .replace("$8::bigint", "null::bigint")
        .replace("$9::timestamptz", "null::timestamptz")
        .replace("$10::bigint", "null::bigint")
        .replace("$11::boolean", "true");
    other.batch_execute("select pg_advisory_lock(1)").await.unwrap();
    let changed = async {
        wait_for("the claim to be at the gate", || async {
            let waits = "select from pg_locks where locktype = 'advisory' and not granted";
            (!other.query(waits, &[]).await.unwrap().is_empty()).then_some(())
        })
        .await;
        other.query(add, &[]).await.unwrap();
        other.batch_execute("select pg_advisory_unlock(1)").await.unwrap();
    };
    let (rows, ()) = tokio::join!(client.query(&sql, &[]), changed);
    let locked = "select count(*) from graphile_worker._private_jobs where locked_by = 'w'";
    let claimed = i64::try_from(rows.unwrap().len()).unwrap();
    let now_locked: i64 = client.query_one(locked, &[]).await.unwrap().get(0);
    assert_eq!(now_locked, claimed, "no job is locked that the claim does not return");
    let next = client.query(&sql, &[]).await.unwrap();
    let now_locked: i64 = client.query_one(locked, &[]).await.unwrap().get(0);
    assert_eq!((claimed + i64::try_from(next.len()).unwrap(), now_locked), (1, 1));
}
