//! Locks of workers of other tools.

use std::time::Duration;

use atta::{JobSpec, JobSpecBuilder};
use serde_json::json;
use testkit::Database;

use super::support::{Ledger, Setup};
use crate::worker::support::Running;

/// A sweep happens at a random moment of a worker's first minute, so several workers make it happen soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_a_worker_without_heartbeats_expires_after_four_hours() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let setup = Setup { slots: 1, poll: Duration::from_millis(500), ..Setup::new(&db) };
    let first = Running::start(setup.options().add_forbidden_flag("held")).await;
    let spec = |name: &str| JobSpecBuilder::new().queue_name(name).flags(vec!["held".into()]).build();
    let mut ids = Vec::new();
    for spec in [spec("fresh"), spec("stale"), JobSpecBuilder::new().flags(vec!["held".into()]).build()] {
        ids.push(first.utils.add_raw_job("work", json!({}), spec).await.unwrap().id());
    }
    let [fresh, stale, unqueued] = ids[..] else { panic!("three jobs") };
    let behind_fresh = JobSpecBuilder::new().queue_name("fresh").build();
    let sql = "with held as (
                 update graphile_worker._private_jobs as job
                 set flags = null, attempts = 1, locked_by = 'pool-0123456789abcdef01',
                   locked_at = now() - case when id = $1 then interval '1 hour' else interval '5 hours' end
                 where id = any ($2)
                 returning job.job_queue_id, job.locked_by, job.locked_at
               )
               update graphile_worker._private_job_queues as queue
               set locked_by = held.locked_by, locked_at = held.locked_at
               from held
               where queue.id = held.job_queue_id";
    ledger.client.execute(sql, &[&fresh, &ids]).await.unwrap();
    let waiting = first.utils.add_raw_job("work", json!({}), behind_fresh).await.unwrap().id();

    let mut workers = vec![first];
    for _ in 0..7 {
        workers.push(Running::start(setup.options()).await);
    }
    let done = "select count(*) from public.ledger where ended_at is not null";
    ledger.counted("both stale locks to be swept", done, 2).await;
    let plain = workers[0].utils.add_raw_job("work", json!({}), JobSpec::default()).await.unwrap().id();
    ledger.counted("a later job to be done", done, 3).await;
    let mut ran: Vec<i64> = ledger.runs().await.iter().map(|run| run.job_id).collect();
    ran.sort_unstable();
    assert_eq!(ran, [stale, unqueued, plain], "neither {fresh} nor {waiting}, whose queue it holds");
    let job = workers[0].utils.get_job(fresh).await.unwrap().unwrap();
    assert_eq!((job.locked_by(), job.attempts()), (Some("pool-0123456789abcdef01"), 1));
    for worker in workers {
        worker.stop().await.unwrap();
    }
}
