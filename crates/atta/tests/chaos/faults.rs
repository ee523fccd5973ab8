//! Carries out the faults of the schedule.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use fastrand::Rng;
use testkit::{Cluster, Proxy};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use crate::fleet::Fleet;
use crate::ledger::{NAME, with_name};
use crate::schedule::{Fault, Planned};
use crate::work::Producers;

/// Moves the deaths of workers ten minutes into the past, so that the fleet is not under suspicion.
const FORGIVE: &str =
    "update graphile_worker._atta_dead_workers set found_at = found_at - interval '10 minutes'";

/// Locks the row of a job that a worker of atta runs.
const LOCK_JOB: &str = "
    select id from graphile_worker._private_jobs where locked_by like 'atta-%'
    order by random() limit 1 for update skip locked";

/// Locks the row of a queue that has jobs, whether a worker has locked the queue or not.
const LOCK_QUEUE: &str = "
    select id from graphile_worker._private_job_queues as queue
    where exists (select from graphile_worker._private_jobs as job where job.job_queue_id = queue.id)
    order by random() limit 1 for update skip locked";

/// Selects the key and the task of a job, preferably of a running one. Tasks whose payloads would be merged are left
/// out.
const HOLD_KEY: &str = "
    select graphile_worker.add_job(key.identifier, '{}', job_key => key.key)
    from (
      select task.identifier, job.key from graphile_worker._private_jobs as job
      join graphile_worker._private_tasks as task on task.id = job.task_id
      where job.key is not null
      order by job.locked_at is null, random() limit 1
    ) as key";

/// Everything that a fault can break.
pub(crate) struct World {
    pub(crate) fleet: Fleet,
    pub(crate) proxy: Proxy,
    pub(crate) cluster: Arc<Mutex<Cluster>>,
    pub(crate) producers: Producers,
    /// Not through the proxy.
    pub(crate) url: String,
    pub(crate) done: Mutex<Vec<Done>>,
}

/// A fault that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) fault: Fault,
    pub(crate) from: DateTime<Utc>,
    pub(crate) to: DateTime<Utc>,
}

impl World {
    /// Carries out the schedule. A fault that takes long does not delay the next one.
    pub(crate) async fn play(self: &Arc<World>, schedule: Vec<Planned>) {
        let start = Instant::now();
        let mut going_on = JoinSet::new();
        for Planned { at, fault, forgives } in schedule {
            tokio::time::sleep(at.saturating_sub(start.elapsed())).await;
            println!("{:>7.1} s  {fault:?}", at.as_secs_f64());
            let world = self.clone();
            going_on.spawn(async move {
                if forgives {
                    world.try_sql(FORGIVE).await;
                }
                let from = Utc::now();
                world.act(&fault).await;
                let done = Done { fault, from, to: Utc::now() };
                world.done.lock().unwrap_or_else(PoisonError::into_inner).push(done);
            });
        }
        while let Some(ended) = going_on.join_next().await {
            ended.expect("breaking things does not fail");
        }
    }

    /// Ends faults that may still be going on after a violation has ended the schedule.
    pub(crate) fn mend(&self) {
        self.proxy.come_back();
        self.proxy.cut_mute();
        self.proxy.delay(Duration::ZERO);
        self.proxy.throttle(0);
    }

    pub(crate) fn faults(&self) -> Vec<Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn act(self: &Arc<World>, fault: &Fault) {
        match *fault {
            Fault::Kill(worker) => self.fleet.kill(worker).await,
            Fault::Terminate(worker) => self.fleet.terminate(worker).await,
            Fault::Freeze(worker, length) => self.fleet.freeze(worker, length, None).await,
            Fault::FreezeAndKill(worker, length, pause) => {
                self.fleet.freeze(worker, length, Some(pause)).await
            }
            Fault::CutAll => self.proxy.cut_all(),
            Fault::CutOne(number) => self.proxy.cut_one(number),
            Fault::Outage(length) | Fault::LongOutage(length) => {
                self.proxy.go_away();
                tokio::time::sleep(length).await;
                self.proxy.come_back();
            }
            Fault::Delay(delay, length) => {
                self.proxy.delay(delay);
                tokio::time::sleep(length).await;
                self.proxy.delay(Duration::ZERO);
            }
            Fault::Throttle(bytes_per_second, length) => {
                self.proxy.throttle(bytes_per_second);
                tokio::time::sleep(length).await;
                self.proxy.throttle(0);
            }
            Fault::HalfOpen(length) => {
                self.proxy.mute_all();
                tokio::time::sleep(length).await;
                self.proxy.cut_mute();
            }
            Fault::EndBackends(count, seed) => self.end_backends(count, seed).await,
            Fault::Restart => self.with_cluster(|cluster| cluster.restart()).await,
            Fault::Crash => {
                self.with_cluster(|cluster| cluster.kill().and_then(|()| cluster.start_again())).await;
            }
            Fault::StopServer(length) => {
                let stop = move |cluster: &Cluster| {
                    cluster.kill()?;
                    std::thread::sleep(length);
                    cluster.start_again()
                };
                self.with_cluster(stop).await;
            }
            Fault::LockJob(length) => self.hold(LOCK_JOB, length).await,
            Fault::LockQueue(length) => self.hold(LOCK_QUEUE, length).await,
            Fault::HoldKey(length) => self.hold(HOLD_KEY, length).await,
            Fault::SetClock(seconds) => self.fleet.clock.set(seconds),
            Fault::LongTransaction(length, commits) => {
                let Some(mut client) = self.connect().await else { return };
                self.producers.add_late(&mut client, length, commits).await;
            }
        }
    }

    async fn with_cluster<E: std::fmt::Display + Send + 'static>(
        &self,
        act: impl FnOnce(&Cluster) -> Result<(), E> + Send + 'static,
    ) {
        let cluster = self.cluster.clone();
        let acting =
            move || act(&cluster.lock().unwrap_or_else(PoisonError::into_inner)).map_err(|e| e.to_string());
        tokio::task::spawn_blocking(acting).await.expect("it does not panic").expect("PostgreSQL comes back");
    }

    /// Ends connections in an order that the seed determines.
    async fn end_backends(&self, count: usize, seed: u64) {
        let Some(client) = self.connect().await else { return };
        let sql = "select pid from pg_stat_activity
                   where datname = current_database() and pid <> pg_backend_pid() order by backend_start";
        let Ok(rows) = client.query(sql, &[]).await else { return };
        let mut backends: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
        Rng::with_seed(seed).shuffle(&mut backends);
        backends.truncate(count);
        // The server may be stopping anyway.
        let _ = client
            .execute("select pg_terminate_backend(pid) from unnest($1::integer[]) as pid", &[&backends])
            .await;
    }

    /// Runs a statement in a transaction that stays open for `length` and is then rolled back.
    async fn hold(&self, sql: &str, length: Duration) {
        let Some(mut client) = self.connect().await else { return };
        let Ok(transaction) = client.transaction().await else { return };
        // Another transaction may have locked the same key.
        if transaction.batch_execute("set local lock_timeout = '2s'").await.is_err() {
            return;
        }
        if transaction.query(sql, &[]).await.is_ok() {
            tokio::time::sleep(length).await;
        }
        // If the connection is lost, the transaction is rolled back too.
        let _ = transaction.rollback().await;
    }

    async fn try_sql(&self, sql: &str) {
        if let Some(client) = self.connect().await {
            // If this fails, the next fault does it.
            let _ = client.batch_execute(sql).await;
        }
    }

    /// Returns none while the server is not reachable.
    async fn connect(&self) -> Option<Client> {
        let (client, connection) = tokio_postgres::connect(&with_name(&self.url, NAME), NoTls).await.ok()?;
        // The connection task ends with its client.
        tokio::spawn(connection);
        Some(client)
    }
}

/// How often each kind of fault occurred.
pub(crate) fn count(faults: &[Done]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for done in faults {
        *counts.entry(done.fault.name()).or_default() += 1;
    }
    counts
}
