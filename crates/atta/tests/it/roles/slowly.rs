//! During a claim: policies of a role can make a claim last as long as a test needs.

use atta::WorkerOptions;
use testkit::wait_for;

use super::support::Roles;
use crate::faults::support::{JOBS, LOCKED_QUEUES};
use crate::sql_api::support::{run, value};
use crate::worker::support::{Reports, Running};

/// The first claim that reads a queue takes four seconds, after its start and before it locks the job.
const NAPS: &str = "create sequence public.naps;
    create function public.nap() returns boolean language plpgsql security definer as $$
    begin
      if position('locked_queue' in current_query()) > 0 and nextval('public.naps') = 1 then
        perform pg_sleep(4);
      end if;
      return true;
    end $$;
    create policy slowly on graphile_worker._private_job_queues as restrictive using (public.nap())";

const NAPPING: &str =
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'";

/// An add by key changes the task of a job while the job is being claimed. The claim returns the changed job, and its
/// queue is free afterwards.
#[tokio::test]
async fn a_job_whose_task_changes_while_it_is_claimed_leaves_no_queue_locked() {
    let roles = Roles::new().await;
    run(&roles.owner, NAPS).await;
    let mut reports = Reports::new();
    let options = WorkerOptions::default()
        .database_url(roles.url("worker"))
        .concurrency(2)
        .define_raw_job("before", reports.task(|_| async {}))
        .define_raw_job("after", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    let producer = roles.db.client().await;
    // The job that it writes is due from now on.
    run(&producer, "begin").await;
    run(&roles.owner, "select graphile_worker.add_job('before', queue_name := 'line', job_key := 'k')").await;
    wait_for("the claim to nap", || async { (value(&roles.owner, NAPPING).await == "1").then_some(()) })
        .await;
    run(&producer, "select graphile_worker.add_job('after', queue_name := 'line', job_key := 'k'); commit")
        .await;
    assert_eq!(reports.next().await.task_identifier(), "after");
    for left in [JOBS, LOCKED_QUEUES] {
        wait_for("nothing to be left", || async { (value(&roles.owner, left).await == "0").then_some(()) })
            .await;
    }
    worker.stop().await.unwrap();
    assert!(reports.is_empty(), "it ran once");
}
