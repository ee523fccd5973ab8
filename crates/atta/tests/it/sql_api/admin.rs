//! The functions for administrators, on jobs that wait, that run, and whose worker sent no heartbeat for hours; and the
//! view.

use testkit::Database;
use tokio_postgres::Client;

use super::support::{Job, Listener, add, all_jobs, job, jobs_of, lock, refusal, run, value};

/// A waiting job, a running job, and a job whose lock is too old to count.
struct Three {
    waiting: Job,
    running: Job,
    stale: Job,
}

impl Three {
    async fn added(client: &Client) -> Three {
        let mut ids = Vec::new();
        for n in 1..=3 {
            let arguments = format!("'t', queue_name := 'q{n}', run_at := '2030-01-01Z', job_key := 'k{n}'");
            ids.push(add(client, &arguments).await.id);
        }
        lock(client, ids[1], "3 hours 59 minutes").await;
        lock(client, ids[2], "4 hours 1 minute").await;
        run(client, "update graphile_worker._private_jobs set last_error = 'boom' where key = 'k1'").await;
        run(
            client,
            "update graphile_worker._private_job_queues set locked_at = now(), locked_by = 'pool-1' \
             where queue_name <> 'q1'",
        )
        .await;
        let mut jobs = all_jobs(client).await.into_iter();
        let mut next = || jobs.next().expect("three jobs");
        Three { waiting: next(), running: next(), stale: next() }
    }

    /// The three ids and one that does not exist, as an array, not sorted.
    fn ids(&self) -> String {
        format!("array[999999, {}, {}, {}]", self.stale.id, self.waiting.id, self.running.id)
    }
}

async fn sorted(client: &Client, from: &str) -> Vec<Job> {
    let mut jobs = jobs_of(client, from).await;
    jobs.sort_by_key(|job| job.id);
    jobs
}

#[tokio::test]
async fn complete_jobs_deletes_all_but_the_running_ones() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let three = Three::added(&client).await;
    let mut listener = Listener::on(&db, "jobs:insert").await;
    let done = sorted(&client, &format!("graphile_worker.complete_jobs({})", three.ids())).await;
    assert_eq!(done, [three.waiting, three.stale]);
    assert_eq!(all_jobs(&client).await, [three.running]);
    assert_eq!(listener.counts().await, []);
    let locked = "select count(*) from graphile_worker._private_job_queues where locked_by = 'pool-1'";
    assert_eq!(value(&client, locked).await, "2");
}

#[tokio::test]
async fn permanently_fail_jobs_uses_up_the_attempts_of_all_but_the_running_ones() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for (argument, reason) in
        [("", "Manually marked as failed"), (", 'no longer wanted'", "no longer wanted")]
    {
        run(&client, "delete from graphile_worker._private_jobs").await;
        let three = Three::added(&client).await;
        let call = format!("graphile_worker.permanently_fail_jobs({}{argument})", three.ids());
        let failed = sorted(&client, &call).await;
        assert_eq!(failed.len(), 2);
        for (failed, before) in failed.iter().zip([three.waiting, three.stale]) {
            assert!(failed.updated_at > before.updated_at);
            let expected = Job {
                last_error: Some(reason.into()),
                attempts: 25,
                is_available: false,
                updated_at: failed.updated_at,
                ..before
            };
            assert_eq!(*failed, expected);
            assert_eq!(job(&client, failed.id).await, Some(expected));
        }
        assert_eq!(job(&client, three.running.id).await, Some(three.running));
    }
}

#[tokio::test]
async fn reschedule_jobs_changes_only_given_values_and_can_set_zero() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let three = Three::added(&client).await;
    let mut listener = Listener::on(&db, "jobs:insert").await;
    run(&client, "update graphile_worker._private_jobs set attempts = 25, priority = 5 where key = 'k1'")
        .await;
    let call = |rest: &str| format!("graphile_worker.reschedule_jobs({}, {rest})", three.ids());

    let moved = sorted(&client, &call("run_at := '2020-01-01Z', attempts := 0, priority := 0")).await;
    assert_eq!(moved.len(), 2);
    let expected = Job {
        run_at: "2020-01-01T00:00:00Z".parse().unwrap(),
        attempts: 0,
        priority: 0,
        updated_at: moved[0].updated_at,
        ..three.waiting.clone()
    };
    assert_eq!(moved[0], expected);
    assert!(moved[0].updated_at > three.waiting.updated_at);
    // The old lock stays, because another worker may be about to remove it.
    assert_eq!((&moved[1].locked_by, moved[1].is_available), (&three.stale.locked_by, false));

    let again = sorted(&client, &call("null, null, null, 3")).await;
    assert_eq!(again[0], Job { max_attempts: 3, updated_at: again[0].updated_at, ..expected.clone() });
    let nothing = sorted(&client, &format!("graphile_worker.reschedule_jobs({})", three.ids())).await;
    assert_eq!(nothing[0], Job { max_attempts: 3, updated_at: nothing[0].updated_at, ..expected });
    assert_eq!(job(&client, three.running.id).await, Some(three.running));
    assert_eq!(listener.counts().await, []);
}

#[tokio::test]
async fn reschedule_jobs_refuses_numbers_beyond_smallint() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let id = add(&client, "'t'").await.id;
    for wrong in ["priority := 40000", "attempts := 40000", "max_attempts := 40000"] {
        let sql = format!("select graphile_worker.reschedule_jobs(array[{id}], {wrong})");
        assert_eq!(refusal(&client, &sql).await.code().code(), "22003", "{wrong}");
    }
}

#[tokio::test]
async fn force_unlock_workers_frees_jobs_and_queues_of_those_workers_only() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let three = Three::added(&client).await;
    run(&client, "update graphile_worker._private_jobs set locked_by = 'pool-2' where key = 'k3'").await;
    run(
        &client,
        "update graphile_worker._private_job_queues set locked_by = 'pool-2' where queue_name = 'q3'",
    )
    .await;
    run(&client, "select graphile_worker.force_unlock_workers(array['pool-1', 'pool-9'])").await;
    let freed = Job { locked_at: None, locked_by: None, is_available: true, ..three.running };
    let kept = Job { locked_by: Some("pool-2".into()), ..three.stale };
    assert_eq!(all_jobs(&client).await, [three.waiting, freed, kept]);
    let locked =
        "select string_agg(queue_name, ',') from graphile_worker._private_job_queues where not is_available";
    assert_eq!(value(&client, locked).await, "q3");
}

#[tokio::test]
async fn no_ids_and_null_ids_are_no_jobs() {
    let db = Database::migrated().await;
    let client = db.client().await;
    add(&client, "'t'").await;
    for function in ["complete_jobs", "permanently_fail_jobs", "reschedule_jobs"] {
        for ids in ["null", "'{}'", "array[null]::bigint[]"] {
            assert_eq!(
                jobs_of(&client, &format!("graphile_worker.{function}({ids})")).await,
                [],
                "{function}"
            );
        }
    }
    run(&client, "select graphile_worker.force_unlock_workers(null)").await;
    assert_eq!(all_jobs(&client).await.len(), 1);
}

#[tokio::test]
async fn the_view_shows_every_job_with_its_names_and_without_its_payload() {
    let db = Database::migrated().await;
    let client = db.client().await;
    add(&client, "'t', '{\"secret\": 1}', 'q', job_key := 'k', flags := array['f']").await;
    add(&client, "'u'").await;
    let columns = "select string_agg(attname || ' ' || format_type(atttypid, null), ',' order by attnum) \
                   from pg_attribute where attrelid = 'graphile_worker.jobs'::regclass and attnum > 0";
    assert_eq!(
        value(&client, columns).await,
        "id bigint,queue_name text,task_identifier text,priority smallint,run_at timestamp with time zone,\
         attempts smallint,max_attempts smallint,last_error text,created_at timestamp with time zone,\
         updated_at timestamp with time zone,key text,locked_at timestamp with time zone,locked_by text,\
         revision integer,flags jsonb"
    );
    let shown = "select string_agg(concat_ws(' ', task_identifier, queue_name, key, flags), ',' order by id) \
                 from graphile_worker.jobs";
    assert_eq!(value(&client, shown).await, "t q k {\"f\": true},u");
}

#[tokio::test]
async fn recover_dead_worker_jobs_restores_attempts_frees_queues_and_delays() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for (key, worker) in [("a", "gone"), ("b", "gone"), ("c", "alive")] {
        add(&client, &format!("'t', '{{}}', 'q-{key}', job_key := '{key}'")).await;
        let locked = format!("locked_at = now(), locked_by = '{worker}'");
        let jobs =
            format!("update graphile_worker._private_jobs set {locked}, attempts = 3 where key = '{key}'");
        run(&client, &jobs).await;
        let queues = "update graphile_worker._private_job_queues set";
        run(&client, &format!("{queues} {locked} where queue_name = 'q-{key}'")).await;
    }
    let recover = |arguments: &str| {
        format!("select count(*)::text from graphile_worker._atta_recover_dead_worker_jobs({arguments})")
    };
    assert_eq!(value(&client, &recover("null")).await, "0");
    assert_eq!(value(&client, &recover("array['nobody']")).await, "0");
    assert_eq!(value(&client, &recover("array['gone'], interval '1 hour'")).await, "2");
    let left = "select string_agg(concat_ws(' ', job.key, job.attempts, job.locked_by, queue.locked_by,
                  round(extract(epoch from job.run_at - job.created_at) / 3600)::integer), ', ' order by job.key)
                from graphile_worker._private_jobs as job
                join graphile_worker._private_job_queues as queue on queue.id = job.job_queue_id";
    assert_eq!(value(&client, left).await, "a 2 1, b 2 1, c 3 alive alive 0");

    run(&client, "update graphile_worker._private_jobs set attempts = 0 where key = 'c'").await;
    assert_eq!(value(&client, &recover("array['alive']")).await, "1");
    let last = "select concat_ws(' ', attempts, run_at = created_at)
                from graphile_worker._private_jobs where key = 'c'";
    assert_eq!(value(&client, last).await, "0 t");
}
