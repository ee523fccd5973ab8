//! Adding jobs without keys, one by one and in batches: defaults, order, notifications, and sequences that are not used
//! up.

use testkit::Database;

use super::support::{Listener, add, add_all, all_jobs, jobs_of, names, refusal, run, spec_array, value};

#[tokio::test]
async fn a_job_of_which_only_the_task_is_known_gets_the_defaults() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for call in ["'t'", "'t', null, null, null, null, null, null, null, null", "'t', flags := '{}'"] {
        let job = add(&client, call).await;
        assert_eq!(job.payload, "{}");
        assert_eq!((job.job_queue_id, job.key, job.flags, job.last_error), (None, None, None, None));
        assert_eq!((job.priority, job.attempts, job.max_attempts, job.revision), (0, 0, 25, 0));
        assert_eq!((job.locked_at, job.locked_by, job.is_available), (None, None, true));
        assert_eq!((job.run_at, job.updated_at), (job.created_at, job.created_at));
    }
}

#[tokio::test]
async fn every_argument_is_stored_by_name_and_by_place() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let by_name = "identifier := 't', payload := '{\"a\": 1}', queue_name := 'q', run_at := '2030-01-02 03:04Z', \
                   max_attempts := 4, job_key := 'one', priority := -7, flags := array['x', 'y', 'x'], \
                   job_key_mode := 'replace'";
    // As Node's cron calls it: with smallints, and a null without a type.
    let by_place =
        "'t', '{\"a\": 1}', 'q', '2030-01-02 03:04Z', 4::smallint, 'two', (-7)::smallint, null, 'replace'";
    for (call, flags) in [(by_name, Some(serde_json::json!({"x": true, "y": true}))), (by_place, None)] {
        let job = add(&client, call).await;
        assert_eq!(names(&client, &job).await, ("t".into(), Some("q".into())));
        assert_eq!(job.payload, "{\"a\": 1}");
        assert_eq!(job.run_at.to_rfc3339(), "2030-01-02T03:04:00+00:00");
        assert_eq!((job.max_attempts, job.priority, job.flags), (4, -7, flags));
    }
}

#[tokio::test]
async fn jobs_share_the_rows_of_their_task_and_queue() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let first = add(&client, "'t', queue_name := 'q'").await;
    let second = add(&client, "'t', queue_name := 'q', job_key := 'k'").await;
    assert_eq!((first.task_id, first.job_queue_id), (second.task_id, second.job_queue_id));
}

#[tokio::test]
async fn every_way_to_add_announces_the_number_of_jobs() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut listener = Listener::on(&db, "jobs:insert").await;
    add(&client, "'t'").await;
    add(&client, "'t', job_key := 'k'").await;
    add(&client, "'t', job_key := 'd', job_key_mode := 'unsafe_dedupe'").await;
    add_all(&client, &["'t',null,null,null,null,null,null,null", "'t',null,null,null,null,'k',null,null"])
        .await;
    assert_eq!(listener.counts().await, [Some(1), Some(1), Some(1), Some(2)]);
}

#[tokio::test]
async fn adding_no_jobs_sends_an_empty_notification() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut listener = Listener::on(&db, "jobs:insert").await;
    for none in ["null", "'{}'"] {
        assert_eq!(jobs_of(&client, &format!("graphile_worker.add_jobs({none})")).await, []);
    }
    // Equal notifications of one transaction would be merged; these are from two transactions.
    assert_eq!(listener.received().await, ["", ""]);
    assert_eq!(all_jobs(&client).await, []);
}

#[tokio::test]
async fn a_batch_of_jobs_without_keys_is_returned_in_its_order() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let batch = spec_query(1000, "case n % 3 when 0 then null else 'q' || n % 7 end", "null", "n desc");
    let payloads = payloads(&client, &format!("graphile_worker.add_jobs(({batch}))")).await;
    assert_eq!(payloads, (1..=1000).rev().map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_batch_of_new_old_running_failed_and_unkeyed_jobs_is_returned_in_its_order() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for key in ["waits", "runs", "failed"] {
        add(&client, &format!("'t', job_key := '{key}'")).await;
    }
    run(
        &client,
        "update graphile_worker._private_jobs set locked_at = now(), locked_by = 'pool-1' where key = 'runs'; \
         update graphile_worker._private_jobs set attempts = max_attempts where key = 'failed'",
    )
    .await;
    let keys = ["'zz'", "null", "'waits'", "'runs'", "null", "'failed'", "'aa'"];
    let specs: Vec<String> =
        (0..keys.len()).map(|n| format!("'t{}','{n}',null,null,null,{},null,null", n % 2, keys[n])).collect();
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    let added = add_all(&client, &specs).await;
    let payloads: Vec<&str> = added.iter().map(|job| job.payload.as_str()).collect();
    assert_eq!(payloads, ["0", "1", "2", "3", "4", "5", "6"]);
    for (job, key) in added.iter().zip(keys) {
        assert_eq!(job.key.as_ref().map_or("null".into(), |key| format!("'{key}'")), key);
        assert_eq!(job.revision, i32::from(key == "'waits'"));
    }
}

#[tokio::test]
async fn a_key_given_twice_in_one_batch_is_refused_and_nothing_is_added() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let specs = spec_array(&["'new task',null,'new queue',null,null,'same',null,null"; 2]);
    let error = refusal(&client, &format!("select graphile_worker.add_jobs({specs})")).await;
    assert_eq!(error.code().code(), "21000");
    assert!(error.message().contains("'same'"), "{error}");
    assert!(error.hint().unwrap().contains("two calls"), "{error}");
    assert_eq!(all_jobs(&client).await, []);
    assert_eq!(value(&client, "select count(*) from graphile_worker._private_tasks").await, "0");
}

#[tokio::test]
async fn adds_that_need_no_new_task_or_queue_use_up_no_identity_values() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let used = "select (select last_value from graphile_worker.tasks_id_seq) || ',' || \
                (select last_value from graphile_worker.job_queues_id_seq)";
    let adds = "select graphile_worker.add_job('t', queue_name := 'q'); \
                select graphile_worker.add_job('t', queue_name := 'q', job_key := 'k'); \
                select graphile_worker.add_job('t', queue_name := 'q', job_key := 'd', \
                  job_key_mode := 'unsafe_dedupe'); \
                select graphile_worker.add_jobs(array[row('t',null,'q',null,null,'k',null,null), \
                  row('t',null,'q',null,null,null,null,null)]::graphile_worker.job_spec[])";
    run(&client, adds).await;
    let before = value(&client, used).await;
    for _ in 0..20 {
        run(&client, adds).await;
    }
    assert_eq!(value(&client, used).await, before);
}

#[tokio::test]
async fn one_call_adds_twenty_thousand_keyed_jobs_and_another_changes_them() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for revision in 0..2 {
        let batch = spec_query(20_000, "null", "'key ' || n", "n");
        let sql = format!(
            "select count(*), min(revision), max(revision), bool_and(payload::text = ordinality::text) \
             from graphile_worker.add_jobs(({batch})) with ordinality"
        );
        let row = client.query_one(&sql, &[]).await.unwrap();
        assert_eq!((row.get(0), row.get(1), row.get(2)), (20_000_i64, revision, revision));
        assert!(row.get::<_, bool>(3), "not in the order of the specs");
    }
    assert_eq!(value(&client, "select count(*) from graphile_worker._private_jobs").await, "20000");
}

#[tokio::test]
async fn a_rolled_back_add_leaves_nothing_and_a_notification_waits_for_the_commit() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut listener = Listener::on(&db, "jobs:insert").await;
    run(&client, "begin").await;
    add(&client, "'t', queue_name := 'q'").await;
    add(&client, "'t', job_key := 'k'").await;
    run(&client, "rollback").await;
    assert_eq!(all_jobs(&client).await, []);
    assert_eq!(value(&client, "select count(*) from graphile_worker._private_tasks").await, "0");
    assert_eq!(value(&client, "select count(*) from graphile_worker._private_job_queues").await, "0");

    run(&client, "begin").await;
    add(&client, "'t'").await;
    assert_eq!(listener.counts().await, []);
    assert_eq!(all_jobs(&db.client().await).await, []);
    run(&client, "commit").await;
    assert_eq!(listener.counts().await, [Some(1)]);
    assert_eq!(all_jobs(&db.client().await).await.len(), 1);
}

/// A query for an array of specs whose payloads are the numbers from 1. The other parts are expressions over `n`.
fn spec_query(count: u32, queue: &str, key: &str, order: &str) -> String {
    format!(
        "select array_agg(row('t', to_json(n), {queue}, null, null, {key}, null, null)::\
         graphile_worker.job_spec order by {order}) from generate_series(1, {count}) as n"
    )
}

async fn payloads(client: &tokio_postgres::Client, from: &str) -> Vec<String> {
    jobs_of(client, from).await.into_iter().map(|job| job.payload).collect()
}
