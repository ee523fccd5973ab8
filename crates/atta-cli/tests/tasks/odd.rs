//! Payloads that a language can't read, and errors that ours can't: no job may wait for ever for an answer.

use tokio_postgres::Client;

use crate::support::{Folder, add, count_jobs, database, run_once};

/// Deeper than a recursive reader goes, longer than a number may be, letters that are halves, and good ones between.
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
    assert!(errors.iter().all(|error| error.starts_with("the payload is refused: ")), "{errors:?}");
    // A newer Python may read both, an older one the number.
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

/// A message that is cut after so many letters may end in the middle of one.
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
