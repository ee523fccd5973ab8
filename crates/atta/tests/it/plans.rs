//! Statements that run for every job must find their rows by an index, on a full table, with any plan that PostgreSQL
//! may choose.

use std::time::Duration;

use atta::{Claims, JobSpec, LocalQueueConfig, WorkerOptions};
use testkit::{Database, fill_sql, wait_for};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::worker::support::{Reports, Running, options};

const PICK_TYPES: &str = "text[], smallint[], timestamptz[], bigint[], bigint[], timestamptz, bigint, smallint, timestamptz, bigint";
const PICK: &str = "'{noop}', '{0}', '{null}', '{0}', '{1000}', null, 1000, 32767, null, 9223372036854775807";
const FIND_TYPES: &str = "text[], boolean[], integer[], integer[], timestamptz";
const FIND: &str = "'{noop,noop}', '{f,t}', '{-32769,-32769}', '{32768,32768}', null";
const CLAIM_TYPES: &str = "text, text[], text[], timestamptz, bigint, text[], smallint, timestamptz, bigint, bigint, boolean, bigint[]";
const CLAIM: &str =
    "'w', '{noop}', '{stuck}', null, 100, '{noop}', 32767, null, 9223372036854775807, 1000, true, '{}'";
const LEVEL_TYPES: &str =
    "text, text, smallint, timestamptz, bigint, text[], timestamptz, bigint, timestamptz, bigint, boolean";
const LEVEL: &str = "'w', 'noop', 0, null, 100, '{noop}', '2000-01-01', 1, null, null, true";

/// A statement of the library, the types of its parameters, and values for them.
const STATEMENTS: [(&str, &str, &str, &str); 25] = [
    (
        "pick_level",
        include_str!("../../sql/queries/pick_level.sql"),
        "text, smallint, timestamptz, bigint, timestamptz, bigint, timestamptz, bigint",
        "'noop', 0, null, 0, null, 1000, null, 9223372036854775807",
    ),
    (
        "pick_level_in_turn",
        include_str!("../../sql/queries/pick_level_in_turn.sql"),
        "text, smallint, timestamptz, bigint, timestamptz, bigint, timestamptz, bigint",
        "'noop', 0, '2000-01-01', 0, null, 1000, null, 9223372036854775807",
    ),
    ("pick_jobs", include_str!("../../sql/queries/pick_jobs.sql"), PICK_TYPES, PICK),
    (
        "pick_flagged_jobs",
        include_str!("../../sql/queries/pick_flagged_jobs.sql"),
        "text[], smallint[], timestamptz[], bigint[], bigint[], timestamptz, bigint, smallint, timestamptz, bigint, text[]",
        "'{noop}', '{0}', '{null}', '{0}', '{1000}', null, 1000, 32767, null, 9223372036854775807, '{stuck}'",
    ),
    ("find_levels", include_str!("../../sql/queries/find_levels.sql"), FIND_TYPES, FIND),
    (
        "find_unanswered",
        include_str!("../../sql/queries/find_unanswered.sql"),
        "bigint[], timestamptz, float8",
        "'{1,2,3}', null, 4",
    ),
    ("read_payload", include_str!("../../sql/queries/read_payload.sql"), "bigint", "1"),
    ("claim_by_job", include_str!("../../sql/queries/claim_by_job.sql"), CLAIM_TYPES, CLAIM),
    ("claim_by_queue", include_str!("../../sql/queries/claim_by_queue.sql"), CLAIM_TYPES, CLAIM),
    ("find_claimable", include_str!("../../sql/queries/find_claimable.sql"), CLAIM_TYPES, CLAIM),
    ("claim_level", include_str!("../../sql/queries/claim_level.sql"), LEVEL_TYPES, LEVEL),
    (
        "poll",
        include_str!("../../sql/queries/poll.sql"),
        "text[], text[], timestamptz, text, float8, float8, boolean",
        "'{noop}', '{}', null, 'w', 30, 30, true",
    ),
    (
        "complete_held",
        include_str!("../../sql/queries/complete_held.sql"),
        "tid[]",
        "'{\"(0,1)\",\"(0,2)\"}'",
    ),
    ("promote_held", include_str!("../../sql/queries/promote_held.sql"), "text, bigint[]", "'w', '{1,2,3}'"),
    (
        "fail_held",
        include_str!("../../sql/queries/fail_held.sql"),
        "bigint[], text[], text[], float8[], timestamptz[], boolean[]",
        "'{1}', '{no}', '{null}', '{null}', '{null}', '{false}'",
    ),
    (
        "complete_claimed",
        include_str!("../../sql/queries/complete_claimed.sql"),
        "text, bigint[], timestamptz[]",
        "'w', '{1,2,3}', '{2020-01-01,2020-01-01,2020-01-01}'",
    ),
    (
        "complete_claim",
        include_str!("../../sql/queries/complete_claim.sql"),
        "text, bigint[], timestamptz",
        "'w', '{1,2,3}', '2020-01-01'",
    ),
    (
        "complete_many_claimed",
        include_str!("../../sql/queries/complete_many_claimed.sql"),
        "text, bigint[], timestamptz[]",
        "'w', '{1,2,3}', '{2020-01-01,2020-01-01,2020-01-01}'",
    ),
    (
        "complete_claimed_queued",
        include_str!("../../sql/queries/complete_claimed_queued.sql"),
        "text, bigint[], timestamptz[], integer[]",
        "'w', '{1,2,3}', '{2020-01-01,2020-01-01,2020-01-01}', '{1,2,null}'",
    ),
    (
        "fail_claimed",
        include_str!("../../sql/queries/fail_claimed.sql"),
        "text, bigint[], timestamptz[], integer[], text[], text[], float8[], timestamptz[], boolean[]",
        "'w', '{1}', '{2020-01-01}', '{null}', '{no}', '{null}', '{null}', '{null}', '{false}'",
    ),
    (
        "return_claimed",
        include_str!("../../sql/queries/return_claimed.sql"),
        "text, bigint[], timestamptz[], integer[], float8",
        "'w', '{1}', '{2020-01-01}', '{null}', 0",
    ),
    (
        "find_unknown",
        include_str!("../../sql/queries/find_unknown.sql"),
        "text, bigint[], integer[]",
        "'w', '{1,2,3}', '{1}'",
    ),
    (
        "promote_untouched",
        include_str!("../../sql/queries/promote_untouched.sql"),
        "text, bigint[], smallint[], integer[], timestamptz[]",
        "'w', '{1,2,3}', '{0,0,0}', '{1,1,1}', '{2020-01-01,2020-01-01,2020-01-01}'",
    ),
    (
        "postpone_held",
        include_str!("../../sql/queries/postpone_held.sql"),
        "bigint[], float8",
        "'{1,2,3}', 1",
    ),
    (
        "refresh_locks",
        include_str!("../../sql/queries/refresh_locks.sql"),
        "text, bigint[]",
        "'w', '{1,2,3}'",
    ),
];

async fn explain(client: &Client, arguments: &str) -> String {
    let messages = client.simple_query(&format!("explain execute statement({arguments})")).await.unwrap();
    let lines = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn statements_that_run_for_every_job_read_no_whole_table() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let fill = "insert into graphile_worker._private_tasks (identifier) values ('noop'), ('other');
      insert into graphile_worker._private_job_queues (queue_name) select 'q' || n from generate_series(1, 100) as n;
      insert into graphile_worker._private_jobs (task_id, priority, run_at, job_queue_id)
        select 1 + n % 2, n % 3, now() + (n % 5 - 2) * interval '1 hour', case when n % 10 = 0 then 1 + n / 10 % 100 end
        from generate_series(1, 50000) as n;
      vacuum analyze graphile_worker._private_jobs;";
    for statement in fill.split_inclusive(';') {
        client.batch_execute(statement).await.unwrap();
    }
    for (name, sql, types, arguments) in STATEMENTS {
        let sql = fill_sql(sql);
        client.batch_execute(&format!("prepare statement ({types}) as {sql}")).await.unwrap();
        for mode in ["force_custom_plan", "force_generic_plan"] {
            client.batch_execute(&format!("set plan_cache_mode = {mode}")).await.unwrap();
            let plan = explain(&client, arguments).await;
            assert!(!plan.contains("Seq Scan on _private_jobs"), "{name}, {mode}:\n{plan}");
        }
        client.batch_execute("deallocate statement").await.unwrap();
    }
}

/// How many rows of jobs and queues a plan read.
fn rows_read(plan: &serde_json::Value) -> f64 {
    let count = |name: &str| plan[name].as_f64().unwrap_or(0.0);
    let is_ours = plan["Relation Name"].as_str().is_some_and(|name| name.starts_with("_private_job"));
    let rows = count("Actual Rows") + count("Rows Removed by Filter") + count("Rows Removed by Join Filter");
    let own = if is_ours { rows * count("Actual Loops") } else { 0.0 };
    own + plan["Plans"].as_array().into_iter().flatten().map(rows_read).sum::<f64>()
}

/// A worker plans its statements once. Most workers start when there is little to do, and many jobs are added later.
#[tokio::test]
async fn statements_that_were_planned_with_an_empty_table_read_few_rows_of_a_full_one() {
    let db = Database::migrated().await;
    let (client, other) = (db.client().await, db.client().await);
    let settings = "set enable_seqscan = off; set enable_bitmapscan = off; set enable_mergejoin = off;
      set enable_hashjoin = off; set jit = off; set plan_cache_mode = force_generic_plan";
    client.batch_execute(settings).await.unwrap();
    // An ANALYZE, or another change of the table, would make the server plan again.
    let almost_empty = "alter table graphile_worker._private_jobs set (autovacuum_enabled = false);
      alter table graphile_worker._private_job_queues set (autovacuum_enabled = false);
      insert into graphile_worker._private_tasks (identifier) values ('noop'), ('other');
      insert into graphile_worker._private_job_queues (queue_name) values ('q');
      insert into graphile_worker._private_jobs (task_id) values (1);
      vacuum analyze graphile_worker._private_jobs;
      vacuum analyze graphile_worker._private_job_queues;";
    for statement in almost_empty.split_inclusive(';') {
        other.batch_execute(statement).await.unwrap();
    }
    for (number, (name, sql, types, arguments)) in STATEMENTS.iter().enumerate() {
        let sql = fill_sql(sql);
        client.batch_execute(&format!("prepare statement{number} ({types}) as {sql}")).await.unwrap();
        let plan = format!("begin; explain execute statement{number}({arguments}); rollback");
        client.batch_execute(&plan).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let fill = "insert into graphile_worker._private_job_queues (queue_name) select 'q' || n from generate_series(1, 5000) as n;
      insert into graphile_worker._private_jobs (task_id, priority, run_at, job_queue_id)
        select 1, 0, now() - interval '1 hour', case when n % 10 = 0 then 1 + n / 10 % 50 end
        from generate_series(1, 20000) as n";
    other.batch_execute(fill).await.unwrap();
    let mut findings = Vec::new();
    for (number, (name, _, _, arguments)) in STATEMENTS.iter().enumerate() {
        client.batch_execute("begin").await.unwrap();
        let explain = format!("explain (analyze, format json) execute statement{number}({arguments})");
        let messages = client.simple_query(&explain).await.unwrap();
        client.batch_execute("rollback").await.unwrap();
        let text = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        let plan: serde_json::Value = serde_json::from_str(&text.expect("a plan")).unwrap();
        let rows = rows_read(&plan[0]["Plan"]);
        println!("{name}: {rows} rows");
        // After a lost reply, the worker reads the table of queues once.
        let queues = if *name == "find_unknown" { 5001.0 } else { 0.0 };
        if rows > 2500.0 + queues {
            findings.push(format!("{name}: {rows} rows"));
        }
    }
    assert!(findings.is_empty(), "of 20,000 jobs and 5,000 queues: {findings:#?}");
}

/// The sessions of applications keep the plans of `add_job` too.
#[tokio::test]
async fn an_add_that_was_planned_with_an_empty_table_reads_few_rows_of_a_full_one() {
    let db = Database::migrated().await;
    let (client, other) = (db.client().await, db.client().await);
    let add = "select graphile_worker.add_job('noop', job_key => 'key')";
    let set_up = "alter table graphile_worker._private_jobs set (autovacuum_enabled = false);
                  select graphile_worker.add_job('noop');
                  vacuum analyze graphile_worker._private_jobs;";
    for statement in set_up.split_inclusive(';') {
        other.batch_execute(statement).await.unwrap();
    }
    client.batch_execute("set plan_cache_mode = force_generic_plan").await.unwrap();
    client.batch_execute(add).await.unwrap();
    let fill = "insert into graphile_worker._private_jobs (task_id, key)
                select task.id, 'key ' || n from graphile_worker._private_tasks as task, generate_series(1, 20000) as n";
    other.batch_execute(fill).await.unwrap();
    let transaction = format!("begin; {add}");
    client.batch_execute(&transaction).await.unwrap();
    let read = "select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
                from pg_stat_xact_user_tables where relname = '_private_jobs'";
    let rows: i64 = client.query_one(read, &[]).await.unwrap().get(0);
    assert!(rows < 100, "{rows} rows of 20,000 were read");
}

/// With the settings of a worker's own connections: nested loops from few rows to many.
#[tokio::test]
async fn recovery_finds_locked_jobs_by_their_index() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let sql = fill_sql(include_str!("../../sql/queries/recover_workers.sql"));
    let set_up = "set enable_seqscan = off; set enable_bitmapscan = off; set enable_mergejoin = off;
                  set enable_hashjoin = off; set plan_cache_mode = force_generic_plan";
    client.batch_execute(set_up).await.unwrap();
    client
        .batch_execute(&format!("prepare statement (bigint, bigint, boolean, float8) as {sql}"))
        .await
        .unwrap();
    let plan = explain(&client, "3, 1000, true, 0").await;
    assert!(!plan.contains("Seq Scan on _private_jobs"), "{plan}");
    assert!(plan.contains("Index Scan using _atta_jobs_locked_index"), "{plan}");
    assert!(plan.contains("Index Scan using jobs_pkey1"), "{plan}");
}

/// The plan of a statement that was executed, on a worker's own connection.
async fn executed(client: &Client, sql: &str, types: &str, arguments: &str) -> serde_json::Value {
    let sql = fill_sql(sql);
    client.batch_execute(&format!("prepare statement ({types}) as {sql}")).await.unwrap();
    let explain = format!("explain (analyze, buffers, format json) execute statement({arguments})");
    client.batch_execute("begin").await.unwrap();
    let messages = client.simple_query(&explain).await.unwrap();
    client.batch_execute("rollback; deallocate statement").await.unwrap();
    let text = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    let plans: serde_json::Value = serde_json::from_str(&text.expect("a plan")).unwrap();
    plans[0]["Plan"].clone()
}

/// The pages that a statement reads.
async fn pages(client: &Client, sql: &str, types: &str, arguments: &str) -> i64 {
    let plan = executed(client, sql, types, arguments).await;
    let count = |name: &str| plan[name].as_i64().unwrap_or(0);
    count("Shared Hit Blocks") + count("Shared Read Blocks")
}

/// A window with the default frame reads all rows that have the same order, before it returns the first.
#[tokio::test]
async fn a_poll_does_not_read_all_jobs_with_the_same_time() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let settings = "set enable_seqscan = off; set enable_bitmapscan = off; set enable_mergejoin = off;
      set enable_hashjoin = off; set jit = off; set plan_cache_mode = force_generic_plan";
    client.batch_execute(settings).await.unwrap();
    let fill = "insert into graphile_worker._private_tasks (identifier) values ('noop');
      insert into graphile_worker._private_job_queues (queue_name) select 'q' || n from generate_series(1, 500) as n;
      insert into graphile_worker._private_jobs (task_id, run_at, job_queue_id)
        select 1, now() + interval '1 day', 1 + n % 500 from generate_series(1, 20000) as n;
      insert into graphile_worker._private_jobs (task_id, flags)
        select 1, '{\"stuck\": true}' from generate_series(1, 20000) as n";
    client.batch_execute(fill).await.unwrap();
    client.batch_execute("vacuum analyze graphile_worker._private_jobs").await.unwrap();
    let types = "text[], text[], timestamptz, text, float8, float8, boolean";
    let arguments = "'{noop}', '{stuck}', null, 'w', 30, 30, true";
    let plan = executed(&client, include_str!("../../sql/queries/poll.sql"), types, arguments).await;
    let rows = rows_read(&plan);
    assert!(rows < 2_000.0, "{rows} rows were read");
}

/// The cost of a claim is limited by what the worker can claim, not by the rest of the table.
#[tokio::test]
async fn a_claim_does_not_read_jobs_that_it_can_not_take() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let settings = "set enable_seqscan = off; set enable_bitmapscan = off; set enable_mergejoin = off;
      set enable_hashjoin = off; set jit = off; set plan_cache_mode = force_generic_plan";
    client.batch_execute(settings).await.unwrap();
    let around = [
        ("scheduled for later", "1, now() + interval '1 day', null, null"),
        ("of another task", "2, now(), null, null"),
        ("forbidden", "1, now(), '{\"stuck\": true}', null"),
        ("in queues and not due", "1, now() + interval '1 day', null, 1 + n % 500"),
    ];
    for (what, values) in around {
        let fill = format!(
            "insert into graphile_worker._private_tasks (identifier) values ('noop'), ('other') on conflict do nothing;
             insert into graphile_worker._private_job_queues (queue_name)
               select 'q' || n from generate_series(1, 500) as n on conflict do nothing;
             truncate graphile_worker._private_jobs;
             insert into graphile_worker._private_jobs (task_id, run_at, flags, job_queue_id)
               select {} from generate_series(1, 20000) as n;",
            values.replace("'{\"stuck\": true}'", "'{\"stuck\": true}'::jsonb")
        );
        client.batch_execute(&fill).await.unwrap();
        client.batch_execute("vacuum analyze graphile_worker._private_jobs").await.unwrap();
        let statements = [
            ("pick_jobs", include_str!("../../sql/queries/pick_jobs.sql"), PICK_TYPES, PICK, 30),
            ("find_levels", include_str!("../../sql/queries/find_levels.sql"), FIND_TYPES, FIND, 40),
            // It reads up to a thousand jobs with flags.
            ("claim_by_job", include_str!("../../sql/queries/claim_by_job.sql"), CLAIM_TYPES, CLAIM, 250),
            ("claim_level", include_str!("../../sql/queries/claim_level.sql"), LEVEL_TYPES, LEVEL, 50),
        ];
        for (name, sql, types, arguments, most) in statements {
            let pages = pages(&client, sql, types, arguments).await;
            assert!(pages <= most, "{name} beside 20,000 jobs {what}: {pages} pages");
        }
    }
}

/// The number of rows at the head that no pick can take, and of the jobs behind them.
const HEAD: i64 = 20_000;
const BEHIND: i64 = 30_000;

async fn add(client: &Client, count: i64, priority: i16, flags: &str) {
    add_at(client, count, priority, flags, "clock_timestamp()").await;
}

async fn add_at(client: &Client, count: i64, priority: i16, flags: &str, run_at: &str) {
    let sql = format!(
        "insert into graphile_worker._private_tasks (identifier) values ('noop') on conflict do nothing;
         insert into graphile_worker._private_jobs (task_id, priority, flags, run_at)
         select id, {priority}, {flags}, {run_at} from graphile_worker._private_tasks, generate_series(1, {count})
         where identifier = 'noop'"
    );
    client.batch_execute(&sql).await.unwrap();
}

async fn entries_read(client: &Client) -> i64 {
    let sql = "select sum(idx_tup_read)::bigint from pg_stat_user_indexes
               where indexrelname in ('_atta_jobs_task_index', '_atta_jobs_flagged_index')";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Drains the jobs behind the head, and counts the index entries that were read, which must be at least `least`.
async fn entries_read_in_a_drain(db: &Database, client: &Client, least: i64) -> i64 {
    // The longest budget. Otherwise a busy machine would need many more picks than there are thousands of jobs.
    let options = options(db).hold_budget(Duration::from_secs(1)).add_forbidden_flag("stuck");
    entries_read_in_a_drain_by(options, client, least).await
}

async fn entries_read_in_a_drain_by(options: WorkerOptions, client: &Client, least: i64) -> i64 {
    let before = entries_read(client).await;
    let options = options.define_raw_job("noop", |_| async {});
    let worker = Running::start(options).await;
    let left = "select count(*) from graphile_worker._private_jobs where priority = 0";
    wait_for("the jobs to be gone", || async {
        (client.query_one(left, &[]).await.unwrap().get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    worker.stop().await.unwrap();
    // Older servers collect these statistics at intervals.
    wait_for("the figures", || async {
        let entries = entries_read(client).await - before;
        (entries >= least).then_some(entries)
    })
    .await
}

fn assert_head_is_walked_over_seldom(entries: i64) {
    // There are more than thirty picks, since none returns more than a thousand jobs.
    assert!(entries < 15 * HEAD + 2 * BEHIND, "{entries} entries were read");
}

#[tokio::test]
async fn stuck_jobs_at_the_head_of_the_index_are_not_read_again_by_every_claim() {
    let db = Database::migrated().await;
    let client = db.client().await;
    add(&client, HEAD, -1, "'{\"stuck\": true}'").await;
    add(&client, BEHIND, 0, "null").await;
    assert_head_is_walked_over_seldom(entries_read_in_a_drain(&db, &client, HEAD + BEHIND).await);
}

#[tokio::test]
async fn dead_rows_at_the_head_of_the_index_are_not_read_again_by_every_claim() {
    let db = Database::migrated().await;
    let (client, pin) = (db.client().await, db.client().await);
    pin.batch_execute("begin isolation level repeatable read; select txid_current()").await.unwrap();
    add(&client, HEAD, -1, "null").await;
    client.batch_execute("delete from graphile_worker._private_jobs").await.unwrap();
    add(&client, BEHIND, 0, "null").await;
    assert_head_is_walked_over_seldom(entries_read_in_a_drain(&db, &client, HEAD + BEHIND).await);
}

/// A bulk add gives all of its jobs the same time. Completed jobs stay in the index for as long as a transaction may
/// see them.
#[tokio::test]
async fn completed_jobs_with_the_same_time_are_not_read_again_by_every_claim() {
    let db = Database::migrated().await;
    let (client, pin) = (db.client().await, db.client().await);
    pin.batch_execute("begin isolation level repeatable read; select txid_current()").await.unwrap();
    add_at(&client, BEHIND, 0, "null", "now()").await;
    let entries = entries_read_in_a_drain(&db, &client, BEHIND).await;
    // There are more than thirty picks. If each began at the start, it would read half of the jobs on average.
    assert!(entries < 12 * BEHIND, "{entries} entries were read");
}

/// The same for durable claims.
#[tokio::test]
async fn jobs_with_the_same_time_are_seldom_read_again_by_durable_claims() {
    let db = Database::migrated().await;
    let (client, pin) = (db.client().await, db.client().await);
    pin.batch_execute("begin isolation level repeatable read; select txid_current()").await.unwrap();
    add_at(&client, BEHIND, 0, "null", "now()").await;
    let options = options(&db).claims(Claims::Durable).local_queue(LocalQueueConfig::new(400));
    let entries = entries_read_in_a_drain_by(options, &client, BEHIND).await;
    // There are 150 claims. Without positions, each would read half of the jobs on average.
    println!("{entries} entries were read by durable claims");
    assert!(entries < 25 * BEHIND, "{entries} entries were read");
}

/// Dead rows, and jobs that are added one by one, so that each pick takes all free jobs.
#[tokio::test]
async fn dead_rows_are_seldom_read_again_when_each_claim_finds_one_job() {
    const JOBS: i64 = 200;
    // Enough that reading them takes many times as long as a job.
    const DEAD: i64 = 10 * HEAD;
    let db = Database::migrated().await;
    let (client, pin) = (db.client().await, db.client().await);
    pin.batch_execute("begin isolation level repeatable read; select txid_current()").await.unwrap();
    add(&client, DEAD, 0, "null").await;
    client.batch_execute("delete from graphile_worker._private_jobs").await.unwrap();
    let mut reports = Reports::new();
    let task = reports.task(|_| async {});
    // A job that only a poll can find would make the test fail.
    let options = options(&db).poll_interval(Duration::from_secs(3600)).define_raw_job("noop", task);
    let worker = Running::start(options).await;
    worker.utils.add_raw_job("noop", (), JobSpec::default()).await.unwrap();
    reports.next().await;
    let before = entries_read(&client).await;
    for _ in 0..JOBS {
        worker.utils.add_raw_job("noop", (), JobSpec::default()).await.unwrap();
        reports.next().await;
    }
    // Jobs that are more urgent, or were added late, are found as well, though not by the next pick.
    for run_at in ["now() - interval '1 day'", "now()"] {
        let sql = format!("select graphile_worker.add_job('noop', priority := -5, run_at := {run_at})");
        client.batch_execute(&sql).await.unwrap();
        reports.next().await;
    }
    worker.stop().await.unwrap();
    let entries = wait_for("the figures", || async {
        let entries = entries_read(&client).await - before;
        (entries >= DEAD).then_some(entries)
    })
    .await;
    println!("{JOBS} jobs behind {DEAD} dead rows: {entries} entries of the index were read");
    // Without positions, each pick would read all of them. How many do depends on timing, and so on how busy the
    // machine is.
    assert!(entries < JOBS * DEAD / 2, "{entries} entries were read");
}
