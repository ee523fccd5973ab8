//! Options at their extremes, and all other input that is read before a worker runs: schema names, connection strings,
//! crontabs.

use std::time::Duration;

use atta::testing::Clock;
use atta::{
    Claims, ConnectionSettings, Cron, CronItems, CrontabFill, ForbiddenFlags, IntoTaskHandlerResult,
    JobKeyMode, JobSpec, LocalQueueConfig, RefetchDelay, Schema, TaskHandler, WorkerContext, WorkerOptions,
    WorkerUtils, parse_crontab,
};
use chrono::{DateTime, TimeDelta, Utc, Weekday};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde::{Deserialize, Serialize};

use super::support::{ODD_TEXTS, check, name, small_number, time};

/// Durations from zero to the longest possible.
fn duration() -> impl Strategy<Value = Duration> {
    let odd = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_millis(20),
        Duration::from_secs(1 << 40),
        Duration::MAX,
    ];
    prop::sample::select(odd.to_vec())
}

fn size() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![0, 1, 2, 5, 1_000_001, usize::MAX / 2, usize::MAX])
}

/// Mostly valid options, so that many workers start.
#[derive(Clone, Debug)]
struct Odd {
    sizes: [Option<usize>; 3],
    times: [Option<Duration>; 9],
    task: Option<String>,
    flag: Option<String>,
    claims: Claims,
}

fn odd() -> impl Strategy<Value = Odd> {
    let few = |weight| move |strategy: BoxedStrategy<Duration>| prop::option::weighted(weight, strategy);
    let times = prop::array::uniform9(few(0.4)(duration().boxed()));
    let sizes = prop::array::uniform3(prop::option::weighted(0.15, size()));
    let texts = (prop::option::weighted(0.3, name(128)), prop::option::weighted(0.3, name(20)));
    let claims = prop::sample::select(vec![Claims::Held, Claims::Durable]);
    (sizes, times, texts, claims).prop_map(|(sizes, times, (task, flag), claims)| Odd {
        sizes,
        times,
        task,
        flag,
        claims,
    })
}

impl Odd {
    fn apply(&self, mut options: WorkerOptions) -> WorkerOptions {
        let [concurrency, connections, ahead] = self.sizes;
        let [poll, hold, threshold, retry, grace, complete, fail, ttl, refetch] = self.times;
        options = options
            .concurrency(concurrency.unwrap_or(2))
            .max_pg_conn(connections.unwrap_or(3))
            .claims(self.claims);
        if let Some(size) = ahead {
            let refetch_delay = refetch.map(|duration| {
                let mut delay = RefetchDelay::new(duration).with_threshold(size);
                delay.max_abort_threshold = ahead;
                delay
            });
            let ttl = ttl.unwrap_or(Duration::from_secs(1));
            let mut config = LocalQueueConfig::new(size).with_ttl(ttl);
            config.refetch_delay = refetch_delay;
            options = options.local_queue(config);
        }
        options = options.poll_interval(poll.unwrap_or(Duration::from_secs(2)));
        options = options.hold_budget(hold.unwrap_or(Duration::from_millis(50)));
        options = options.recovery_threshold(threshold.unwrap_or(Duration::from_secs(30)));
        options = options.interrupted_job_retry_delay(retry.unwrap_or_default());
        options = options
            .shutdown_grace_period(grace.unwrap_or_default())
            .shutdown_abort_period(grace.unwrap_or_default());
        options = options.complete_job_batch_delay(complete.unwrap_or_default());
        options = options.fail_job_batch_delay(fail.unwrap_or_default());
        if let Some(task) = &self.task {
            options = options.define_raw_job(task, |_| async {});
        }
        if let Some(flag) = &self.flag {
            options = options.forbidden_flags(ForbiddenFlags::list([flag.as_str(), "a\0b"]));
        }
        options.define_raw_job("t", |_| async {}).define_raw_job("bad", |_| async { Err::<(), _>("no") })
    }
}

#[test]
fn a_worker_with_any_options_works_or_reports_the_invalid_option() {
    check(24, odd(), |place, odd| async move {
        let options = odd.apply(WorkerOptions::default().database_url(place.db.url()));
        let worker = match options.init().await {
            Ok(worker) => worker,
            Err(error) => {
                prop_assert!(
                    error.is_config() && error.message().contains("must be")
                        || error.message().contains("task identifier")
                        || error.message().contains("refetch delay"),
                    "{error}"
                );
                return Ok(());
            }
        };
        let utils = worker.create_utils();
        for task in ["t", "bad"] {
            utils
                .add_raw_job(task, 1, JobSpec::default())
                .await
                .map_err(|error| TestCaseError::fail(error.to_string()))?;
        }
        let mut events = worker.events();
        let handle = worker.handle();
        let running = tokio::spawn(async move { worker.run().await });
        let mut begun = 0;
        while begun < 2 {
            if let Some(atta::WorkerEvent::JobStarted { .. }) = events.next().await {
                begun += 1;
            }
        }
        handle.request_shutdown();
        let ended = running.await;
        prop_assert!(matches!(ended, Ok(Ok(()))), "{ended:?}");
        let sql = "select count(*) filter (where locked_at is not null) from graphile_worker._private_jobs";
        let locked: i64 = place.client.query_one(sql, &[]).await.expect("jobs are counted").get(0);
        prop_assert_eq!(locked, 0);
        Ok(())
    });
}

#[test]
fn a_schema_may_have_any_name_that_postgres_allows() {
    let names = prop_oneof![
        2 => prop::sample::select(ODD_TEXTS.to_vec()).prop_map(str::to_owned),
        1 => "\\PC{1,20}",
        1 => (15..17_usize).prop_map(|length| "😀".repeat(length)),
        1 => Just("pg_jobs".to_owned()),
    ];
    check(6, names, |place, name| async move {
        let fail = |error: atta::Error| TestCaseError::fail(error.to_string());
        let is_fine =
            !name.is_empty() && name.len() <= 63 && !name.contains('\0') && !name.starts_with("pg_");
        let schema = match Schema::new(name.as_str()) {
            Ok(schema) => schema,
            Err(error) => {
                prop_assert!(
                    !is_fine && error.is_config() && error.message().contains("schema name"),
                    "{error}"
                );
                return Ok(());
            }
        };
        prop_assert!(is_fine);
        let utils = WorkerUtils::new(place.utils.pool().clone(), schema.clone());
        let missing = utils.add_raw_job("t", 1, JobSpec::default()).await.expect_err("nothing is there");
        prop_assert!(missing.hint().is_some_and(|hint| hint.contains("migrate")), "{missing}");
        utils.migrate().await.map_err(fail)?;
        let many = vec![atta::RawJobSpec::new("t", 1, JobSpec::default()).map_err(fail)?; 51];
        utils.add_raw_jobs(&many).await.map_err(fail)?;
        let worker = WorkerOptions::default()
            .database_url(place.db.url())
            .schema(schema.name())
            .define_raw_job("t", |_| async {})
            .init()
            .await
            .map_err(fail)?;
        worker.run_once().await.map_err(fail)?;
        prop_assert_eq!(utils.count_jobs().await.map_err(fail)?.total(), 0);
        let drop = format!("drop schema {} cascade", schema.quoted());
        place.client.batch_execute(&drop).await.expect("one drop removes all");
        Ok(())
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_as_a_connection_string_is_read_or_refused(text in connection_text()) {
        match ConnectionSettings::with_variables(&text, |_| None) {
            Ok(settings) => {
                let whole = settings.to_string_with_password();
                let again = ConnectionSettings::with_variables(&whole, |_| None);
                prop_assert_eq!(again.map(|again| again.to_string_with_password()).ok(), Some(whole));
            }
            Err(error) => prop_assert!(error.is_config() && !error.message().is_empty()),
        }
    }

    #[test]
    fn any_text_as_a_crontab_is_read_or_refused(text in "(\\PC|[*/,0-9 \n\0?&={}-]){0,80}") {
        match parse_crontab(&text) {
            Ok(items) => items.iter().for_each(|item| drop((item.to_string(), item.next_after(Utc::now())))),
            Err(errors) => prop_assert!(errors.len() > 0),
        }
        // Returns a duration or an error, and does not panic.
        let _ = text.parse::<CrontabFill>();
        // Neither function panics, whatever the pattern.
        let _ = (Cron::task("t", &text), Cron::pattern::<Never>(&text));
    }

    #[test]
    fn a_cron_item_of_any_values_is_taken_or_refused(
        task in name(128), id in name(40), queue in name(128), key in name(512),
        (attempts, priority) in (small_number(), small_number()), at in time(),
    ) {
        let item = Cron::task(task.as_str(), "0 0 29 2 *").map_err(|error| TestCaseError::fail(error.to_string()))?
            .id(id.as_str()).queue(queue.as_str()).job_key(key.as_str()).job_key_mode(JobKeyMode::Replace)
            .max_attempts(attempts).priority(priority).fill(CrontabFill::weeks(u32::MAX.into())).payload(f64::NAN);
        // Neither function panics, whatever the time.
        let _ = (item.next_after(at), item.matches(at));
        let is_wrong = |text: &str, most: usize| text.contains('\0') || text.is_empty() || text.chars().count() > most;
        let taken = CronItems::new().add(item);
        if let Err(error) = &taken {
            prop_assert!(error.is_config() && error.message().contains("cron item"), "{error}");
        }
        if is_wrong(&task, 128) || is_wrong(&key, 512) || attempts < 1 || queue.contains('\0') || id.contains('\0') {
            prop_assert!(taken.is_err());
        }
    }

    #[test]
    fn a_time_of_day_is_taken_if_there_is_one(
        (minute, hour, day) in (small_or_huge(), small_or_huge(), small_or_huge()), at in time(),
    ) {
        let is_time = hour < 24 && minute < 60;
        let made = [
            (Cron::hourly_at::<Never>(minute), minute < 60),
            (Cron::every_n_minutes::<Never>(minute), (1..60).contains(&minute)),
            (Cron::daily_at::<Never>(hour, minute), is_time),
            (Cron::weekly_on::<Never>(Weekday::Sun, hour, minute), is_time),
            (Cron::monthly_on::<Never>(day, hour, minute), is_time && (1..=31).contains(&day)),
        ];
        let items = CronItems::new();
        for (n, (item, is_one)) in made.into_iter().enumerate() {
            prop_assert_eq!(item.is_ok(), is_one, "{:?}", item);
            match item {
                Ok(item) => items.add(item.id(n.to_string())).map_err(|error| TestCaseError::fail(error.to_string()))?,
                Err(error) => prop_assert!(error.is_config() && !error.message().is_empty()),
            }
        }
        prop_assert!(items.due(at).len() <= items.list().len());
        prop_assert!(items.remove("nobody's\0").is_none());
    }

    #[test]
    fn a_clock_may_be_moved_however_far(moves in prop::collection::vec(any::<i64>(), 0..5)) {
        let clock = Clock::system();
        for seconds in moves {
            let furthest = if seconds < 0 { TimeDelta::MIN } else { TimeDelta::MAX };
            clock.advance(TimeDelta::try_seconds(seconds).unwrap_or(furthest));
            prop_assert!((DateTime::<Utc>::MIN_UTC..=DateTime::<Utc>::MAX_UTC).contains(&clock.now()));
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Never;

impl TaskHandler for Never {
    const IDENTIFIER: &'static str = "never";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {}
}

fn small_or_huge() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..70_u32, 1 => prop::sample::select(vec![u32::MAX, u32::MAX - 1, 1 << 31, 255, 256])]
}

fn connection_text() -> impl Strategy<Value = String> {
    let words = [
        "host",
        "port",
        "dbname",
        "user",
        "password",
        "sslmode",
        "options",
        "connect_timeout",
        "keepalives_idle",
        "hostaddr",
    ];
    let pair = (prop::sample::select(words.to_vec()), "(\\PC|[0-9 ',\\\\=%\0-]){0,12}");
    let pairs = |between: &'static str| {
        prop::collection::vec(pair.clone(), 0..4).prop_map(move |pairs| {
            pairs.iter().map(|(word, value)| format!("{word}={value}")).collect::<Vec<_>>().join(between)
        })
    };
    prop_oneof![
        pairs(" "),
        ("(\\PC|[:@/%0-9,\\[\\]]){0,30}", pairs("&"))
            .prop_map(|(place, pairs)| format!("postgres://{place}?{pairs}")),
        "\\PC{0,30}",
    ]
}

#[tokio::test]
async fn a_pool_of_no_connections_or_of_far_too_many_is_refused() {
    let settings = ConnectionSettings::new("postgres://localhost/app").unwrap();
    for size in [0, 300_000, usize::MAX] {
        let error = settings.pool(size).unwrap_err();
        assert!(error.is_config() && error.hint().is_some(), "{error}");
    }
    assert!(settings.with_database("a\0b").connect().await.is_err());
}
