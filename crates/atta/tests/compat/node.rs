//! Runs released versions of Graphile Worker, in a Node that all of them work with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use testkit::Database;

/// The versions that the upgrade is tested from, oldest first, each with the newest revision that it brought.
pub(crate) const RELEASES: [(&str, i32); 8] = [
    ("0.4.0", 3),
    ("0.8.1", 5),
    ("0.11.4", 8),
    ("0.13.0", 10),
    ("0.15.1", 14),
    ("0.16.6", 18),
    ("0.17.3", 19),
    ("0.18.0", 20),
];

/// Runs `command` of `node/release.js` to its end, and fails the test if that fails.
pub(crate) async fn node(version: &'static str, db: &Database, command: &'static str) {
    let output = try_node(version, db, command).await;
    assert!(
        output.status.success(),
        "graphile-worker {version} failed to {command}:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs `command` of `node/release.js` to its end, whatever that is.
pub(crate) async fn try_node(version: &'static str, db: &Database, command: &'static str) -> Output {
    let url = db.url();
    let run = move || release(version, &url, command).output().expect("Node starts");
    tokio::task::spawn_blocking(run).await.expect("running Node does not panic")
}

/// A version's worker that runs until it stops by itself, or until this value goes.
pub(crate) struct Listening(Child);

impl Listening {
    pub(crate) fn start(version: &str, db: &Database) -> Listening {
        let mut command = release(version, &db.url(), "listen");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Listening(command.spawn().expect("Node starts"))
    }

    pub(crate) fn has_stopped(&mut self) -> bool {
        self.0.try_wait().expect("the state of a child of ours can be read").is_some()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // It may have stopped by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The text of one of Graphile's migrations, as the newest release ships it.
pub(crate) fn migration_sql(revision: i32) -> String {
    let path = folder().join(format!("node_modules/graphile-worker-0.18.0/sql/{revision:06}.sql"));
    let sql = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    sql.replace(":GRAPHILE_WORKER_SCHEMA", "\"graphile_worker\"")
}

pub(crate) fn release(version: &str, url: &str, command: &str) -> Command {
    let mut node = Command::new(folder().join("node_modules/node/bin/node"));
    node.arg("release.js").args([version, url, command]).current_dir(folder());
    node
}

/// The folder with the packages in it, which `cargo xtask test` installs beforehand.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compat/node");
        let installed = folder.join("node_modules/.package-lock.json");
        if !installed.exists() {
            alone(|| {
                if !installed.exists() {
                    install(&folder);
                }
            });
        }
        folder
    })
}

fn install(folder: &Path) {
    let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
    let status = Command::new(npm)
        .args(["ci", "--no-audit", "--no-fund"])
        .current_dir(folder)
        .status()
        .expect("npm is installed: the compatibility tests run Graphile Worker itself");
    assert!(status.success(), "npm ci failed in {}", folder.display());
}

/// Two test processes must not install into one folder at once. A folder is the lock, since making one is atomic.
fn alone(work: impl FnOnce()) {
    let lock = Path::new(env!("CARGO_TARGET_TMPDIR")).join("npm-ci.lock");
    let start = Instant::now();
    while let Err(error) = fs::create_dir(&lock) {
        assert!(
            start.elapsed() < Duration::from_secs(300),
            "another process installs the packages, or left {} behind: {error}",
            lock.display()
        );
        thread::sleep(Duration::from_millis(200));
    }
    let _unlock = Unlock(lock);
    work();
}

struct Unlock(PathBuf);

impl Drop for Unlock {
    fn drop(&mut self) {
        // If it stays, the next to come says so.
        let _ = fs::remove_dir(&self.0);
    }
}
