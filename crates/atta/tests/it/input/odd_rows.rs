//! A table full of unusual rows, with ordinary jobs among them: a worker runs all jobs that can be run, and all rows
//! can be listed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use atta::{
    Claims, IntoTaskHandlerResult, JobFilter, JobSpecBuilder, RawJobSpec, Retry, RetryPolicy, TaskError,
    TaskHandler, WorkerContext, WorkerOptions, WorkerUtils,
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use testkit::{Database, wait_for};
use tokio_postgres::Client;

use super::super::worker::support::{Running, options};

/// Rows that SQL accepts, and that somebody with access to the tables can create.
const ODD_ROWS: &str = r#"
    select graphile_worker.add_job('odd', payload::json) from unnest(array[
        'null', '"x"', '1e400', '"\u0000"', '"\ud800"', '{"a":1,"a":2}', repeat('9', 5001),
        repeat('[', 1000) || repeat(']', 1000), '"' || repeat('x', 1000000) || '"'
    ]) as payload;
    select graphile_worker.add_job('odd', run_at := run_at::timestamptz, queue_name := queue_name)
    from unnest(array['-infinity', 'infinity', '4714-11-24 00:00:00Z BC', '0001-12-31 BC', '1800-01-01', '294276-12-31']) as run_at,
        unnest(array[null, 'odd', 'q' || run_at]) as queue_name;
    select graphile_worker.add_job('odd', priority := priority, max_attempts := attempts, queue_name := queue_name)
    from unnest(array[-32768, 32767]) as priority, unnest(array[1, 32767]) as attempts, unnest(array[null, '']) as queue_name;
    select graphile_worker.add_job(name, queue_name := name, job_key := 'key ' || name, flags := array[name, ''])
    from unnest(array['', repeat('ä', 128), E'line\nbreak', '{schema}', U&'\202e', 'it''s "odd"']) as name;
    with job as (select (graphile_worker.add_job('odd')).id from generate_series(1, 12))
    select graphile_worker.reschedule_jobs(array_agg(id)) from job;
    with odd as (select id, row_number() over (order by id desc) as n from graphile_worker._private_jobs)
    update graphile_worker._private_jobs as job set
        attempts = case n when 1 then -32768 when 2 then 24 when 3 then 100 when 4 then 32767 else 0 end,
        created_at = case n when 5 then 'infinity' when 6 then '-infinity' else now() end,
        updated_at = case n when 5 then '294276-12-31' when 6 then '0044-03-15 BC' else now() end,
        flags = (case n when 7 then '[1]' when 8 then '{"a": 1e400}' when 9 then '"x"' when 10 then '{"": null}' end)::jsonb,
        last_error = case n when 11 then E'\x1b[2J\x01 \u202e' when 12 then repeat('e', 1000000) end,
        revision = case n when 12 then 2147483647 else 0 end
    from odd where job.id = odd.id and n <= 12;
"#;

/// Ordinary jobs: without a queue, in their own queues, and behind unusual ones.
const GOOD_ROWS: &str = "
    select graphile_worker.add_job('good') from generate_series(1, 20);
    select graphile_worker.add_job('good', queue_name := queue_name)
    from unnest(array['odd', '', 'own', 'q-infinity', 'q1800-01-01']) as queue_name, generate_series(1, 2);
";

/// Accepts any JSON that serde_json supports, and fails for the rest.
#[derive(Serialize, Deserialize)]
struct Odd(serde_json::Value);

impl TaskHandler for Odd {
    const IDENTIFIER: &'static str = "odd";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {}
}

/// Old offsets had seconds, and in the west the year 1 begins before UTC's.
const ZONES: [&str; 3] = ["UTC", "America/New_York", "Asia/Kolkata"];

async fn database(zone: &str) -> (Database, Client, WorkerUtils) {
    let db = Database::migrated().await;
    let client = db.client().await;
    let zone = format!("alter database {} set timezone = '{zone}'", db.name());
    client.batch_execute(&zone).await.unwrap();
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    (db, client, utils)
}

async fn count(client: &Client, which: &str) -> i64 {
    let sql = format!("select count(*) from graphile_worker.jobs where {which}");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

/// Lists everything in every way, while jobs may be running.
async fn assert_readable(utils: &WorkerUtils) {
    let all = JobFilter { limit: u32::MAX, ..JobFilter::default() };
    let jobs = utils.list_jobs_with_states(&all).await.unwrap();
    let ids: Vec<i64> = jobs.iter().map(|(job, _)| job.id()).collect();
    utils.list_jobs(&JobFilter { ids: Some(ids.clone()), ..all.clone() }).await.unwrap();
    for (job, _) in jobs.iter().filter(|(job, _)| job.key().is_some()) {
        utils.list_jobs(&JobFilter { key: job.key().map(str::to_owned), ..all.clone() }).await.unwrap();
    }
    for task in utils.list_tasks(None, 100).await.unwrap() {
        assert!(task.oldest_due_at.is_none_or(|time| time <= Utc::now()));
    }
    utils.count_jobs().await.unwrap();
    utils.list_queues(None, 100).await.unwrap();
    utils.read_stats(5).await.unwrap();
    utils.list_workers().await.unwrap();
    utils.reschedule_jobs(&ids, Default::default()).await.unwrap();
}

/// Runs a worker, fills the table when the worker claims in the wanted way, and shuts it down when none of these jobs
/// is left.
async fn run_until(
    db: &Database,
    claims: Claims,
    tasks: WorkerOptions,
    fill: impl AsyncFnOnce(),
    none_left: &str,
) {
    let client = db.client().await;
    let is_so = Arc::new(AtomicBool::new(false));
    let probe = {
        let is_so = is_so.clone();
        move |ctx: WorkerContext| {
            // The row of a held job does not contain a worker.
            let is_held = ctx.job().locked_by().is_none();
            is_so.fetch_or(is_held == (claims == Claims::Held), Ordering::Relaxed);
            async {}
        }
    };
    let worker = tasks.claims(claims).define_raw_job("probe", probe).init().await.unwrap();
    let handle = worker.handle();
    let running = tokio::spawn(async move { worker.run().await });
    wait_for("the worker to claim in this way", || async {
        client.batch_execute("select graphile_worker.add_job('probe')").await.unwrap();
        is_so.load(Ordering::Relaxed).then_some(())
    })
    .await;
    fill().await;
    wait_for("the jobs to be done", || async { (count(&client, none_left).await == 0).then_some(()) }).await;
    handle.request_shutdown();
    tokio::time::timeout(testkit::DEADLINE, running).await.expect("it ends").unwrap().unwrap();
}

async fn good_jobs_are_done_and_odd_ones_tried(claims: Claims, zone: &str) {
    let (db, client, utils) = database(zone).await;
    let names = ["", &"ä".repeat(128), "line\nbreak", "{schema}", "\u{202e}", "it's \"odd\""];
    let mut options = options(&db).define_job::<Odd>().define_raw_job("good", |_| async {});
    for name in names {
        options = options.define_raw_job(name, |_| async {});
    }
    let due =
        "attempts < max_attempts and run_at <= now() and (task_identifier <> 'odd' or last_error is null)";
    let fill = async || {
        client.batch_execute("begin").await.unwrap();
        client.batch_execute(ODD_ROWS).await.unwrap();
        client.batch_execute(GOOD_ROWS).await.unwrap();
        client.batch_execute("commit").await.unwrap();
        assert_readable(&utils).await;
    };
    run_until(&db, claims, options, fill, due).await;
    assert_eq!(count(&client, "task_identifier = 'good' or locked_at is not null").await, 0);
    // Payloads that serde_json does not support have failed with an error that says so, and are retried later.
    assert!(count(&client, "last_error like '%number out of range%' and attempts >= 1").await >= 1);
    assert!(count(&client, "last_error like '%recursion limit%' and attempts >= 1").await >= 1);
    assert_eq!(count(&client, "run_at > now() + interval '1 day' and attempts = 0").await, 6);
    assert_readable(&utils).await;
}

#[tokio::test]
async fn ordinary_jobs_complete_beside_odd_ones_with_held_claims() {
    for zone in ZONES {
        good_jobs_are_done_and_odd_ones_tried(Claims::Held, zone).await;
    }
}

#[tokio::test]
async fn ordinary_jobs_complete_beside_odd_ones_with_durable_claims() {
    for zone in ZONES {
        good_jobs_are_done_and_odd_ones_tried(Claims::Durable, zone).await;
    }
}

/// The errors that a task may return, by payload.
fn odd_error(what: &str) -> TaskError {
    let deep = || format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let payload = |json: String| RawValue::from_string(json).expect("JSON");
    match what {
        "nul" => TaskError::new("a\0b"),
        "empty" => TaskError::new(""),
        "letters" => TaskError::new("→ 日本 😀"),
        "huge" => TaskError::new("x".repeat(5_000_000)),
        "late" => TaskError::new("late").retry_in(Duration::MAX),
        "first" => TaskError::new("first").retry_at(DateTime::<Utc>::MIN_UTC),
        "last" => TaskError::new("last").retry_at(DateTime::<Utc>::MAX_UTC),
        "deep" => TaskError::new("deep").with_payload(payload(deep())),
        _ => TaskError::new("nul in payload").with_payload(payload("\"\\u0000\"".into())),
    }
}

const ANSWERS: [&str; 9] = ["nul", "empty", "letters", "huge", "late", "first", "last", "deep", "other"];

/// Fails in every unusual way, with a retry policy that makes each delay endless.
#[derive(Serialize, Deserialize)]
struct Fails(String);

impl TaskHandler for Fails {
    const IDENTIFIER: &'static str = "fails";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        Err::<(), _>(odd_error(&self.0))
    }

    fn retry_policy() -> RetryPolicy {
        RetryPolicy::new(|_, _| Retry::In(Duration::MAX)).with_jitter(f64::INFINITY)
    }
}

async fn odd_answers_are_written_down(db: &Database, claims: Claims) {
    let client = db.client().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let fill = async || {
        let spec = atta::JobSpecBuilder::new().max_attempts(2).build();
        let jobs: Vec<(Fails, _)> = ANSWERS.iter().map(|answer| (Fails((*answer).into()), &spec)).collect();
        utils.add_jobs(&jobs).await.unwrap();
        utils.add_raw_job("good", 1, atta::JobSpec::default()).await.unwrap();
    };
    let tasks = options(db).define_job::<Fails>().define_raw_job("good", |_| async {});
    let left = "task_identifier <> 'fails' or last_error is null or locked_at is not null \
        or (last_error like '%first%' and attempts < 2)";
    run_until(db, claims, tasks, fill, left).await;
    assert_eq!(count(&client, "locked_at is not null or last_error is null or attempts > 2").await, 0);
    assert_eq!(
        count(&client, "attempts = 1").await,
        ANSWERS.len() as i64 - 1,
        "all but the one that is due again"
    );
    assert_eq!(count(&client, "attempts = 2 and last_error like '%first%'").await, 1);
    let not_stored = "last_error like '%deep%' and last_error like '%was not stored%'";
    assert_eq!(count(&client, not_stored).await, 1);
    assert_eq!(utils.list_jobs(&JobFilter::default()).await.unwrap().len(), ANSWERS.len());
    client.batch_execute("delete from graphile_worker._private_jobs").await.unwrap();
}

#[tokio::test]
async fn unusual_errors_of_tasks_are_stored() {
    let db = Database::migrated().await;
    odd_answers_are_written_down(&db, Claims::Held).await;
    odd_answers_are_written_down(&db, Claims::Durable).await;
}

/// The encoding of a database may lack characters that an error contains.
#[tokio::test]
async fn an_error_with_letters_that_the_database_lacks_is_written_without_them() {
    let db = Database::encoded("LATIN1").await;
    WorkerUtils::connect(&db.url()).unwrap().migrate().await.unwrap();
    odd_answers_are_written_down(&db, Claims::Durable).await;
}

/// Characters that the encoding has are kept.
#[tokio::test]
async fn characters_of_an_error_that_the_database_can_store_are_kept() {
    let db = Database::encoded("LATIN1").await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    utils.migrate().await.unwrap();
    for claims in [Claims::Held, Claims::Durable] {
        let job = utils.add_raw_job("t", 1, JobSpecBuilder::new().max_attempts(1)).await.unwrap();
        let options = WorkerOptions::default()
            .database_url(db.url())
            .claims(claims)
            .define_raw_job("t", |_| async { Err::<(), _>("café 😀 ł größer") });
        let running = Running::start(options).await;
        let error = wait_for("the error to be written", || async {
            utils.get_job(job.id()).await.unwrap().and_then(|job| job.last_error().map(str::to_owned))
        })
        .await;
        assert_eq!(error, "café ? ? größer");
        running.stop().await.unwrap();
    }
}

/// In JSON, every character can be written in ASCII. Only a payload that is refused for another reason is not stored.
#[tokio::test]
async fn the_next_payload_is_stored_although_the_database_lacks_its_characters() {
    let db = Database::encoded("LATIN1").await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    utils.migrate().await.unwrap();
    for claims in [Claims::Held, Claims::Durable] {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        for (next, stored) in [(r#"{"é€😀":"\n"}"#, r#"{"\u00e9\u20ac\ud83d\ude00":"\n"}"#), (&deep, "1")]
        {
            let job = utils.add_raw_job("t", 1, JobSpecBuilder::new().max_attempts(1)).await.unwrap();
            let next = next.to_owned();
            let task = move |_| {
                let next = RawValue::from_string(next.clone()).unwrap();
                async move { Err::<(), _>(TaskError::new("ł é").with_payload(next)) }
            };
            let options = WorkerOptions::default().database_url(db.url()).claims(claims);
            let running = Running::start(options.define_raw_job("t", task)).await;
            let job = wait_for("the error to be written", || async {
                utils.get_job(job.id()).await.unwrap().filter(|job| job.last_error().is_some())
            })
            .await;
            running.stop().await.unwrap();
            let error = job.last_error().unwrap();
            assert_eq!(job.payload_json(), stored, "{error}");
            assert_eq!(error.lines().next(), Some("? é"));
            assert_eq!(error.contains("its next payload was not stored"), stored == "1", "{error}");
            assert!(stored != "1" || error.contains("54001"), "{error}");
        }
    }
}

/// An error that the database can't store does not undo the batch in which its job ran: the others do not run again.
#[tokio::test]
async fn an_error_with_letters_that_the_database_lacks_makes_no_other_job_run_again() {
    const JOBS: usize = 800;
    let db = Database::encoded("LATIN1").await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    utils.migrate().await.unwrap();
    let spec = JobSpecBuilder::new().max_attempts(1).build();
    let job = |n| RawJobSpec::new("t", n, spec.clone()).unwrap();
    let jobs: Vec<RawJobSpec> = (0..JOBS).map(job).collect();
    let runs = Arc::new(AtomicUsize::new(0));
    let mut workers = Vec::new();
    for _ in 0..3 {
        let runs = runs.clone();
        let options = WorkerOptions::default().database_url(db.url()).concurrency(10).claims(Claims::Held);
        let options = options.define_raw_job("t", move |context: WorkerContext| {
            runs.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::time::sleep(Duration::from_millis(3)).await;
                match context.payload::<usize>() {
                    Ok(n) if n % 97 == 50 => Err("5 € are missing"),
                    _ => Ok(()),
                }
            }
        });
        workers.push(Running::start(options).await);
    }
    utils.insert_raw_jobs(&jobs).await.unwrap();
    let failed = (0..JOBS).filter(|n| n % 97 == 50).count();
    wait_for("all jobs to end", || async {
        let left = utils.list_jobs(&JobFilter::default()).await.unwrap();
        (left.len() == failed && left.iter().all(|job| job.last_error().is_some())).then_some(())
    })
    .await;
    for worker in workers {
        worker.stop().await.unwrap();
    }
    assert_eq!(runs.load(Ordering::SeqCst), JOBS);
}

/// Inserts a payload as bytes, which may be invalid in the encoding of the database.
const INSERT_BYTES: &str = "insert into graphile_worker._private_jobs (task_id, payload, run_at)
    select task.id, json_build_object('text', convert_from($1, getdatabaseencoding())), now() - interval '1 hour'
    from graphile_worker._private_tasks as task
    where task.identifier = 't'
    returning id";

/// In databases with an encoding other than UTF-8, a job may have text that the server can't send.
async fn jobs_whose_text_cannot_be_sent_fail_and_the_others_run(encoding: &str, claims: Claims) {
    let db = Database::encoded(encoding).await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    utils.migrate().await.unwrap();
    let client = db.client().await;
    utils.add_raw_job("t", 1, JobSpecBuilder::new()).await.unwrap();
    // A small payload, and one that is read separately.
    let mut bad = Vec::new();
    for text in [&b"a\x81b"[..], &[b"a\x81b".repeat(3), fastrand_text(9000)].concat()] {
        bad.push(client.query_one(INSERT_BYTES, &[&text]).await.unwrap().get::<_, i64>(0));
    }
    for n in 0..20 {
        utils
            .add_raw_job("t", n, JobSpecBuilder::new().queue_name(format!("queue {}", n % 3)))
            .await
            .unwrap();
        utils.add_raw_job("t", n, JobSpecBuilder::new()).await.unwrap();
    }
    let options =
        WorkerOptions::default().database_url(db.url()).claims(claims).define_raw_job("t", |_| async {});
    let running = Running::start(options).await;
    wait_for("all other jobs to run", || async {
        let left = "select count(*) from graphile_worker._private_jobs where attempts < max_attempts";
        (client.query_one(left, &[]).await.unwrap().get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    running.stop().await.unwrap();
    let failed = "select array_agg(id order by id) from graphile_worker._private_jobs
                  where last_error like '%can''t be sent to a worker in UTF-8%'";
    assert_eq!(client.query_one(failed, &[]).await.unwrap().get::<_, Vec<i64>>(0), bad);
    let job = utils.get_job(bad[0]).await.unwrap().expect("the job is there, and can be read");
    assert_eq!(job.payload_json(), r#"{"unreadable" : "{\"text\" : \"a\\201b\"}"}"#);
}

/// Text that compression does not make small.
fn fastrand_text(length: usize) -> Vec<u8> {
    std::iter::repeat_with(|| fastrand::alphanumeric() as u8).take(length).collect()
}

#[tokio::test]
async fn a_byte_that_windows_1252_has_no_character_for_stops_no_other_job() {
    jobs_whose_text_cannot_be_sent_fail_and_the_others_run("WIN1252", Claims::Held).await;
    jobs_whose_text_cannot_be_sent_fail_and_the_others_run("WIN1252", Claims::Durable).await;
}

#[tokio::test]
async fn bytes_in_a_database_without_an_encoding_stop_no_other_job() {
    jobs_whose_text_cannot_be_sent_fail_and_the_others_run("SQL_ASCII", Claims::Held).await;
    jobs_whose_text_cannot_be_sent_fail_and_the_others_run("SQL_ASCII", Claims::Durable).await;
}
