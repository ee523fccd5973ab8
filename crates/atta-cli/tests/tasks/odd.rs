//! Payloads that a language can't parse, and errors that Rust can't: no job may wait forever for a result.

use tokio_postgres::Client;

use crate::support::{Folder, add, count_jobs, database, run_once};

/// JSON nested deeper than a recursive parser supports, numbers with too many digits, halves of surrogate pairs, and
/// ordinary payloads in between.
fn payloads() -> Vec<String> {
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    let odd = ["1e400", "\"\\u0000\"", "\"\\ud800\"", "{\"\\udc00\":1}", "\"\u{2028}\"", "\n[ 1 ,\r\n2 ]"];
    let mut payloads = vec![deep, "9".repeat(5001)];
    payloads.extend(odd.into_iter().map(str::to_owned));
    payloads
}

async fn errors(client: &Client) -> Vec<String> {
    let sql = "select coalesce(last_error, 'none') from graphile_worker.jobs order by id";
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_payload_that_python_cannot_read_fails_its_job_and_no_other() {
    let (db, client) = database().await;
    let folder = Folder::new()
        .file(
            "takes.py",
            "def task(payload, helpers):\n    helpers.logger.info('took', payload)\n    print(payload)\n",
        )
        .file("waits.py", "async def task(payload, helpers):\n    await helpers.add_job('takes', payload)\n");
    for payload in payloads() {
        add(&client, "takes", &payload).await;
    }
    add(&client, "waits", "\"\\ud800\"").await;
    run_once(&db, &folder).await;
    let errors = errors(&client).await;
    assert!(errors.iter().all(|error| error.starts_with("the payload is invalid: ")), "{errors:?}");
    // A newer Python may parse both, an older one the number.
    assert!(errors.len() <= 2, "{errors:?}");
}

#[tokio::test]
async fn javascript_takes_every_payload() {
    let (db, client) = database().await;
    let folder = Folder::new()
        .file("takes.js", "module.exports = (payload, { logger }) => { logger.info('took', { payload }); console.log(payload); };")
        .file("adds.js", "module.exports = (payload, { addJob }) => addJob('takes', payload);");
    for payload in payloads() {
        add(&client, "takes", &payload).await;
    }
    for payload in ["\"\\ud800\"", "{\"a\":\"\\u0000\"}"] {
        add(&client, "adds", payload).await;
    }
    run_once(&db, &folder).await;
    assert_eq!(errors(&client).await, [] as [&str; 0]);
}

/// A message that is cut after a number of characters may end in the middle of a surrogate pair.
#[tokio::test]
async fn an_error_with_half_a_letter_fails_the_job_all_the_same() {
    let (db, client) = database().await;
    let folder = Folder::new()
        .file("half.js", "module.exports = () => { throw new Error('half of \\ud83d'); };")
        .file("cut.js", "module.exports = () => { throw 'x' + '😀'.repeat(20000); };")
        .file("odd_log.js", "module.exports = (payload, { logger }) => { logger.info('\\ud83d'); logger.info('x', { '\\udc00': 1n }); };")
        .file("half_too.py", "def task(payload, helpers):\n    raise ValueError('half of \\ud83d')\n")
        .file("nul.py", "def task(payload, helpers):\n    raise ValueError('a\\0b')\n");
    for task in ["half", "cut", "odd_log", "half_too", "nul"] {
        add(&client, task, "{}").await;
    }
    run_once(&db, &folder).await;
    assert_eq!(count_jobs(&client).await, 4, "all but the one that only logs");
    let errors = errors(&client).await;
    for (error, begin) in errors.iter().zip([
        "half of \u{fffd}",
        "x😀",
        "ValueError: half of \u{fffd}",
        "ValueError: a\u{fffd}b",
    ]) {
        assert!(error.starts_with(begin), "{begin}: {:?}", &error[..error.len().min(200)]);
    }
}

/// A result is always sent, whatever the task throws or returns. Otherwise the job would run forever.
#[tokio::test]
async fn errors_and_results_that_cannot_be_read_fail_their_jobs() {
    let (db, client) = database().await;
    let no_text = "class Odd(Exception):\n    code = property(lambda self: 1 / 0)\n    def __str__(self):\n        \
                   return self.nothing\n\n";
    let folder = Folder::new()
        .file("a.js", "module.exports = () => { const e = new Error('x'); e.name = 42; throw e; };")
        .file("b.js", "module.exports = async () => { const e = new Error('x'); e.name = Symbol('s'); throw e; };")
        .file(
            "c.js",
            "module.exports = () => { throw Object.defineProperty(new Error(), 'message', { get() { throw 1; } }); };",
        )
        .file("d.js", "module.exports = async (p) => p.map(() => Promise.reject(Object.create(null)));")
        .file("e.js", "module.exports = () => ({ get then() { throw new Error('no then'); } });")
        .file("f.py", &format!("{no_text}def task(payload, helpers):\n    raise Odd()\n"))
        .file("g.py", &format!("{no_text}async def task(payload, helpers):\n    raise Odd()\n"))
        .file("h.py", &format!("{no_text}def task(payload, helpers):\n    return [Odd() for _ in payload]\n"))
        .file("i.py", "def task(payload, helpers):\n    helpers.add_job('none', {'v': float('nan')})\n")
        .file("j.py", "async def task(payload, helpers):\n    await helpers.add_job('none', {'v': float('inf')})\n")
        .file("k.py", "async def work():\n    pass\n\ndef task(payload, helpers):\n    return work()\n");
    for task in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"] {
        add(&client, task, "[1]").await;
    }
    let run = tokio::time::timeout(testkit::DEADLINE, run_once(&db, &folder)).await;
    let errors = errors(&client).await;
    assert!(run.is_ok(), "a job has no answer: {errors:?}");
    assert!(errors.len() == 11 && errors.iter().all(|error| error != "none"), "{errors:?}");
}

/// A decorator hides that the function is a coroutine.
#[tokio::test]
async fn a_coroutine_in_a_decorator_is_awaited() {
    let (db, client) = database().await;
    let python = "import asyncio
import functools

def decorated(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments)
    return call

@decorated
async def task(payload, helpers):
    await asyncio.sleep(0)
    await helpers.add_job('another')
";
    let folder = Folder::new().file("deco.py", python);
    add(&client, "deco", "{}").await;
    run_once(&db, &folder).await;
    let sql = "select string_agg(task_identifier, ',') from graphile_worker.jobs";
    assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, &str>(0), "another");
}

/// Calling a generator function runs nothing of its body.
#[tokio::test]
async fn a_generator_as_task_fails_instead_of_counting_as_done() {
    let (db, client) = database().await;
    let folder = Folder::new()
        .file("a.js", "module.exports = function* () {};")
        .file("b.js", "module.exports = async function* () {};")
        .file("c.py", "def task(payload, helpers):\n    yield 1\n")
        .file("d.py", "async def task(payload, helpers):\n    yield 1\n");
    for task in ["a", "b", "c", "d"] {
        add(&client, task, "{}").await;
    }
    run_once(&db, &folder).await;
    let errors = errors(&client).await;
    assert!(errors.len() == 4 && errors.iter().all(|error| error.contains("generator")), "{errors:?}");
}

#[tokio::test]
async fn invalid_options_of_a_job_are_an_error_in_the_task_that_adds_it() {
    let (db, client) = database().await;
    let folder = Folder::new()
        .file("a.js", "module.exports = (p, { addJob }) => addJob('none', {}, { runAt: new Date(NaN) });")
        .file(
            "b.js",
            "module.exports = (p, { addJobs }) => addJobs([{ identifier: 'none', runAt: new Date('x') }]);",
        )
        .file(
            "c.py",
            "def task(payload, helpers):\n    helpers.add_job('none', {}, runat='2030-01-01T00:00:00Z')\n",
        )
        .file(
            "d.py",
            "async def task(payload, helpers):\n    await helpers.add_job('none', {}, {'queuename': 'q'})\n",
        )
        .file(
            "e.py",
            "def task(payload, helpers):\n    helpers.add_jobs([{'identifier': 'none', 'key': 'k'}])\n",
        );
    for task in ["a", "b", "c", "d", "e"] {
        add(&client, task, "{}").await;
    }
    run_once(&db, &folder).await;
    let errors = errors(&client).await;
    let are_named = errors[..2].iter().all(|error| error.contains("runAt is an invalid date"))
        && errors[2].contains("no option 'runat'")
        && errors[3].contains("no option 'queuename'")
        && errors[4].contains("no option 'key'");
    assert!(errors.len() == 5 && are_named, "{errors:?}");
}
