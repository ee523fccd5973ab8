//! Cron on a machine whose clock is wrong.

use atta::{CronEvent, WorkerContext, WorkerOptions};
use chrono::{DateTime, Utc};
use testkit::{Database, Process, SetClock, wait_for};

use super::{Running, at, clock_at, items, know};

/// The variable that contains the connection string of the process.
const CHILD: &str = "ATTA_CRON_SKEWED_CHILD";

#[test]
#[ignore = "not a test, but the process with the wrong clock"]
fn worker_process() {
    let Ok(url) = std::env::var(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let options =
            WorkerOptions::default().database_url(url).max_pg_conn(4).define_raw_job("other", other);
        // Jobs may use the time of this machine; cron does not.
        let options = options.use_local_time(true).with_cron("* * * * * a ?fill=5m").unwrap();
        options.init().await.unwrap().run().await.unwrap();
    });
}

/// The only task, so that the jobs of cron stay in the table.
async fn other(_: WorkerContext) {}

/// The item has been known for ten minutes, so that its start has ticks to backfill, and the test need not wait for a
/// minute.
#[tokio::test]
async fn a_machine_whose_clock_is_a_day_off_schedules_by_the_clock_of_the_database() {
    for (name, seconds) in [("ahead", 86_400), ("behind", -86_400)] {
        let db = Database::migrated().await;
        let client = db.client().await;
        let known = "insert into graphile_worker._private_known_crontabs
                     values ('a', now() - interval '10 minutes', now() - interval '9 minutes')";
        client.batch_execute(known).await.unwrap();
        let clock = SetClock::new(std::env::temp_dir().join(format!("{}-{name}", db.name())));
        clock.set(seconds);
        let mut command = Process::command_of_this_test("cron::skewed::worker_process");
        clock.give_to(command.env(CHILD, db.url()));
        let worker = Process::start(&mut command);
        let sql = "select now(), last_execution from graphile_worker._private_known_crontabs
                   where identifier = 'a' and last_execution > now() - interval '5 minutes'";
        let (now, last): (DateTime<Utc>, DateTime<Utc>) =
            wait_for("the minutes that were missed to be scheduled", || async {
                client.query_opt(sql, &[]).await.unwrap().map(|row| (row.get(0), row.get(1)))
            })
            .await;
        assert!(last <= now, "clock {name}: scheduled up to {last}, and it is {now}");
        drop(worker);
    }
}

/// An older version, or another tool, may have set that time.
#[tokio::test]
async fn an_item_that_was_scheduled_ahead_of_time_is_reported() {
    let db = Database::migrated().await;
    let client = db.client().await;
    know(&client, "a", "00:00:00", Some("23:00:00")).await;
    know(&client, "b", "00:00:00", Some("08:00:00")).await;
    let schedule = Running::start(&db, &items("* * * * * a\n* * * * * b"), &clock_at("08:00:10")).await;
    schedule
        .wait_for("the warning", |event| match event {
            CronEvent::ScheduledAhead { identifier, last_execution, .. } => {
                identifier == "a" && *last_execution == at("23:00:00")
            }
            _ => false,
        })
        .await;
    let is_of_b = |event: &CronEvent| matches!(event, CronEvent::ScheduledAhead { identifier, .. } if identifier == "b");
    assert!(!schedule.events.lock().unwrap().iter().any(|event| is_of_b(event)));
    schedule.stop().await;
}
