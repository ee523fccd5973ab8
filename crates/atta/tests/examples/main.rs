//! The examples run and print the expected lines, and the pages of the book agree with the code.
#![allow(missing_docs)]

mod book_code;
mod book_reference;

use std::path::PathBuf;
use std::process::Command;

use testkit::Database;

/// Runs an example on a new database, and compares its output line by line.
async fn prints(example: &str, expected: &[&str]) {
    let printed = output(example).await;
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
}

/// What an example prints on a database of its own.
async fn output(example: &str) -> String {
    let db = Database::empty().await;
    let output =
        Command::new(path(example)).env("DATABASE_URL", db.url()).output().expect("the example runs");
    let printed = String::from_utf8(output.stdout).expect("it prints UTF-8");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {}\n{printed}{errors}", output.status);
    printed
}

/// Cargo builds the examples of a package before it runs the package's tests, in a folder beside theirs.
fn path(example: &str) -> PathBuf {
    let tests = std::env::current_exe().expect("we run from a file");
    let target = tests.parent().and_then(|deps| deps.parent()).expect("it is in target/…/deps");
    target.join("examples").join(example)
}

#[tokio::test]
async fn quickstart() {
    prints("quickstart", &["Hello, Bobby Tables! (job 1, attempt 1)"]).await;
}

#[tokio::test]
async fn add_in_transaction() {
    prints("add_in_transaction", &["rolled back: no job", r#"committed: {"user":2}"#]).await;
}

#[tokio::test]
async fn batch() {
    prints("batch", &["sending 3 invoices", r#"left: [{"id": 2}] after "Batch failures:\nno address""#])
        .await;
}

#[tokio::test]
async fn hooks_and_events() {
    let expected = [
        "hook: bad failed permanently: out of paper",
        "event: good succeeded",
        "event: bad failed: out of paper",
    ];
    prints("hooks_and_events", &expected).await;
}

#[tokio::test]
async fn graceful_shutdown() {
    prints("graceful_shutdown", &["started", "finished", "1 job left for the next worker"]).await;
}

#[tokio::test]
async fn testing() {
    let expected = ["added for later: true", "ran now: 0", r#"reminding {"user":42}"#, "ran next week: 1"];
    prints("testing", &expected).await;
}

#[tokio::test]
async fn cron() {
    let expected = ["0 8 * * * send_daily_report ?fill=1h", "next: 2026-11-16 08:00:00 UTC"];
    prints("cron", &expected).await;
}

#[tokio::test]
async fn beside_node() {
    let expected = [r#"resizing {"image":1}"#, r#"left for Node: render_page {"page":7}"#];
    prints("beside_node", &expected).await;
}

#[tokio::test]
async fn retries() {
    let expected = ["permanently failed: no such customer", "to be retried: the printer is busy"];
    prints("retries", &expected).await;
}

#[tokio::test]
async fn queues_and_keys() {
    let charges = [3, 5, 8].map(|amount| format!(r#"charging {{"amount":{amount}}}"#));
    let [first, second, third] = charges.each_ref().map(String::as_str);
    prints("queues_and_keys", &[first, second, third, r#"one job: {"page":2}"#]).await;
}
