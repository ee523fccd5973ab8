//! Chaos: workers of atta and one of Graphile Worker on one PostgreSQL, random faults, and a ledger that shows whether
//! the guarantees were kept. `cargo xtask chaos [--seed N] [--minutes M]` runs it.
//!
//! `schedule` determines the faults from the seed; `faults` carries them out; `fleet` has the worker processes, and
//! `worker` is the program of such a process; `work` adds jobs; `ledger` records what happened; `check` judges, without
//! a database.

mod schedule;
mod fleet;
mod faults;
mod worker;
mod work;
mod ledger;
mod check;

use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use testkit::{Cluster, Proxy};

use crate::check::{Evidence, Findings, Left};
use crate::faults::World;
use crate::fleet::Fleet;
use crate::ledger::Ledger;
use crate::work::Producers;

/// `SEED MINUTES`: set by `cargo xtask chaos`. Without it, nothing runs.
const WANTED: &str = "ATTA_CHAOS";

/// How long the remaining jobs may take to end after the last fault.
const DRAIN: Duration = Duration::from_secs(150);

/// The age of the records that a check during the run reads, and how much older the adds of the jobs that ran may be.
const LOOK_BACK: TimeDelta = TimeDelta::seconds(90);
const LONGEST_WAIT: TimeDelta = TimeDelta::seconds(300);

/// For how long the checks must find a stuck job unchanged.
const MINUTE: Duration = Duration::from_secs(60);

/// A job is stuck if it could run and does not start for this long, or if a worker of atta has it for this long.
const STUCK: &str = "
    select row_to_json(job)::text from (
      select id, attempts, locked_by, locked_at, run_at, last_error
      from graphile_worker._private_jobs
      where (locked_at is null and attempts < max_attempts and job_queue_id is null
          and run_at < now() - interval '60 seconds')
        or (locked_by like 'atta-%' and locked_at < now() - interval '60 seconds')
      order by id
      limit 100
    ) as job";

fn main() -> ExitCode {
    if let Ok(setup) = std::env::var(worker::SETUP) {
        worker::run(&setup);
        return ExitCode::SUCCESS;
    }
    let Ok(wanted) = std::env::var(WANTED) else {
        schedule::the_same_seed_plans_the_same_faults();
        println!("chaos: run by cargo xtask chaos");
        return ExitCode::SUCCESS;
    };
    worker::end_with_parent();
    let (seed, minutes) = wanted.split_once(' ').expect("a seed and minutes");
    let (seed, minutes): (u64, f64) =
        (seed.parse().expect("the seed is a number"), minutes.parse().expect("the minutes are a number"));
    println!("chaos: seed {seed}, {minutes} minutes");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let findings = runtime.expect("a runtime").block_on(run(seed, Duration::from_secs_f64(minutes * 60.0)));
    if findings.is_empty() {
        return ExitCode::SUCCESS;
    }
    for violation in findings.iter().take(40) {
        println!("VIOLATION: {violation}");
    }
    println!(
        "chaos: {} violations; again: cargo xtask chaos --seed {seed} --minutes {minutes}",
        findings.len()
    );
    ExitCode::FAILURE
}

/// Runs the faults for `length`. Returns the violations.
async fn run(seed: u64, length: Duration) -> Vec<String> {
    let start = || Cluster::temporary_with(&testkit::binaries(), &["synchronous_commit=on"], &[]);
    let cluster = tokio::task::spawn_blocking(start).await.expect("no panic").expect("PostgreSQL starts");
    let url = cluster.url("postgres");
    let ledger = Ledger::connect(&url);
    ledger.utils().migrate().await.expect("the schema is made");
    ledger.make().await;
    let folder = std::env::temp_dir().join(format!("atta-chaos-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the logs");
    let (proxy, through) = Proxy::before(&url);
    let world = Arc::new(World {
        fleet: Fleet::new(&folder, &through, &url),
        proxy,
        cluster: Arc::new(Mutex::new(cluster)),
        producers: Producers::new(Ledger::connect(&through).utils().clone()),
        url,
        done: Mutex::default(),
    });
    world.fleet.start_all().await;
    let watched = world.clone();
    let watching = tokio::spawn(async move { watched.fleet.watch().await });
    let mut adding = world.producers.start();

    let playing = world.play(schedule::plan(seed, length));
    let checking = check_while_it_runs(&ledger, &world);
    let mut violations = tokio::select! {
        () = playing => Vec::new(),
        found = checking => found,
    };
    world.mend();
    world.producers.stop();
    while let Some(added) = adding.join_next().await {
        added.expect("a producer does not panic");
    }
    println!("nothing is broken any more");
    violations.extend(drain(&ledger, &world).await);
    watching.abort();
    world.fleet.end().await;
    violations.extend(locks_left(&ledger).await);

    let evidence = gather(&ledger, &world, DateTime::UNIX_EPOCH).await;
    let findings = check::all(&evidence);
    summarise(seed, length, &evidence, &findings, &ledger, &world).await;
    violations.extend(findings.violations);
    violations.extend(evidence.history.violations);
    if violations.is_empty() {
        // If this fails, a small temporary folder stays.
        let _ = std::fs::remove_dir_all(&folder);
    } else {
        println!("the workers' logs are in {}", folder.display());
    }
    violations
}

/// Checks the last minute at intervals. Returns only if there are violations.
///
/// A job counts as stuck if all checks of a minute find it unchanged. The machine itself may stop for a minute, or be so
/// busy that the workers fall behind: then many jobs are old at once, and the workers need a while to run them.
async fn check_while_it_runs(ledger: &Ledger, world: &World) -> Vec<String> {
    let mut stuck_since: HashMap<String, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(Duration::from_secs(10)).await;
        let mut violations = check::so_far(&gather(ledger, world, Utc::now() - LOOK_BACK).await).violations;
        let rows = ledger.rows(STUCK, &[]).await;
        let now = Instant::now();
        let stuck = rows.iter().map(|row| row.get(0));
        let since = |job: String| {
            let since = stuck_since.get(&job).copied().unwrap_or(now);
            (job, since)
        };
        stuck_since = stuck.map(since).collect();
        let is_stuck = |(_, since): &(&String, &Instant)| now.duration_since(**since) >= MINUTE;
        let still: Vec<&str> = stuck_since.iter().filter(is_stuck).map(|(job, _)| job.as_str()).collect();
        if !still.is_empty() {
            violations.push(format!("jobs are stuck: {}", still.join(", ")));
        }
        if !violations.is_empty() {
            return violations;
        }
    }
}

/// The order of the queries matters: an acknowledged job is either in the table or gone, and a job that is gone or was
/// released is already in the ledger.
async fn gather(ledger: &Ledger, world: &World, since: DateTime<Utc>) -> Evidence {
    let acks = world.producers.acks_since(since.max(DateTime::UNIX_EPOCH + LONGEST_WAIT) - LONGEST_WAIT);
    let sql =
        "select job.id, job.attempts::integer, job.max_attempts::integer, job.last_error, job.payload::text,
                 job.locked_at is not null
               from graphile_worker._private_jobs as job";
    let rows = ledger.rows(sql, &[]).await;
    let left = rows.iter().map(|row| {
        let left = Left {
            attempts: row.get(1),
            max_attempts: row.get(2),
            last_error: row.get(3),
            payload: row.get(4),
            is_locked: row.get(5),
        };
        (row.get(0), left)
    });
    let changes = ledger.changes_since(since).await;
    Evidence {
        since,
        acks,
        left: left.collect(),
        changes,
        runs: ledger.runs_since(since).await,
        instances: ledger.instances().await,
        unknown_adds: world.producers.unknown_adds(),
        ghosts: world.producers.ghosts(),
        declarations: ledger.declarations().await,
        history: world.fleet.history(),
        faults: world.faults(),
        until: Utc::now(),
    }
}

/// Waits until all added jobs have completed or permanently failed.
async fn drain(ledger: &Ledger, world: &World) -> Option<String> {
    let sql = "select count(*) from graphile_worker._private_jobs
               where attempts < max_attempts or locked_at is not null";
    let start = Instant::now();
    let mut unlocked = Instant::now();
    while start.elapsed() < DRAIN {
        if ledger.count(sql).await == 0 {
            return None;
        }
        // Node does not know about a claim whose reply was lost, and keeps it for four hours.
        if start.elapsed() > Duration::from_secs(20) && unlocked.elapsed() > Duration::from_secs(20) {
            unlocked = Instant::now();
            world.fleet.terminate(schedule::NODE).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let sql = "select coalesce(json_agg(job)::text, '') from (
                 select id, attempts, locked_by, locked_at, run_at, last_error, job_queue_id
                 from graphile_worker._private_jobs
                 where attempts < max_attempts or locked_at is not null limit 10
               ) as job";
    let jobs: String = ledger.rows(sql, &[]).await[0].get(0);
    Some(format!("jobs are left {DRAIN:?} after the last fault: {jobs}"))
}

async fn locks_left(ledger: &Ledger) -> Vec<String> {
    let sql =
        "select locked.what, locked.id, locked.locked_by, locked.locked_at, instance.instance, declaration.at
               from (
                 select 'job' as what, id, locked_by, locked_at from graphile_worker._private_jobs
                 union all
                 select 'queue', id::bigint, locked_by, locked_at from graphile_worker._private_job_queues
               ) as locked
               left join chaos.instances as instance on instance.worker_id = locked.locked_by
               left join chaos.declarations as declaration on declaration.worker_id = locked.locked_by
               where locked.locked_by is not null";
    let describe = |row: &tokio_postgres::Row| {
        let (what, id, owner): (String, i64, String) = (row.get(0), row.get(1), row.get(2));
        let (at, instance): (Option<DateTime<Utc>>, Option<String>) = (row.get(3), row.get(4));
        let declared_at: Option<DateTime<Utc>> = row.get(5);
        format!(
            "{what} {id} is locked after all have ended, by {owner} {instance:?} at {at:?}; declared dead: {declared_at:?}"
        )
    };
    ledger.rows(sql, &[]).await.iter().map(describe).collect()
}

async fn summarise(
    seed: u64,
    length: Duration,
    evidence: &Evidence,
    findings: &Findings,
    ledger: &Ledger,
    world: &World,
) {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    evidence.acks.iter().for_each(|ack| *kinds.entry(ack.kind).or_default() += 1);
    let list = |counts: BTreeMap<&str, usize>| {
        counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    };
    let faults = world.faults();
    let lost_claims = ledger.count("select count(*) from chaos.lost_claims").await;
    let by_node = evidence.runs.iter().filter(|run| run.instance.starts_with("node")).count();
    let held = evidence.runs.iter().filter(|run| run.claimed_at.is_none()).count();
    println!(
        "chaos: seed {seed}, {:.1} minutes; {} faults ({}); {} adds acknowledged ({}), {} without an answer; {} runs \
         ({held} held, {by_node} by Node), {} durable claims ended, {} cron ticks; {} workers taken for dead, {lost_claims} claims found lost; \
         repeats: {} after a death, {} after a lost connection while held; Node ended by itself {} times; lost: {}",
        length.as_secs_f64() / 60.0,
        faults.len(),
        list(faults::count(&faults)),
        evidence.acks.len(),
        list(kinds),
        world.producers.refused(),
        evidence.runs.len(),
        evidence.changes.len(),
        findings.ticks,
        evidence.declarations.len(),
        findings.repeats_after_death,
        findings.repeats_while_held,
        evidence.history.node_ends,
        findings.lost,
    );
}
