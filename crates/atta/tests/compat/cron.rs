//! One crontab in several processes of ours and one of Graphile Worker's, for an hour that takes half a minute.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use atta::testing::Clock;
use atta::{WorkerContext, WorkerOptions};
use testkit::{Database, FastClock, Process, Signal, wait_for};
use tokio_postgres::Client;

use crate::node::folder;

/// 1 March 2026, a Sunday, at 07:57:30.
const START: u64 = 1_772_351_850;
/// A minute in half a second.
const SPEED: u32 = 120;
/// Each item gives its name, and every how many minutes it comes.
const ITEMS: [(&str, i64); 4] = [("a", 1), ("b", 1), ("c", 5), ("d", 2)];
const CRONTAB: &str = "\
* * * * * one {item: 'a'}
* * * * * one ?id=two&fill=30m {item: 'b'}
*/5 7-9 1-7 * * three ?queue=line {item: 'c'}
*/2 * * 3 0,1 four ?max=3&priority=-1 {item: 'd'}
";

/// Where one of our processes finds its connection string.
const CHILD: &str = "ATTA_CRON_CHILD";

#[test]
#[ignore = "not a test, but one of our processes"]
fn worker_process() {
    let Ok(url) = std::env::var(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let worker = loop {
            // By a fast clock a connection can take too long on a busy machine.
            if let Ok(worker) = options(&url).init().await {
                break worker;
            }
        };
        worker.run().await.expect("the worker ends in good order");
    });
}

fn options(url: &str) -> WorkerOptions {
    let hour = Duration::from_secs(3600);
    // Its timers run fast too, and are not what this is about. Cron follows its clock, not the database's.
    let options =
        WorkerOptions::default().clock(Clock::system()).poll_interval(hour).recovery_threshold(hour);
    let options = options.database_url(url).max_pg_conn(4).define_raw_job("other", other);
    options.with_cron(CRONTAB).expect("a crontab")
}

/// So that the jobs of cron stay where they are.
async fn other(_: WorkerContext) {}

/// Who added which tick.
async fn ledger(client: &Client) -> Vec<(String, String, i64)> {
    let sql = "select added_by, item, minute from public.ledger order by minute, item";
    let rows = client.query(sql, &[]).await.expect("the ledger can be read");
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

async fn make_ledger(client: &Client) {
    let sql = "create table public.ledger (added_by text, item text, minute bigint);
        create function public.note() returns trigger language plpgsql as $$
        begin
          insert into public.ledger values (
            current_setting('application_name'),
            new.payload ->> 'item',
            extract(epoch from (new.payload -> '_cron' ->> 'ts')::timestamptz)::bigint / 60
          );
          return null;
        end $$;
        create trigger note after insert on graphile_worker._private_jobs
          for each row execute function public.note()";
    client.batch_execute(sql).await.expect("the ledger is made");
}

fn start(db: &Database) -> Vec<Process> {
    let clock = FastClock::new(START, SPEED);
    // Ten seconds of a fast clock are few for a connection on a busy machine.
    let url = |name: &str| format!("{}?connect_timeout=3600&application_name={name}", db.url());
    let mut node = Command::new(folder().join("node_modules/node/bin/node"));
    let node_url = format!("{}?application_name=node", db.url());
    node.args(["cron.js", "0.18.0", &node_url, CRONTAB]).current_dir(folder()).stderr(Stdio::null());
    clock.give_to(&mut node);
    let mut processes = vec![Process::start(&mut node)];
    for number in 1..=3 {
        let mut ours = Process::command_of_this_test("cron::worker_process");
        clock.give_to(ours.env(CHILD, url(&format!("atta{number}"))));
        processes.push(Process::start(&mut ours));
    }
    processes
}

/// Now the one, now the other of them is too late, so that each has its chance.
#[tokio::test]
async fn an_hour_in_four_processes_has_each_tick_once() {
    let db = Database::migrated().await;
    let client = db.client().await;
    make_ledger(&client).await;
    let mut processes = start(&db);
    let connected = "select count(distinct application_name) from pg_stat_activity
        where datname = current_database() and application_name in ('node', 'atta1', 'atta2', 'atta3')";
    wait_for("four processes", || async {
        let count: i64 = client.query_one(connected, &[]).await.expect("a count").get(0);
        (count == 4).then_some(())
    })
    .await;
    let first =
        wait_for("the first tick", || async { ledger(&client).await.first().map(|tick| tick.2) }).await;

    let mut last = first;
    for turn in 0.. {
        assert!(turn < 200, "an hour takes half a minute, and this is at {}", last - first);
        // One of them, then all of ours: longer than a minute of theirs.
        let late = if turn % 5 == 4 { &mut processes[1..] } else { &mut processes[turn % 5..=turn % 5] };
        assert!(late.iter_mut().all(|process| !process.has_ended()), "one of the processes has ended");
        late.iter().for_each(|process| process.signal(Signal::Stop));
        tokio::time::sleep(Duration::from_millis(600)).await;
        late.iter().for_each(|process| process.signal(Signal::Continue));
        last = ledger(&client).await.last().expect("ticks").2;
        if last > first + 60 {
            break;
        }
    }
    drop(processes);

    let mut ticks: BTreeMap<(i64, String), usize> = BTreeMap::new();
    let mut by: BTreeMap<String, usize> = BTreeMap::new();
    for (added_by, item, minute) in ledger(&client).await.into_iter().filter(|tick| tick.2 < first + 60) {
        *ticks.entry((minute, item)).or_default() += 1;
        *by.entry(added_by).or_default() += 1;
    }
    let expected: BTreeMap<(i64, String), usize> = (first..first + 60)
        .flat_map(|minute| ITEMS.map(|(item, every)| (minute, item, every)))
        .filter(|(minute, _, every)| minute % every == 0)
        .map(|(minute, item, _)| ((minute, item.to_owned()), 1))
        .collect();
    assert_eq!(ticks, expected);
    println!("ticks by process: {by:?}");
    assert!(by.contains_key("node") && by.keys().any(|name| name.starts_with("atta")), "{by:?}");
}
