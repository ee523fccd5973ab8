//! Tasks in JavaScript.

use std::time::Duration;

use atta_tasks::TasksFolder;

use crate::log;
use crate::support::{Folder, add, count_jobs, database, last_error, options, run_once, run_once_with};

/// As in the quickstart of Graphile Worker.
const HELLO: &str = "// tasks/hello.js
module.exports = async (payload, helpers) => {
  const { name } = payload;
  helpers.logger.info(`Hello, ${name}`);
};
";

#[tokio::test]
async fn the_quickstart_runs_as_printed() {
    let (db, client) = database().await;
    let folder = Folder::new().file("hello.js", HELLO);
    client
        .execute("select graphile_worker.add_job('hello', json_build_object('name', 'Bobby Tables'))", &[])
        .await
        .unwrap();
    run_once(&db, &folder).await;
    assert_eq!(count_jobs(&client).await, 0);
    let line = &log::lines_with("Hello, Bobby Tables")[0];
    assert_eq!((line.level.as_str(), line.job, line.task.as_deref()), ("INFO", Some(1), Some("hello")));
}

#[tokio::test]
async fn every_kind_of_module_is_loaded() {
    let (db, client) = database().await;
    let say = |kind: &str| format!("(payload, {{ logger }}) => logger.info('module kind {kind}')");
    let folder = Folder::new()
        .file("a/common.js", &format!("module.exports = {}", say("common")))
        .file("a/cjs.cjs", &format!("module.exports = {}", say("cjs")))
        .file("a/esm.mjs", &format!("export default {}", say("esm")))
        .file("a/compiled.js", &format!("exports.__esModule = true; exports.default = {}", say("compiled")))
        .file("typed/package.json", r#"{"type":"module"}"#)
        .file("typed/module.js", &format!("import 'node:fs'; export default {}", say("typed")));
    for task in ["a/common", "a/cjs", "a/esm", "a/compiled", "typed/module"] {
        add(&client, task, "{}").await;
    }
    run_once(&db, &folder).await;
    assert_eq!(count_jobs(&client).await, 0);
    for kind in ["common", "cjs", "esm", "compiled", "typed"] {
        assert_eq!(log::lines_with(&format!("module kind {kind}")).len(), 1, "{kind}");
    }
}

#[tokio::test]
async fn an_error_comes_with_its_message_first_and_its_place() {
    let (db, client) = database().await;
    let task = "module.exports = async () => { throw new Error('no such user', { cause: 'the cause' }); }";
    let folder = Folder::new().file("fails.js", task);
    add(&client, "fails", "{}").await;
    run_once(&db, &folder).await;
    let error = last_error(&client).await;
    assert!(error.starts_with("no such user\n    at "), "{error}");
    assert!(error.contains("fails.js:1:") && error.ends_with("caused by: the cause"), "{error}");
    assert!(!error.contains("[eval]") && !error.contains("node:"), "the way through the host: {error}");
}

#[tokio::test]
async fn jobs_of_a_task_that_can_not_be_loaded_are_not_claimed_and_others_are() {
    let (db, client) = database().await;
    let folder = Folder::new()
        .file("hello.js", HELLO)
        .file("wrong.js", "module.exports = {};")
        .file("broken_too.mjs", "export default (;")
        .file("broken.js", "module.exports = (;");
    add(&client, "hello", r#"{"name":"beside the broken"}"#).await;
    add(&client, "wrong", "{}").await;
    run_once(&db, &folder).await;
    let row = client.query_one("select attempts, last_error from graphile_worker.jobs", &[]).await.unwrap();
    assert_eq!((row.get::<_, i16>(0), row.get::<_, Option<String>>(1)), (0, None));
    assert_eq!(log::lines_with("Hello, beside the broken").len(), 1);
    let told = log::lines_with("the task can't be loaded");
    let of = |task: &str| {
        let found = told.iter().find(|line| line.task.as_deref() == Some(task));
        found.unwrap_or_else(|| panic!("{task}: {told:?}")).message.clone()
    };
    assert!(of("wrong").contains("does not export a function"), "{}", of("wrong"));
    // The position of the error, without the frames of Node's loader.
    assert!(of("broken").contains("broken.js:1\nmodule.exports = (;"), "{}", of("broken"));
    assert!(!of("broken").contains("node:internal"), "{}", of("broken"));
    assert!(of("broken_too").contains("broken_too.mjs"), "{}", of("broken_too"));
}

/// A host that is started before the worker does not know the worker's id yet. It knows the id when it runs the first
/// job.
#[tokio::test]
async fn the_first_jobs_of_a_host_know_their_worker_and_their_task() {
    let (db, client) = database().await;
    let javascript = "module.exports = (payload, helpers) => {
  if (!helpers.job.locked_by?.startsWith('atta-')) throw new Error(`locked by ${helpers.job.locked_by}`);
  if (helpers.job.task_id !== payload) throw new Error(`task ${helpers.job.task_id} and not ${payload}`);
};";
    let python = "def task(payload, helpers):
    assert helpers.job.locked_by.startswith('atta-'), helpers.job.locked_by
    assert helpers.job.task_id == payload, helpers.job.task_id
";
    let folder = Folder::new().file("script.js", javascript).file("snake.py", python);
    for task in ["another", "script", "snake"] {
        add(&client, task, "{}").await;
    }
    let sql = "update graphile_worker._private_jobs set payload = to_json(task_id)";
    client.batch_execute(sql).await.unwrap();
    let tasks = TasksFolder::open(folder.settings(&db)).await.unwrap();
    let worker = tasks.define(options(&db)).init().await.unwrap();
    tasks.run_once(&worker).await.unwrap();
    tasks.close().await;
    let sql = "select string_agg(coalesce(last_error, task_identifier), ',') from graphile_worker.jobs";
    assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, &str>(0), "another");
}

#[tokio::test]
async fn helpers_know_the_job_and_add_others() {
    let (db, client) = database().await;
    let task = r#"
module.exports = async (payload, helpers) => {
  const { job, addJob, addJobs, logger } = { ...helpers };
  const assert = require("node:assert");
  assert.strictEqual(job.id, "1");
  assert.strictEqual(job.task_identifier, "first");
  assert.deepStrictEqual(job.payload, payload);
  assert.strictEqual(job.run_at.toISOString(), "2026-01-02T03:04:05.678Z");
  assert.strictEqual(job.attempts, 1);
  assert.strictEqual(job.max_attempts, 3);
  assert.strictEqual(job.priority, -5);
  assert.strictEqual(job.key, "k");
  assert.deepStrictEqual(job.flags, { red: true });
  assert.strictEqual(job.last_error, null);
  assert.ok(job.locked_by.startsWith("atta-"));
  assert.strictEqual(await helpers.getQueueName(), "q");
  const added = await addJob("second", { text: "é\n\"\\" }, { jobKey: "once", priority: 3, maxAttempts: 2,
    runAt: new Date("2030-01-01T00:00:00Z"), queueName: "later", flags: ["blue"] });
  assert.strictEqual(added.task_identifier, "second");
  assert.strictEqual(added.key, "once");
  assert.deepStrictEqual(added.payload, { text: "é\n\"\\" });
  const many = await addJobs([{ identifier: "third", payload: [1] }, { identifier: "third", queueName: "x" }]);
  assert.strictEqual(many.length, 2);
  await assert.rejects(addJob("x".repeat(200), {}), /128/);
  await assert.rejects(addJob("third", {}, { priority: 1e6 }), /invalid job/);
  await assert.rejects(helpers.query("select 1"), /npm install pg/);
  logger.scope({ step: 2 }).warn("scoped words", { more: [1] });
  console.log("printed\nin two lines of first");
};
"#;
    let folder = Folder::new().file("first.js", task);
    let sql = "select graphile_worker.add_job('first', '{\"a\":1}', queue_name => 'q', max_attempts => 3,
                 priority => -5, job_key => 'k', flags => array['red'],
                 run_at => '2026-01-02 03:04:05.678901Z')";
    client.execute(sql, &[]).await.unwrap();
    run_once(&db, &folder).await;
    let sql = "select coalesce(last_error, task_identifier || ' ' || coalesce(queue_name, '-') || ' ' || priority
                 || ' ' || max_attempts || ' ' || coalesce(flags::text, '-')) from graphile_worker.jobs order by id";
    let rows = client.query(sql, &[]).await.unwrap();
    let left: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(left, ["second later 3 2 {\"blue\": true}", "third - 0 25 -", "third x 0 25 -"]);
    let scoped = &log::lines_with("scoped words")[0];
    assert_eq!((scoped.level.as_str(), scoped.job), ("WARN", Some(1)));
    assert_eq!(scoped.meta.as_deref(), Some(r#"{"step":2,"more":[1]}"#));
    let printed = &log::lines_with("in two lines of first")[0];
    assert_eq!((printed.job, printed.task.as_deref()), (Some(1), Some("first")));
}

#[tokio::test]
async fn only_the_items_of_a_batch_that_failed_are_left() {
    let (db, client) = database().await;
    let task = "module.exports = (items) => items.map(async (item) => {
      if (item.n % 2) throw new Error(`odd ${item.n}`);
    });";
    let folder =
        Folder::new().file("batch.js", task).file("other.js", "module.exports = async () => ['one']");
    add(&client, "batch", r#"[{"n":1,"big":12345678901234567890},{"n":2},{"n":3},{"n":4}]"#).await;
    add(&client, "batch", r#"[{"n":2},{"n":4}]"#).await;
    add(&client, "other", "[1,2,3]").await;
    run_once(&db, &folder).await;
    assert_eq!(last_error(&client).await, "Batch failures:\nodd 1\nodd 3");
    let sql = "select payload::text from graphile_worker._private_jobs";
    let payload: String = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(payload, r#"[{"n":1,"big":12345678901234567890},{"n":3}]"#);
    assert_eq!(log::lines_with("returned 1 results for 3 items").len(), 1);
}

#[tokio::test]
async fn a_megabyte_of_anything_goes_through() {
    let (db, client) = database().await;
    let task = "module.exports = async ({ text }, { addJob }) => { await addJob('copy', { text }); };";
    let folder = Folder::new().file("big.js", task);
    let text = "é\"\\\n\u{1f41c}\u{2028}".repeat(100_000);
    add(&client, "big", &serde_json::json!({ "text": text }).to_string()).await;
    run_once(&db, &folder).await;
    let sql = "select payload->>'text' from graphile_worker._private_jobs";
    let copy: String = client.query_one(sql, &[]).await.unwrap().get(0);
    assert!(copy == text);
}

#[tokio::test]
async fn a_shutdown_fires_the_abort_signal() {
    let (db, client) = database().await;
    let task = "module.exports = (payload, { abortSignal, logger }) => new Promise((resolve, reject) => {
      logger.info('waits for the abort');
      abortSignal.addEventListener('abort', () => { logger.info('received the abort'); reject(abortSignal.reason); });
    });";
    let folder = Folder::new().file("waits.js", task);
    add(&client, "waits", "{}").await;
    let tasks = TasksFolder::open(folder.settings(&db)).await.unwrap();
    let worker =
        tasks.define(options(&db)).shutdown_grace_period(Duration::from_millis(50)).init().await.unwrap();
    let handle = worker.handle();
    let running = tokio::spawn(async move { worker.run().await });
    testkit::wait_for("the task to wait", || async {
        (!log::lines_with("waits for the abort").is_empty()).then_some(())
    })
    .await;
    handle.request_shutdown();
    tokio::time::timeout(testkit::DEADLINE, running).await.unwrap().unwrap().unwrap();
    tasks.close().await;
    assert_eq!(log::lines_with("received the abort").len(), 1);
    let row = client.query_one("select attempts, last_error from graphile_worker.jobs", &[]).await.unwrap();
    assert_eq!((row.get::<_, i16>(0), row.get::<_, Option<String>>(1)), (0, None));
}

#[tokio::test]
async fn a_time_limit_is_reported_and_a_task_that_blocks_the_host_does_not_block_it_forever() {
    let (db, client) = database().await;
    let folder = Folder::new()
        .file("waits.js", "module.exports = () => new Promise(() => {});")
        .file("blocks.js", "module.exports = () => { for (;;) {} };")
        .file("quick.js", "module.exports = () => {};");
    let mut settings = folder.settings(&db);
    settings.time_limit = Some(Duration::from_millis(1500));
    settings.kill_after = Duration::from_millis(400);
    add(&client, "waits", "{}").await;
    run_once_with(&db, settings.clone()).await;
    assert_eq!(last_error(&client).await, "the time limit of 1.5s was exceeded");
    client.execute("truncate graphile_worker._private_jobs", &[]).await.unwrap();
    add(&client, "blocks", "{}").await;
    run_once_with(&db, settings.clone()).await;
    assert_eq!(last_error(&client).await, "the time limit of 1.5s was exceeded");
    client.execute("truncate graphile_worker._private_jobs", &[]).await.unwrap();
    // The first of them has its own limit; the second waits for it until the host is killed, and is retried.
    settings.time_limit = None;
    settings.time_limits.insert("blocks".into(), Duration::from_millis(500));
    add(&client, "blocks", "{}").await;
    run_once_with(&db, settings).await;
    assert_eq!(last_error(&client).await, "the time limit of 500ms was exceeded");
}

#[tokio::test]
async fn an_error_of_a_helper_has_the_lines_of_the_task_its_class_and_its_code() {
    let (db, client) = database().await;
    let task = r#"
class PaymentError extends Error {
  constructor(message) {
    super(message);
    this.code = "E_CARD";
  }
}
async function adds({ addJob }) {
  await addJob("x".repeat(200), {});
}
module.exports = async (payload, helpers) => {
  const assert = require("node:assert");
  if (payload.pays) throw new PaymentError("the card was refused");
  const added = await helpers.addJob("later", {}, { runAt: new Date("2030-01-01T00:00:00Z") });
  assert.strictEqual(added.locked_by, null);
  assert.strictEqual(added.locked_at, null);
  assert.strictEqual(added.is_available, true);
  assert.ok(helpers.job.locked_by.startsWith("atta-") && helpers.job.locked_at instanceof Date);
  const added2 = await helpers.addJobs([{ identifier: "later" }]);
  assert.strictEqual(added2[0].locked_by, null);
  await assert.rejects(helpers.addJob("x".repeat(200), {}), { code: "GWBID" });
  helpers.logger.scope({ label: "billing", step: 1 }).scope({ step: 2 }).info("labelled words");
  process.stdout.write("without an end");
  process.stderr.write("neither here");
  await adds(helpers);
};
"#;
    let folder = Folder::new().file("helped.js", task);
    let first = add(&client, "helped", "{}").await;
    let second = add(&client, "helped", r#"{"pays":true}"#).await;
    run_once(&db, &folder).await;
    let error = error_of(&client, first).await;
    assert!(error.contains("128") && error.contains("at adds ("), "{error}");
    assert!(error.contains("helped.js:9:") && error.contains("code: GWBID"), "{error}");
    assert!(!error.contains("[eval]") && !error.contains("node:"), "the way through the host: {error}");
    let error = error_of(&client, second).await;
    assert!(error.starts_with("the card was refused\nPaymentError, code: E_CARD\n    at "), "{error}");
    assert!(error.contains("helped.js:13:"), "{error}");
    let labelled = &log::lines_with("labelled words")[0];
    assert_eq!(labelled.meta.as_deref(), Some(r#"{"label":"billing","step":2}"#));
    for text in ["without an end", "neither here"] {
        let lines = log::lines_with(text);
        assert_eq!(lines.iter().map(|line| line.job).collect::<Vec<_>>(), [Some(first)], "{text}");
    }
}

async fn error_of(client: &tokio_postgres::Client, job: i64) -> String {
    let sql = "select last_error from graphile_worker.jobs where id = $1";
    client.query_one(sql, &[&job]).await.unwrap().get(0)
}
