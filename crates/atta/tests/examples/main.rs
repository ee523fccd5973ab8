//! The examples run, and print the expected lines.
#![allow(missing_docs)]

use std::path::PathBuf;
use std::process::Command;

use testkit::Database;

/// Runs an example on a new database, and compares its output line by line.
async fn prints(example: &str, expected: &[&str]) {
    let db = Database::empty().await;
    let output =
        Command::new(path(example)).env("DATABASE_URL", db.url()).output().expect("the example runs");
    let printed = String::from_utf8(output.stdout).expect("it prints UTF-8");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {}\n{printed}{errors}", output.status);
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected, "{errors}");
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
