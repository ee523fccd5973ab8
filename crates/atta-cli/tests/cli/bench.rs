//! `atta bench`.

use serde_json::Value;
use testkit::{Database, Process, Signal, wait_for};
use tokio_postgres::Client;

use crate::{atta, command};

/// A role that may create databases and is not a superuser, so that its databases can be distinguished from others.
struct Maker {
    name: String,
    admin: Client,
    db: Database,
}

impl Maker {
    async fn new() -> Maker {
        let db = Database::empty().await;
        let admin = db.client().await;
        let name = format!("maker_in_{}", db.name());
        admin.batch_execute(&format!("create role {name} login createdb")).await.expect("a role is made");
        Maker { name, admin, db }
    }

    fn url(&self) -> String {
        self.db.url().replace("postgres@", &format!("{}@", self.name))
    }

    async fn databases(&self) -> i64 {
        let made = "select count(*) from pg_database where datdba = $1::text::regrole";
        self.admin.query_one(made, &[&self.name]).await.expect("the databases are counted").get(0)
    }

    /// Fails if a database of the role is left.
    async fn gone(self) {
        assert_eq!(self.databases().await, 0);
        self.admin.batch_execute(&format!("drop role {}", self.name)).await.expect("the role owns nothing");
    }
}

fn number(report: &Value, pointer: &str) -> f64 {
    let value = report.pointer(pointer).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("no number {pointer} in {report}"))
}

#[tokio::test]
async fn measures_in_a_database_of_its_own_and_leaves_none_behind() {
    let maker = Maker::new().await;
    let run = atta(&["bench", "-c", &maker.url(), "--jobs", "500", "--seconds", "1"]);
    // No terminal, so no progress.
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert!(run.out.contains(": 500 jobs, 1 x 24 at a time, claims held\n\n"), "{}", run.out);
    for name in
        ["drain ", "steady state", "from add to start, p99", "lateness of scheduled jobs, p50", "WAL per job"]
    {
        assert_eq!(run.out.lines().filter(|line| line.starts_with(name)).count(), 1, "{name}: {}", run.out);
    }
    maker.gone().await;
}

#[tokio::test]
async fn all_options_together_give_json() {
    let maker = Maker::new().await;
    let words = "--json --jobs 500 --seconds 1 --workers 2 --concurrency 4 --claims durable --local-queue 50 \
                 --payload-bytes 100 --queues 3 --fail-rate 0.1 --pin-xmin -s other";
    let url = maker.url();
    let words: Vec<&str> = ["bench", "-c", &url].into_iter().chain(words.split_whitespace()).collect();
    let run = atta(&words);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let report: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["settings"]["claims"], "durable");
    assert_eq!(report["settings"]["pin_xmin"], true);
    assert_eq!((number(&report, "/drain/ran"), number(&report, "/drain/failed")), (500.0, 50.0));
    for pointer in ["/add/bulk_per_second", "/add/bulk_returning_per_second", "/add/single_per_second"] {
        assert!(number(&report, pointer) > 0.0, "{report}");
    }
    assert!(number(&report, "/steady/ran") > 0.0, "{report}");
    assert!(number(&report, "/latency_ms/p50") <= number(&report, "/latency_ms/max"), "{report}");
    assert!(number(&report, "/lateness_ms/p99") > 0.0, "{report}");
    assert!(number(&report, "/start_up_ms") > 0.0, "{report}");
    if cfg!(target_os = "linux") {
        assert!(number(&report, "/memory_bytes") > 1e6, "{report}");
    }
    // A durable claim updates the row, and completion deletes it.
    assert!(number(&report, "/cost_per_job/dead_rows") >= 2.0, "{report}");
    assert!(number(&report, "/cost_per_job/wal_bytes") > 100.0, "{report}");
    assert!(number(&report, "/cost_per_job/commits") > 0.0, "{report}");
    maker.gone().await;
}

#[tokio::test]
async fn an_interrupted_run_leaves_no_database_behind() {
    let maker = Maker::new().await;
    let mut process = Process::start(&mut command(&["bench", "-c", &maker.url(), "--seconds", "600"]));
    wait_for("the database", || async { (maker.databases().await == 1).then_some(()) }).await;
    process.signal(Signal::Terminate);
    assert_eq!(process.ended().await.code(), Some(2));
    maker.gone().await;
}

#[tokio::test]
async fn in_place_takes_no_schema_with_jobs_of_others() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let add = "select graphile_worker.add_job('send_email'), graphile_worker.add_job('atta_bench')";
    client.execute(add, &[]).await.unwrap();
    let url = db.url();
    let words = ["bench", "-c", &url, "--in-place", "--jobs", "100", "--seconds", "1", "--queues", "2"];
    let refused = atta(&words);
    assert_eq!((refused.code, refused.out.as_str()), (2, ""));
    let expected = "error: schema \"graphile_worker\" has 2 jobs that the benchmark did not add\nhint: ";
    assert!(refused.err.starts_with(expected), "{}", refused.err);

    // A schema that an earlier run left is not an obstacle.
    let mine =
        "delete from graphile_worker._private_jobs; select graphile_worker.add_job('atta_bench_count')";
    client.batch_execute(mine).await.unwrap();
    let run = atta(&words);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let left = "select (select count(*) from graphile_worker._private_jobs),
        (select count(*) from graphile_worker._private_job_queues),
        (select count(*) from graphile_worker._atta_workers),
        (select array_agg(identifier order by identifier) from graphile_worker._private_tasks)";
    let row = client.query_one(left, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, i64>(2)), (0, 0, 0));
    assert_eq!(row.get::<_, Vec<String>>(3), ["atta_bench", "send_email"]);
}

#[tokio::test]
async fn a_role_that_may_not_create_databases_gets_a_hint() {
    let maker = Maker::new().await;
    maker.admin.batch_execute(&format!("alter role {} nocreatedb", maker.name)).await.unwrap();
    let denied = atta(&["bench", "-c", &maker.url()]);
    assert_eq!(denied.code, 2);
    assert!(denied.err.contains("permission denied to create database\nhint: "), "{}", denied.err);
    assert!(denied.err.contains("--in-place"), "{}", denied.err);
    maker.gone().await;
}

#[test]
fn invalid_options_are_rejected_before_anything_is_changed() {
    let wrong = [
        ["--jobs", "0"],
        ["--workers", "0"],
        ["--concurrency", "none"],
        ["--claims", "soft"],
        ["--local-queue", "0"],
        ["--fail-rate", "1.5"],
        ["--fail-rate", "nan"],
        ["--seconds", "0"],
        ["--queues", "some"],
    ];
    for [option, value] in wrong {
        let run = atta(&["bench", "-c", "postgres://127.0.0.1:1/app", option, value]);
        assert_eq!(run.code, 2, "{option} {value}");
        assert!(run.err.contains(&format!("'{value}'")) && run.err.contains(option), "{}", run.err);
    }
}
