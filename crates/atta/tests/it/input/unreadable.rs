//! Jobs with text that is not valid in the encoding of the database: they stop no other job, and keep all columns that
//! can be read.

use atta::{Claims, JobSpecBuilder, WorkerOptions, WorkerUtils};
use serde_json::{Value, json};
use testkit::{Database, wait_for};
use tokio_postgres::Client;

use super::super::worker::support::Running;

const BOTH: [Claims; 2] = [Claims::Held, Claims::Durable];

/// A database without an encoding, which stores any bytes.
async fn database() -> (Database, Client, WorkerUtils) {
    let db = Database::encoded("SQL_ASCII").await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    utils.migrate().await.unwrap();
    let client = db.client().await;
    (db, client, utils)
}

/// Adds jobs that can be read, and runs a worker until none of them is left.
async fn others_run(db: &Database, client: &Client, utils: &WorkerUtils, claims: Claims) {
    for n in 0..4 {
        utils.add_raw_job("t", n, JobSpecBuilder::new().max_attempts(7)).await.unwrap();
    }
    let options =
        WorkerOptions::default().database_url(db.url()).claims(claims).define_raw_job("t", |_| async {});
    let running = Running::start(options).await;
    wait_for("all jobs that can be read to run", || async {
        let left = "select count(*) from graphile_worker._private_jobs where max_attempts = 7";
        (client.query_one(left, &[]).await.unwrap().get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    running.stop().await.unwrap();
}

/// Adds a job with an expression for each of these arguments, and returns its id.
async fn add(client: &Client, payload: &str, rest: &str) -> i64 {
    let sql = format!("select (graphile_worker.add_job('t', ({payload})::json, {rest})).id");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

/// The payload, the key, the flags and the error of a job that has failed permanently.
async fn failed(client: &Client, id: i64) -> (Value, Option<String>, Value, String) {
    let sql = "select payload::text, key, flags::text, last_error from graphile_worker._private_jobs
               where id = $1 and attempts = max_attempts and locked_at is null";
    let row = client.query_opt(sql, &[&id]).await.unwrap().expect("the job has failed permanently");
    let json = |text: Option<&str>| text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
    (json(row.get(0)), row.get(1), json(row.get(2)), row.get(3))
}

#[tokio::test]
async fn a_key_that_cannot_be_sent_stops_no_other_job() {
    for claims in BOTH {
        let (db, client, utils) = database().await;
        // Written as text, one key is too long, and the other is that of another job.
        let long = add(&client, "'{}'", r"job_key := repeat(E'\xff', 200)").await;
        add(&client, "'{}'", r"job_key := 'k\377', run_at := now() + interval '1 day'").await;
        let same = add(&client, "'{}'", r"job_key := E'k\xff'").await;
        others_run(&db, &client, &utils, claims).await;
        for (id, key) in [(long, r"\377".repeat(200)), (same, r"k\377".to_owned())] {
            let (payload, stored, flags, error) = failed(&client, id).await;
            assert_eq!((payload, stored, flags), (json!({}), None, Value::Null));
            assert!(error.contains("can't be sent to a worker in UTF-8"), "{error}");
            assert!(error.ends_with(&format!("\nthe key was {key}")), "{error}");
        }
    }
}

#[tokio::test]
async fn only_the_columns_that_cannot_be_sent_are_replaced() {
    for claims in BOTH {
        let (db, client, utils) = database().await;
        let key = add(&client, r#"'{"é": 1}'"#, r"job_key := E'\xff', flags := array['a', 'é']").await;
        let payload = add(&client, r#"E'"é\xff"'"#, "job_key := 'clé', flags := array['a']").await;
        let flags = add(&client, "'[1]'", r"job_key := 'key', flags := array['a', 'é', E'b\xff']").await;
        others_run(&db, &client, &utils, claims).await;
        let columns = async |id| {
            let (payload, key, flags, _) = failed(&client, id).await;
            (payload, key, flags)
        };
        assert_eq!(columns(key).await, (json!({"é": 1}), None, json!({"a": true, "é": true})));
        let unreadable = json!({"unreadable": r#""\303\251\377""#});
        assert_eq!(columns(payload).await, (unreadable, Some("clé".into()), json!({"a": true})));
        let flags_then = json!({"a": true, "é": true, r"b\377": true});
        assert_eq!(columns(flags).await, (json!([1]), Some("key".into()), flags_then));
    }
}

/// A constraint of the application may refuse the change of such a job.
#[tokio::test]
async fn a_job_that_can_neither_be_sent_nor_failed_stops_no_other_job() {
    for claims in BOTH {
        let (db, client, utils) = database().await;
        let constraint = "alter table graphile_worker._private_jobs add check (last_error is null)";
        client.batch_execute(constraint).await.unwrap();
        let bad = add(&client, "'{}'", r"job_key := E'\xff'").await;
        others_run(&db, &client, &utils, claims).await;
        let sql = "select attempts from graphile_worker._private_jobs where id = $1 and locked_at is null";
        assert_eq!(client.query_one(sql, &[&bad]).await.unwrap().get::<_, i16>(0), 0);
    }
}
