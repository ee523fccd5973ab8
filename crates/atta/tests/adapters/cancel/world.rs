//! A database with a few jobs, and a connection that observes it.

use atta::{ConnectionSettings, Schema, WorkerUtils};
use testkit::Database;
use tokio_postgres::Client;

/// Jobs in different states. The ids are those that the cases use.
const SEED: &str = "
    delete from graphile_worker._private_jobs;
    delete from graphile_worker._private_job_queues;
    delete from graphile_worker._private_tasks;
    truncate applied;
    alter sequence graphile_worker.jobs_id_seq1 restart with 1;
    select graphile_worker.add_job('seed', '{\"n\":1}', job_key := 'k');
    select graphile_worker.add_job('seed', '{\"n\":2}');
    select graphile_worker.add_job('seed', '{\"n\":3}', queue_name := 'q');
    select graphile_worker.add_job('seed', '{\"n\":4}', queue_name := 'held');
    select graphile_worker.add_job('other', '{\"n\":5}', run_at := '2100-01-01');
    update graphile_worker._private_jobs set attempts = max_attempts, last_error = 'no' where id = 2;
    update graphile_worker._private_jobs set attempts = 1, locked_at = now(), locked_by = 'gone' where id = 4;
    update graphile_worker._private_job_queues set locked_at = now(), locked_by = 'gone' where queue_name = 'held';
    insert into graphile_worker._private_tasks (identifier) values ('unused');
    insert into graphile_worker._private_job_queues (queue_name) values ('unused');
";

/// Everything that a function can change, except generated ids and times.
const DIGEST: &str = "
    select coalesce(string_agg(line, e'\\n' order by line), '') from (
      select concat_ws(
          ' ', 'job', task.identifier, queue.queue_name, job.payload, job.priority, job.attempts, job.max_attempts,
          job.last_error, job.key, job.locked_by, job.locked_at is null, job.revision, job.flags, job.run_at > now()
        ) as line
      from graphile_worker._private_jobs as job
      join graphile_worker._private_tasks as task on task.id = job.task_id
      left join graphile_worker._private_job_queues as queue on queue.id = job.job_queue_id
      union all select 'task ' || identifier from graphile_worker._private_tasks
      union all select concat_ws(' ', 'queue', queue_name, locked_by) from graphile_worker._private_job_queues
      union all select 'worker ' || id from graphile_worker._atta_workers
    ) as lines
";

/// Connections to this database that are executing something, except the one that asks.
const BUSY: &str = "
    select pid || ' ' || state || ' ' || query
    from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
      and state is distinct from 'idle'
";

const OTHERS: &str = "
    select count(*)
    from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
";

pub(super) struct World {
    pub(super) db: Database,
    /// With a pool of one connection, so that the next call gets the connection of the dropped one.
    pub(super) utils: WorkerUtils,
    observer: Client,
}

impl World {
    pub(super) async fn new() -> World {
        let world = World::on(Database::migrated().await).await;
        world.reset().await;
        world
    }

    /// Without the schema.
    pub(super) async fn empty() -> World {
        World::on(Database::empty().await).await
    }

    async fn on(db: Database) -> World {
        let observer = db.client().await;
        observer.batch_execute("create table applied (n int)").await.unwrap();
        let pool = ConnectionSettings::new(&db.url()).unwrap().pool(1).unwrap();
        World { utils: WorkerUtils::new(pool, Schema::default()), db, observer }
    }

    pub(super) async fn reset(&self) {
        self.observer.batch_execute(SEED).await.unwrap();
    }

    /// Everything that a function can change, as text.
    pub(super) async fn digest(&self) -> String {
        self.observer.query_one(DIGEST, &[]).await.unwrap().get(0)
    }

    /// How many jobs of a task are visible to others.
    pub(super) async fn count(&self, task: &str) -> i64 {
        let sql = "select count(*) from graphile_worker.jobs where task_identifier = $1";
        self.observer.query_one(sql, &[&task]).await.unwrap().get(0)
    }

    /// How many rows of the application are visible to others.
    pub(super) async fn count_applied(&self) -> i64 {
        self.observer.query_one("select count(*) from applied", &[]).await.unwrap().get(0)
    }

    pub(super) async fn text(&self, sql: &str) -> String {
        self.observer.query_one(sql, &[]).await.unwrap().get(0)
    }

    pub(super) async fn execute(&self, sql: &str) {
        self.observer.batch_execute(sql).await.unwrap();
    }

    /// Waits until no connection executes a statement or has an open transaction.
    pub(super) async fn settle(&self, what: &str) {
        testkit::wait_for(&format!("the end of what was sent: {what}"), || async {
            self.observer.query(BUSY, &[]).await.unwrap().is_empty().then_some(())
        })
        .await;
    }

    /// Waits until at most `most` connections are left.
    pub(super) async fn wait_for_connections(&self, most: i64, what: &str) {
        // A pooler keeps its connections to the server.
        if self.db.url() != self.db.direct_url() {
            return;
        }
        testkit::wait_for(&format!("the end of connections: {what}"), || async {
            let others: i64 = self.observer.query_one(OTHERS, &[]).await.unwrap().get(0);
            (others <= most).then_some(())
        })
        .await;
    }
}
