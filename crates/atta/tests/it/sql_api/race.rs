//! Adds and removals during claims, releases, clean-ups and each other: one interleaving per test, forced by locks.

use testkit::Database;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Error, Row};

use super::support::{
    Job, add, all_jobs, job, jobs_of, lock, names, pid, refusal, run, spec_array, value, wait_until_blocked,
};

/// Adds with the key `k`, in every mode that may find an existing job.
const KEYED_ADDS: [&str; 3] = [
    "graphile_worker.add_job('t', '\"new\"', job_key := 'k')",
    "graphile_worker.add_job('t', '\"new\"', job_key := 'k', job_key_mode := 'preserve_run_at')",
    "graphile_worker.add_jobs(array[row('t','\"new\"',null,null,null,'k',null,null)]::graphile_worker.job_spec[])",
];

/// Starts a query in a new session, and returns when the query waits for a lock of another session.
async fn start_blocked(db: &Database, sql: &str) -> JoinHandle<(Client, Result<Vec<Row>, Error>)> {
    let (client, observer) = (db.client().await, db.client().await);
    let pid = pid(&client).await;
    let sql = sql.to_owned();
    let call = tokio::spawn(async move {
        let result = client.query(&sql, &[]).await;
        (client, result)
    });
    wait_until_blocked(&observer, pid).await;
    call
}

/// Another session changes the job with the key `k`, and ends while the add waits for it.
async fn add_during(change: &str, end: &str, keyed_add: &str) -> (Job, Option<Job>, Job) {
    let db = Database::migrated().await;
    let client = db.client().await;
    let before = add(&client, "'t', '\"old\"', job_key := 'k'").await;
    if change.contains("locked_at = null") {
        lock(&client, before.id, "1 second").await;
    }
    run(&client, &format!("begin; {change}")).await;
    let adding = start_blocked(&db, &format!("select id from {keyed_add}")).await;
    run(&client, end).await;
    let (_, rows) = adding.await.expect("the add does not panic");
    let id: Option<i64> = rows.expect("the add succeeds")[0].get(0);
    let id = id.expect("an add never returns null");
    let added = job(&client, id).await.expect("the add stored what it returned");
    (before.clone(), job(&client, before.id).await, added)
}

const CLAIM: &str = "update graphile_worker._private_jobs set locked_at = now(), locked_by = 'pool-1', \
                     attempts = attempts + 1";

#[tokio::test]
async fn an_add_with_the_key_of_a_job_that_is_being_claimed_adds_a_new_job() {
    for keyed_add in KEYED_ADDS {
        let (before, old, added) = add_during(CLAIM, "commit", keyed_add).await;
        let old = old.unwrap();
        assert_eq!((old.key, old.attempts, old.payload.as_str()), (None, 25, "\"old\""), "{keyed_add}");
        assert_eq!(old.locked_by.as_deref(), Some("pool-1"));
        assert!(added.id > before.id);
        assert_eq!((added.key.as_deref(), added.payload.as_str(), added.revision), (Some("k"), "\"new\"", 0));
        assert!(added.is_available);
    }
}

#[tokio::test]
async fn an_add_with_the_key_of_a_job_whose_claim_is_rolled_back_changes_the_job() {
    for keyed_add in KEYED_ADDS {
        let (before, _, added) = add_during(CLAIM, "rollback", keyed_add).await;
        assert_eq!(
            (added.id, added.payload.as_str(), added.revision),
            (before.id, "\"new\"", 1),
            "{keyed_add}"
        );
    }
}

#[tokio::test]
async fn an_add_with_the_key_of_a_job_that_is_being_completed_adds_a_new_job() {
    for keyed_add in KEYED_ADDS {
        let delete = "delete from graphile_worker._private_jobs";
        let (before, old, added) = add_during(delete, "commit", keyed_add).await;
        assert_eq!(old, None);
        assert!(added.id > before.id && added.revision == 0, "{keyed_add}");
    }
}

#[tokio::test]
async fn an_add_with_the_key_of_a_job_that_is_being_failed_changes_the_job() {
    let fail =
        "update graphile_worker._private_jobs set locked_at = null, locked_by = null, last_error = 'boom'";
    for keyed_add in KEYED_ADDS {
        let (before, _, added) = add_during(fail, "commit", keyed_add).await;
        assert_eq!(
            (added.id, added.payload.as_str(), added.revision),
            (before.id, "\"new\"", 1),
            "{keyed_add}"
        );
        assert_eq!((added.attempts, added.last_error), (0, None));
    }
}

#[tokio::test]
async fn an_add_on_an_old_snapshot_fails_rather_than_returning_nothing() {
    for keyed_add in KEYED_ADDS {
        let db = Database::migrated().await;
        let (client, claimer) = (db.client().await, db.client().await);
        let before = add(&client, "'t', '\"old\"', job_key := 'k'").await;
        run(&client, "begin isolation level repeatable read; select 1").await;
        run(&claimer, CLAIM).await;
        let error = refusal(&client, &format!("select * from {keyed_add}")).await;
        assert_eq!(error.code().code(), "40001", "{keyed_add}");
        assert_eq!(all_jobs(&claimer).await.len(), 1);
        assert_eq!(job(&claimer, before.id).await.unwrap().key.as_deref(), Some("k"));
    }
}

#[tokio::test]
async fn a_removal_during_a_claim_keeps_the_job_from_being_retried() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let before = add(&client, "'t', job_key := 'k'").await;
    run(&client, &format!("begin; {CLAIM}")).await;
    let removing = start_blocked(&db, "select id from graphile_worker.remove_job('k')").await;
    run(&client, "commit").await;
    assert_eq!(removing.await.unwrap().1.unwrap()[0].get::<_, Option<i64>>(0), Some(before.id));
    let after = job(&client, before.id).await.unwrap();
    assert_eq!((after.key, after.attempts), (None, 25));
}

#[tokio::test]
async fn an_administrators_call_during_a_claim_skips_the_job() {
    for call in [
        "complete_jobs(array[1])",
        "permanently_fail_jobs(array[1])",
        "reschedule_jobs(array[1], priority := 9)",
    ] {
        let db = Database::migrated().await;
        let client = db.client().await;
        assert_eq!(add(&client, "'t'").await.id, 1);
        run(&client, &format!("begin; {CLAIM}")).await;
        let before = all_jobs(&client).await;
        let calling = start_blocked(&db, &format!("select id from graphile_worker.{call}")).await;
        run(&client, "commit").await;
        assert_eq!(calling.await.unwrap().1.unwrap().len(), 0, "{call}");
        assert_eq!(all_jobs(&client).await, before, "{call}");
    }
}

#[tokio::test]
async fn adds_that_introduce_the_same_task_and_queue_wait_for_each_other_and_both_succeed() {
    for end in ["commit", "rollback"] {
        let db = Database::migrated().await;
        let client = db.client().await;
        run(&client, "begin").await;
        add(&client, "'new', queue_name := 'new'").await;
        let adds = [
            "select id from graphile_worker.add_job('new', queue_name := 'new')",
            "select id from graphile_worker.add_job('new', queue_name := 'new', job_key := 'k')",
        ];
        let one = start_blocked(&db, adds[0]).await;
        let two = start_blocked(&db, adds[1]).await;
        run(&client, end).await;
        for adding in [one, two] {
            let id = adding.await.unwrap().1.unwrap()[0].get(0);
            let added = job(&client, id).await.unwrap();
            assert_eq!(names(&client, &added).await, ("new".into(), Some("new".into())));
        }
    }
}

/// Whatever a clean-up deletes during an add: either the add fails as a whole and may be repeated, or its job is
/// complete.
async fn assert_added_or_refused(adding: JoinHandle<(Client, Result<Vec<Row>, Error>)>, what: &str) {
    let (client, result) = adding.await.expect("the add does not panic");
    let whole = "select count(*) filter (where task.id is not null and (job_queue_id is null or queue.id is not null)) \
                 || ' of ' || count(*) from graphile_worker._private_jobs as job \
                 left join graphile_worker._private_tasks as task on task.id = task_id \
                 left join graphile_worker._private_job_queues as queue on queue.id = job_queue_id";
    let expected = match result {
        Ok(rows) => format!("{0} of {0}", rows.len()),
        Err(error) => {
            assert_eq!(error.code().map(|code| code.code()), Some("40001"), "{what}: {error:?}");
            "0 of 0".into()
        }
    };
    assert_eq!(value(&client, whole).await, expected, "{what}");
    assert_eq!(jobs_of(&client, "graphile_worker.add_job('t', queue_name := 'q')").await.len(), 1);
}

fn every_add() -> Vec<String> {
    let specs = |key: &str| spec_array(&[&format!("'t',null,'q',null,null,{key},null,null")]);
    vec![
        "graphile_worker.add_job('t', queue_name := 'q')".into(),
        "graphile_worker.add_job('t', queue_name := 'q', job_key := 'k')".into(),
        "graphile_worker.add_job('t', queue_name := 'q', job_key := 'k', job_key_mode := 'unsafe_dedupe')"
            .into(),
        format!("graphile_worker.add_jobs({})", specs("null")),
        format!("graphile_worker.add_jobs({})", specs("'k'")),
    ]
}

#[tokio::test]
async fn a_task_deleted_while_an_add_waits_for_its_queue_loses_no_job() {
    for every in every_add() {
        let db = Database::migrated().await;
        let (holder, cleaner) = (db.client().await, db.client().await);
        run(&cleaner, "insert into graphile_worker._private_tasks (identifier) values ('t')").await;
        run(&holder, "begin; insert into graphile_worker._private_job_queues (queue_name) values ('q')")
            .await;
        let adding = start_blocked(&db, &format!("select id from {every}")).await;
        run(&cleaner, "delete from graphile_worker._private_tasks").await;
        run(&holder, "rollback").await;
        assert_added_or_refused(adding, &every).await;
    }
}

/// A clean-up must lock something that adds need. Otherwise it can't see what they are about to commit.
#[tokio::test]
async fn a_clean_up_under_a_lock_takes_no_task_or_queue_from_under_an_add() {
    for every in every_add() {
        for table in ["_private_tasks", "_private_job_queues"] {
            let locks = [
                "_private_jobs in share row exclusive mode".into(),
                format!("{table} in access exclusive mode"),
            ];
            for taken in locks {
                let db = Database::migrated().await;
                let cleaner = db.client().await;
                add(&cleaner, "'t', queue_name := 'q'").await;
                run(&cleaner, "delete from graphile_worker._private_jobs").await;
                let clean_up =
                    format!("begin; lock table graphile_worker.{taken}; delete from graphile_worker.{table}");
                run(&cleaner, &clean_up).await;
                let adding = start_blocked(&db, &format!("select id from {every}")).await;
                run(&cleaner, "commit").await;
                assert_added_or_refused(adding, &format!("{taken}: {every}")).await;
            }
        }
    }
}

#[tokio::test]
async fn a_clean_up_that_waited_for_an_add_keeps_the_task_and_queue_of_its_job() {
    for table in ["_private_tasks", "_private_job_queues"] {
        let db = Database::migrated().await;
        let client = db.client().await;
        run(&client, "begin").await;
        let added = add(&client, "'t', queue_name := 'q'").await;
        let (cleaner, observer) = (db.client().await, db.client().await);
        let pid = pid(&cleaner).await;
        let clean_up = format!(
            "begin; lock table graphile_worker.{table} in access exclusive mode; \
             delete from graphile_worker.{table} as row where row.id not in \
               (select unnest(array[task_id, job_queue_id]) from graphile_worker._private_jobs); commit"
        );
        let cleaning = tokio::spawn(async move { cleaner.batch_execute(&clean_up).await });
        wait_until_blocked(&observer, pid).await;
        run(&client, "commit").await;
        cleaning.await.unwrap().unwrap();
        assert_eq!(names(&client, &added).await, ("t".into(), Some("q".into())));
    }
}
