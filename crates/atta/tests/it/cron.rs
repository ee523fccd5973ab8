//! The cron schedule on a real PostgreSQL, with a clock that the test sets.

mod killed;
mod skewed;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use atta::testing::Clock;
use atta::{
    Cron, CronEvent, CronItems, CrontabFill, IntoTaskHandlerResult, TaskHandler, WorkerContext, WorkerEvent,
    WorkerHandle, WorkerOptions, parse_crontab,
};
use chrono::{DateTime, TimeDelta, Utc};
use testkit::{Database, wait_for};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

/// The only task of the workers in these tests, so that the jobs of cron stay in the table.
#[derive(serde::Serialize, serde::Deserialize)]
struct Other;

impl TaskHandler for Other {
    const IDENTIFIER: &'static str = "other";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {}
}

/// A clock that starts at this time on 1 March 2026.
fn clock_at(time: &str) -> Clock {
    let clock = Clock::system();
    set(&clock, time);
    clock
}

fn set(clock: &Clock, time: &str) {
    clock.advance(at(time) - clock.now());
}

/// A worker with cron, and the events of cron.
struct Running {
    events: Arc<Mutex<Vec<Arc<CronEvent>>>>,
    handle: WorkerHandle,
    tasks: [JoinHandle<()>; 2],
}

impl Running {
    async fn start(database: &Database, items: &CronItems, clock: &Clock) -> Running {
        let worker = WorkerOptions::default()
            .database_url(database.url())
            .define_job::<Other>()
            .with_cron(items.clone())
            .clock(clock.clone())
            .init()
            .await
            .expect("the worker starts");
        let events = Arc::new(Mutex::new(Vec::new()));
        let (mut received, told, handle) = (worker.events(), events.clone(), worker.handle());
        let listener = tokio::spawn(async move {
            while let Some(event) = received.next().await {
                match event {
                    WorkerEvent::Cron(event) => told.lock().expect("no test panicked here").push(event),
                    WorkerEvent::Stopped { .. } => break,
                    _ => {}
                }
            }
        });
        let runner = tokio::spawn(async move { worker.run().await.expect("the worker ends in good order") });
        Running { events, handle, tasks: [runner, listener] }
    }

    async fn stop(self) {
        self.handle.request_shutdown();
        for task in self.tasks {
            task.await.expect("a worker does not panic");
        }
    }

    async fn wait_for(&self, what: &str, is_it: impl Fn(&CronEvent) -> bool) {
        wait_for(what, || async {
            self.events.lock().expect("no test panicked here").iter().any(|event| is_it(event)).then_some(())
        })
        .await;
    }

    async fn wait_for_start(&self) {
        self.wait_for("the start", |event| matches!(event, CronEvent::Started { .. })).await;
    }

    async fn wait_for_minute(&self, time: &str) {
        let minute = at(time);
        let is_it = |event: &CronEvent| match event {
            CronEvent::Scheduled { timestamp, .. } | CronEvent::Backfilled { timestamp, .. } => {
                *timestamp == minute
            }
            _ => false,
        };
        self.wait_for(&format!("the jobs of {time}"), is_it).await;
    }
}

fn at(time: &str) -> DateTime<Utc> {
    format!("2026-03-01T{time}Z").parse().expect("a time")
}

fn items(crontab: &str) -> CronItems {
    let items = CronItems::new();
    items.extend(parse_crontab(crontab).expect("a crontab")).expect("items");
    items
}

/// All jobs as `task HH:MM`, with a `+` if they were backfilled.
async fn jobs(client: &Client) -> Vec<String> {
    let sql = "select concat(task.identifier, ' ', to_char(run_at at time zone 'utc', 'HH24:MI'),
            case when (payload -> '_cron' ->> 'backfilled')::boolean then '+' end)
        from graphile_worker._private_jobs as job
        join graphile_worker._private_tasks as task on task.id = job.task_id
        where (payload -> '_cron' ->> 'ts')::timestamptz = run_at
        order by run_at, job.id";
    client.query(sql, &[]).await.expect("the database answers").iter().map(|row| row.get(0)).collect()
}

async fn know(client: &Client, identifier: &str, since: &str, last: Option<&str>) {
    let sql = "insert into graphile_worker._private_known_crontabs values ($1, $2, $3)";
    client.execute(sql, &[&identifier, &at(since), &last.map(at)]).await.expect("the database answers");
}

async fn last_execution(client: &Client, identifier: &str) -> Option<DateTime<Utc>> {
    let sql = "select last_execution from graphile_worker._private_known_crontabs where identifier = $1";
    client.query_one(sql, &[&identifier]).await.expect("the database answers").get(0)
}

#[tokio::test]
async fn a_tick_adds_a_job_with_all_values_of_its_item() {
    let database = Database::migrated().await;
    let client = database.client().await;
    let clock = clock_at("08:00:10");
    let items = items(
        "* * * * * t ?id=i&max=3&queue=q&jobKey=k&jobKeyMode=preserve_run_at&priority=-5 {a: 1, _cron: 2}",
    );
    let schedule = Running::start(&database, &items, &clock).await;
    schedule.wait_for_start().await;
    assert_eq!(last_execution(&client, "i").await, None);
    set(&clock, "08:01:00.200");
    schedule.wait_for_minute("08:01:00").await;
    let row = client
        .query_one(
            "select task_identifier, queue_name, job.max_attempts, job.key, job.priority, job.run_at, stored.payload
            from graphile_worker.jobs as job join graphile_worker._private_jobs as stored using (id)",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, &str>(0), "t");
    assert_eq!(row.get::<_, &str>(1), "q");
    assert_eq!(row.get::<_, i16>(2), 3);
    assert_eq!(row.get::<_, &str>(3), "k");
    assert_eq!(row.get::<_, i16>(4), -5);
    assert_eq!(row.get::<_, DateTime<Utc>>(5), at("08:01:00"));
    let cron = serde_json::json!({ "ts": "2026-03-01T08:01:00.000Z", "backfilled": false });
    assert_eq!(row.get::<_, serde_json::Value>(6), serde_json::json!({ "a": 1, "_cron": cron }));
    assert_eq!(last_execution(&client, "i").await, Some(at("08:01:00")));
    schedule.stop().await;
}

#[tokio::test]
async fn several_schedules_add_each_job_once() {
    let database = Database::migrated().await;
    let client = database.client().await;
    let crontab = "* * * * * a\n* * * * * b\n* * * * * a ?id=c\n*/2 * * * * d";
    let clock = clock_at("08:00:10");
    let mut schedules = Vec::new();
    for _ in 0..4 {
        schedules.push(Running::start(&database, &items(crontab), &clock).await);
    }
    for schedule in &schedules {
        schedule.wait_for_start().await;
    }
    for time in ["08:03:10", "08:07:10", "08:12:00"] {
        set(&clock, time);
        wait_for("the jobs of that time", || async {
            let last = last_execution(&client, "b").await;
            (last == Some(at(&format!("{}:00", &time[..5])))).then_some(())
        })
        .await;
    }
    for schedule in schedules {
        schedule.stop().await;
    }
    let mut expected = Vec::new();
    for minute in 1..=12 {
        let tasks: &[&str] = if minute % 2 == 0 { &["a", "b", "a", "d"] } else { &["a", "b", "a"] };
        expected.extend(tasks.iter().map(|task| format!("{task} 08:{minute:02}")));
    }
    assert_eq!(jobs(&client).await, expected);
}

#[tokio::test]
async fn missed_ticks_are_backfilled_as_far_as_fill_allows() {
    let database = Database::migrated().await;
    let client = database.client().await;
    know(&client, "a", "00:00:00", Some("07:57:00")).await;
    know(&client, "b", "00:00:00", None).await;
    know(&client, "c", "00:00:00", None).await;
    let crontab = "* * * * * a ?fill=1h\n* * * * * b ?fill=2m\n* * * * * c\n* * * * * new ?fill=1h";
    let schedule = Running::start(&database, &items(crontab), &clock_at("08:00:10")).await;
    schedule.wait_for_minute("08:00:00").await;
    schedule.stop().await;
    assert_eq!(jobs(&client).await, ["a 07:58+", "a 07:59+", "b 07:59+", "a 08:00+", "b 08:00+"]);
    assert_eq!(last_execution(&client, "new").await, None);
}

#[tokio::test]
async fn after_the_clock_is_set_back_no_minute_is_scheduled_twice() {
    let database = Database::migrated().await;
    let client = database.client().await;
    let (items, clock) = (items("* * * * * a ?fill=1h"), clock_at("08:00:10"));
    let schedule = Running::start(&database, &items, &clock).await;
    schedule.wait_for_start().await;
    set(&clock, "08:02:10");
    schedule.wait_for_minute("08:02:00").await;
    // The clock is set back: the same minutes occur again.
    set(&clock, "07:50:10");
    schedule.wait_for("the jump", |event| matches!(event, CronEvent::TimeJumped { .. })).await;
    schedule
        .wait_for(
            "the start after it",
            |event| matches!(event, CronEvent::Started { at: start, .. } if *start < at("08:00:00")),
        )
        .await;
    for time in ["07:54:10", "07:58:10", "08:02:10"] {
        set(&clock, time);
        // Longer than the interval at which the clock is read: nothing may happen.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
    }
    set(&clock, "08:03:10");
    schedule.wait_for_minute("08:03:00").await;
    schedule.stop().await;
    // A second process, in the same minute.
    let schedule = Running::start(&database, &items, &clock).await;
    schedule.wait_for_start().await;
    set(&clock, "08:04:00");
    schedule.wait_for_minute("08:04:00").await;
    schedule.stop().await;
    assert_eq!(jobs(&client).await, ["a 08:01", "a 08:02", "a 08:03", "a 08:04"]);
}

#[tokio::test]
async fn after_a_long_sleep_only_ticks_within_fill_are_backfilled() {
    let database = Database::migrated().await;
    let client = database.client().await;
    let clock = clock_at("08:00:10");
    let schedule = Running::start(&database, &items("*/10 * * * * a ?fill=1h\n* * * * * b"), &clock).await;
    schedule.wait_for_start().await;
    set(&clock, "16:00:10");
    schedule.wait_for_minute("16:00:00").await;
    set(&clock, "16:01:00");
    schedule.wait_for_minute("16:01:00").await;
    schedule.stop().await;
    let expected = ["a 15:10+", "a 15:20+", "a 15:30+", "a 15:40+", "a 15:50+", "a 16:00+", "b 16:01"];
    assert_eq!(jobs(&client).await, expected);
}

#[tokio::test]
async fn the_ticks_of_an_outage_are_backfilled() {
    let database = Database::migrated().await;
    let client = database.client().await;
    let rename = |from: &str, to: &str| format!("alter table graphile_worker.{from} rename to {to}");
    let clock = clock_at("08:00:10");
    let schedule = Running::start(&database, &items("* * * * * a\n* * * * * b ?fill=1h"), &clock).await;
    schedule.wait_for_start().await;
    client.batch_execute(&rename("_private_known_crontabs", "away")).await.unwrap();
    set(&clock, "08:02:10");
    schedule.wait_for("the failure", |event| matches!(event, CronEvent::Failed { .. })).await;
    set(&clock, "08:03:10");
    client.batch_execute(&rename("away", "_private_known_crontabs")).await.unwrap();
    schedule.wait_for_minute("08:03:00").await;
    // Its connections are cut, this time for longer than the item without fill allows.
    client.batch_execute(&rename("_private_known_crontabs", "away")).await.unwrap();
    set(&clock, "08:04:10");
    let failures = || {
        schedule.events.lock().unwrap().iter().filter(|e| matches!(&***e, CronEvent::Failed { .. })).count()
    };
    let before = failures();
    wait_for("another failure", || async { (failures() > before).then_some(()) }).await;
    let cut = "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid()";
    client.batch_execute(cut).await.unwrap();
    set(&clock, "08:20:10");
    client.batch_execute(&rename("away", "_private_known_crontabs")).await.unwrap();
    schedule.wait_for_minute("08:20:00").await;
    schedule.stop().await;
    let mut expected: Vec<String> =
        (1..=3).flat_map(|minute| [format!("a 08:{minute:02}+"), format!("b 08:{minute:02}+")]).collect();
    expected.extend((4..=20).map(|minute| format!("b 08:{minute:02}+")));
    assert_eq!(jobs(&client).await, expected);
}

#[tokio::test]
async fn an_item_that_the_database_refuses_harms_no_other() {
    let database = Database::migrated().await;
    let client = database.client().await;
    client
        .batch_execute("alter table graphile_worker._private_jobs add check (priority <> 13)")
        .await
        .unwrap();
    let clock = clock_at("08:00:10");
    let schedule =
        Running::start(&database, &items("* * * * * a\n* * * * * b ?priority=13\n* * * * * c"), &clock).await;
    schedule.wait_for_start().await;
    set(&clock, "08:01:10");
    schedule.wait_for_minute("08:01:00").await;
    schedule
        .wait_for(
            "the refusal",
            |event| matches!(event, CronEvent::Refused { identifier, .. } if identifier == "b"),
        )
        .await;
    schedule.stop().await;
    assert_eq!(jobs(&client).await, ["a 08:01", "c 08:01"]);
}

/// A transaction that somebody forgot keeps the job of one item's key locked.
#[tokio::test]
async fn an_item_that_another_transaction_blocks_delays_no_other_and_loses_no_tick() {
    let database = Database::migrated().await;
    let (client, mut other) = (database.client().await, database.client().await);
    let add = "select graphile_worker.add_job('a', job_key := 'k', run_at := now() + interval '1 day')";
    client.batch_execute(add).await.unwrap();
    let forgotten = other.transaction().await.unwrap();
    forgotten.batch_execute(add).await.unwrap();
    let clock = clock_at("08:00:10");
    let crontab = "* * * * * a ?jobKey=k\n* * * * * b\n* * * * * c ?queue=q";
    let schedule = Running::start(&database, &items(crontab), &clock).await;
    schedule.wait_for_start().await;
    for (now, minute) in [("08:01:10", "08:01:00"), ("08:02:10", "08:02:00")] {
        set(&clock, now);
        schedule.wait_for_minute(minute).await;
    }
    let is_blocked =
        |event: &CronEvent| matches!(event, CronEvent::Blocked { identifier, .. } if identifier == "a");
    schedule.wait_for("the report", is_blocked).await;
    assert_eq!(jobs(&client).await, ["b 08:01", "c 08:01", "b 08:02", "c 08:02"]);
    forgotten.rollback().await.unwrap();
    let is_last = |event: &CronEvent| match event {
        CronEvent::Scheduled { timestamp, identifiers } => {
            *timestamp == at("08:02:00") && identifiers.contains(&"a".to_owned())
        }
        _ => false,
    };
    schedule.wait_for("both ticks of the item", is_last).await;
    schedule.stop().await;
    // The second tick has replaced the first, as the key says.
    assert_eq!(
        jobs(&client).await,
        ["b 08:01", "c 08:01", "a 08:02", "b 08:02", "c 08:02"].map(String::from)
    );
    let sql = "select revision from graphile_worker.jobs where key = 'k'";
    let revision: i32 = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(revision, 2, "each tick was added once");
}

#[tokio::test]
async fn items_are_added_and_removed_while_cron_runs() {
    let database = Database::migrated().await;
    let client = database.client().await;
    let (items, clock) = (items("* * * * * a"), clock_at("08:00:10"));
    let schedule = Running::start(&database, &items, &clock).await;
    schedule.wait_for_start().await;
    items.add(Cron::task("b", "* * * * *").unwrap().fill(CrontabFill::hours(1))).unwrap();
    assert!(items.add(Cron::task("b", "@daily").unwrap()).unwrap_err().is_config());
    set(&clock, "08:01:10");
    schedule.wait_for_minute("08:01:00").await;
    assert_eq!(items.remove("a").unwrap().task_identifier(), "a");
    set(&clock, "08:02:10");
    schedule.wait_for_minute("08:02:00").await;
    schedule.stop().await;
    assert_eq!(jobs(&client).await, ["a 08:01", "b 08:01", "b 08:02"]);
}

/// Neither a schedule whose table is missing nor a match function that panics may affect the jobs.
#[tokio::test]
async fn errors_of_cron_do_not_affect_jobs() {
    let database = Database::migrated().await;
    let client = database.client().await;
    client.batch_execute("drop table graphile_worker._private_known_crontabs").await.unwrap();
    let items = items("* * * * * a");
    items.add(Cron::task_matching("b", |_| panic!("on purpose"))).unwrap();
    let schedule = Running::start(&database, &items, &clock_at("08:00:10")).await;
    let failures = || {
        let events = schedule.events.lock().unwrap();
        events.iter().filter(|event| matches!(&***event, CronEvent::Failed { .. })).count()
    };
    for round in 1..=3 {
        wait_for("cron to fail", || async { (failures() >= round).then_some(()) }).await;
        let sql = "select graphile_worker.add_job('other', 'null', run_at => '2026-01-01')";
        client.query_one(sql, &[]).await.unwrap();
        wait_for("the job to run", || async {
            let left = client.query_one("select count(*) from graphile_worker._private_jobs", &[]).await;
            (left.unwrap().get::<_, i64>(0) == 0).then_some(())
        })
        .await;
    }
    schedule.stop().await;
}

#[tokio::test]
async fn items_with_unusual_payloads_and_the_others_get_their_jobs() {
    let database = Database::migrated().await;
    let client = database.client().await;
    let clock = clock_at("08:00:10");
    let crontab = r"* * * * * a {x: '\0', y: 1e999}
        * * * * * b {'': {'\u2028': [[[12345678901234567890123]]]}}
        * * * * * c";
    let schedule = Running::start(&database, &items(crontab), &clock).await;
    schedule.wait_for_start().await;
    set(&clock, "08:01:10");
    schedule.wait_for_minute("08:01:00").await;
    schedule.stop().await;
    let sql = "select task_identifier from graphile_worker.jobs order by id";
    let tasks: Vec<String> = client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(tasks, ["a", "b", "c"]);
}

/// An application that reads its items from elsewhere may have them only after the worker has started.
#[tokio::test]
async fn a_known_item_that_is_added_late_is_backfilled() {
    let database = Database::migrated().await;
    let client = database.client().await;
    know(&client, "b", "00:00:00", Some("07:57:00")).await;
    let (items, clock) = (items("* * * * * a"), clock_at("08:00:10"));
    let schedule = Running::start(&database, &items, &clock).await;
    schedule.wait_for_start().await;
    items.add(Cron::task("b", "* * * * *").unwrap().fill(CrontabFill::minutes(2))).unwrap();
    set(&clock, "08:01:10");
    schedule.wait_for_minute("08:01:00").await;
    schedule.stop().await;
    assert_eq!(jobs(&client).await, ["b 07:59+", "b 08:00+", "a 08:01", "b 08:01"]);
}

#[tokio::test]
async fn skewed_clocks_give_each_minute_once() {
    let database = Database::migrated().await;
    let client = database.client().await;
    let crontab = items("* * * * * a");
    let clocks = ["07:58:10", "08:00:10", "08:00:50"].map(clock_at);
    let mut schedules = Vec::new();
    for clock in &clocks {
        let schedule = Running::start(&database, &crontab, clock).await;
        schedule.wait_for_start().await;
        schedules.push(schedule);
    }
    for minute in 1..=6 {
        for clock in &clocks {
            clock.advance(TimeDelta::minutes(1));
        }
        wait_for("the jobs of the fastest clock", || async {
            (last_execution(&client, "a").await == Some(at(&format!("08:{minute:02}:00")))).then_some(())
        })
        .await;
    }
    for schedule in schedules {
        schedule.stop().await;
    }
    // The slowest worker may or may not have seen two minutes of the time before the others had started.
    let minutes: Vec<String> =
        jobs(&client).await.into_iter().filter(|job| job.as_str() > "a 08:00").collect();
    let expected: Vec<String> = (1..=6).map(|minute| format!("a 08:{minute:02}")).collect();
    assert_eq!(minutes, expected);
}

#[tokio::test]
async fn cron_can_be_stopped_while_it_fails() {
    let database = Database::migrated().await;
    let client = database.client().await;
    client.batch_execute("drop table graphile_worker._private_known_crontabs").await.unwrap();
    let schedule = Running::start(&database, &items("* * * * * a"), &clock_at("08:00:10")).await;
    schedule.wait_for("a failure", |event| matches!(event, CronEvent::Failed { .. })).await;
    let stopped = tokio::time::timeout(testkit::DEADLINE, schedule.stop()).await;
    assert!(stopped.is_ok());
}

#[tokio::test]
async fn a_clock_that_runs_gives_each_minute_its_jobs() {
    let database = Database::migrated().await;
    let client = database.client().await;
    let clock = clock_at("08:00:10");
    let mut schedules = Vec::new();
    for _ in 0..3 {
        schedules.push(Running::start(&database, &items("* * * * * a"), &clock).await);
    }
    // Sixty times as fast as the real clock: a minute lasts a second.
    let fast = clock.clone();
    let hurry = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            fast.advance(TimeDelta::milliseconds(590));
        }
    });
    wait_for("five minutes to pass", || async { (jobs(&client).await.len() >= 5).then_some(()) }).await;
    hurry.abort();
    for schedule in schedules {
        schedule.stop().await;
    }
    let jobs = jobs(&client).await;
    let first = jobs[0].clone();
    let minute: usize = first["a 08:".len()..].parse().unwrap();
    let expected: Vec<String> =
        (minute..minute + jobs.len()).map(|minute| format!("a 08:{minute:02}")).collect();
    assert_eq!(jobs, expected);
}
