//! Cron in a process that is killed again and again in the middle of its ticks, with a clock that runs fast.

use std::collections::BTreeMap;
use std::time::Duration;

use atta::testing::Clock;
use atta::{WorkerContext, WorkerOptions};
use testkit::{Database, FastClock, Process, Signal, wait_for};
use tokio_postgres::Client;

/// 1 March 2026, at 07:59:30.
const START: u64 = 1_772_351_970;
/// A minute lasts a quarter of a second.
const SPEED: u32 = 240;
const KILLS: usize = 50;
/// Each item, and its interval in minutes.
const ITEMS: [(&str, i64); 3] = [("a", 1), ("b", 1), ("c", 2)];
const CRONTAB: &str = "* * * * * a ?fill=1d\n* * * * * b ?fill=1d\n*/2 * * * * c ?fill=1d";

/// The variable that contains the connection string of the process.
const CHILD: &str = "ATTA_CRON_CHILD";

#[test]
#[ignore = "not a test, but the process that is killed"]
fn worker_process() {
    let Ok(url) = std::env::var(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let worker = loop {
            // With a fast clock, connecting can time out on a busy machine.
            if let Ok(worker) = options(&url).init().await {
                break worker;
            }
        };
        worker.run().await.unwrap();
    });
}

fn options(url: &str) -> WorkerOptions {
    let hour = Duration::from_secs(3600);
    // The timers of the process run fast too, and are not the subject of this test. Cron uses the clock of the process,
    // not the database's.
    let options =
        WorkerOptions::default().clock(Clock::system()).poll_interval(hour).recovery_threshold(hour);
    let options = options.database_url(url).max_pg_conn(4).define_raw_job("other", other);
    options.with_cron(CRONTAB).unwrap()
}

/// The only task, so that the jobs of cron stay in the table.
async fn other(_: WorkerContext) {}

fn spawn(db: &Database, clock: &FastClock, name: &str) -> Process {
    let mut command = Process::command_of_this_test("cron::killed::worker_process");
    // Ten seconds of a fast clock are too short for a connection on a busy machine.
    let url = format!("{}?connect_timeout=3600&application_name={name}", db.url());
    clock.give_to(command.env(CHILD, url));
    Process::start(&mut command)
}

/// Makes an add take a while, so that the process can be killed during it.
async fn slow_down(client: &Client) {
    let sql = "create function public.linger() returns trigger language plpgsql as $$
        begin
          perform pg_sleep(0.02);
          return new;
        end $$;
        create trigger linger before insert on graphile_worker._private_jobs
          for each row execute function public.linger()";
    client.batch_execute(sql).await.unwrap();
}

async fn is_connected(client: &Client, name: &str) -> bool {
    let sql = "select exists (select from pg_stat_activity where application_name = $1)";
    client.query_one(sql, &[&name]).await.unwrap().get(0)
}

async fn is_in_a_tick(client: &Client) -> bool {
    let sql = "select exists (select from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid()
          and state = 'active' and query like '%json_to_recordset%')";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// How often each tick was added, by item and minute.
async fn ticks(client: &Client) -> BTreeMap<(String, i64), i64> {
    let sql = "select task_identifier, extract(epoch from run_at)::bigint / 60, count(*)
        from graphile_worker.jobs group by 1, 2";
    let rows = client.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect()
}

async fn last_minute(client: &Client) -> Option<i64> {
    let sql = "select extract(epoch from last_execution)::bigint / 60
        from graphile_worker._private_known_crontabs where identifier = 'a'";
    client.query_opt(sql, &[]).await.unwrap().and_then(|row| row.get(0))
}

#[tokio::test]
async fn killed_in_the_middle_of_fifty_ticks_none_is_lost_and_none_comes_twice() {
    let db = Database::migrated().await;
    let client = db.client().await;
    slow_down(&client).await;
    let clock = FastClock::new(START, SPEED);
    let mut process = spawn(&db, &clock, "first");
    for kill in 0..KILLS {
        // Alternates between no running process and two at once.
        let heir = (kill % 2 == 1).then(|| spawn(&db, &clock, &format!("heir{kill}")));
        if heir.is_some() {
            wait_for("the heir", || async {
                is_connected(&client, &format!("heir{kill}")).await.then_some(())
            })
            .await;
        }
        wait_for("a tick", || async { is_in_a_tick(&client).await.then_some(()) }).await;
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..40))).await;
        assert!(!process.has_ended(), "it is there to be killed");
        process.kill();
        process = heir.unwrap_or_else(|| spawn(&db, &clock, "next"));
    }

    // When the last process has caught up with the clock, everything that was under way is over.
    let present = i64::try_from(clock.now() / 60).unwrap();
    wait_for("the present", || async { last_minute(&client).await.filter(|minute| *minute >= present) })
        .await;
    process.signal(Signal::Terminate);
    process.ended().await;

    let found = ticks(&client).await;
    let first = found.keys().filter(|(item, _)| item == "a").map(|(_, minute)| *minute).min().unwrap();
    let expected: BTreeMap<(String, i64), i64> = (first..=present)
        .flat_map(|minute| ITEMS.map(|(item, every)| (item, minute, every)))
        .filter(|(_, minute, every)| minute % every == 0)
        .map(|(item, minute, _)| ((item.to_owned(), minute), 1))
        .collect();
    println!("{} minutes, {} ticks, {KILLS} kills", present - first + 1, expected.len());
    assert_eq!(
        found.into_iter().filter(|((_, minute), _)| *minute <= present).collect::<BTreeMap<_, _>>(),
        expected
    );
    assert!(first <= i64::try_from(START / 60).unwrap() + 20, "the first tick was not the last");
}
