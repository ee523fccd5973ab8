//! Folders of tasks, workers that run them, and the state of jobs afterwards.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use atta::WorkerOptions;
use atta_tasks::{TasksFolder, TasksSettings};
use testkit::Database;
use tokio_postgres::Client;

use crate::log;

/// A folder of one test, removed with this value.
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("tasks-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("a folder can be made");
        Folder { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file in which a task can leave something for the test.
    pub(crate) fn note(&self, name: &str) -> PathBuf {
        self.path.join(format!("~{name}"))
    }

    /// Writes a file that is not executable.
    pub(crate) fn file(self, name: &str, text: &str) -> Folder {
        let path = self.path.join(name);
        fs::create_dir_all(path.parent().expect("it is in the folder")).expect("a folder can be made");
        fs::write(path, text).expect("a file can be written");
        self
    }

    /// Writes a program.
    pub(crate) fn program(self, name: &str, text: &str) -> Folder {
        let folder = self.file(name, text);
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path.join(name), mode).expect("a file of ours can be made executable");
        folder
    }

    pub(crate) fn settings(&self, db: &Database) -> TasksSettings {
        let mut settings = TasksSettings::new(&self.path);
        settings.kill_after = Duration::from_secs(2);
        settings.connection = db.url();
        settings.concurrency = 4;
        settings.allows_broken = true;
        settings
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, the folder stays in target.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A database, and a connection to it. The log is recorded from now on.
pub(crate) async fn database() -> (Database, Client) {
    log::keep();
    let db = Database::migrated().await;
    let client = db.client().await;
    (db, client)
}

pub(crate) async fn add(client: &Client, task: &str, payload: &str) -> i64 {
    let sql = "select (graphile_worker.add_job($1, $2::text::json)).id";
    client.query_one(sql, &[&task, &payload]).await.expect("a job is added").get(0)
}

/// Opens the folder, runs the due jobs, and closes it.
pub(crate) async fn run_once(db: &Database, folder: &Folder) {
    run_once_with(db, folder.settings(db)).await;
}

pub(crate) async fn run_once_with(db: &Database, settings: TasksSettings) {
    let folder = TasksFolder::open(settings).await.expect("the folder opens");
    let worker = folder.define(options(db)).init().await.expect("the worker starts");
    let ended = tokio::time::timeout(testkit::DEADLINE, folder.run_once(&worker)).await;
    ended.expect("the jobs end before the deadline").expect("the worker ends well");
    folder.close().await;
}

pub(crate) fn options(db: &Database) -> WorkerOptions {
    WorkerOptions::default().database_url(db.url()).concurrency(4)
}

/// The error of the only remaining job.
pub(crate) async fn last_error(client: &Client) -> String {
    let sql = "select last_error from graphile_worker.jobs";
    let row = client.query_one(sql, &[]).await.expect("one job is left");
    row.get::<_, Option<String>>(0).expect("it has failed")
}

pub(crate) async fn count_jobs(client: &Client) -> i64 {
    client.query_one("select count(*) from graphile_worker.jobs", &[]).await.unwrap().get(0)
}

/// Node 22 from npm, which is installed for the tests together with Graphile Worker.
pub(crate) fn node() -> &'static Path {
    static NODE: OnceLock<PathBuf> = OnceLock::new();
    NODE.get_or_init(|| {
        let node = node_folder().join("node_modules/node/bin/node");
        if !node.exists() {
            let installed = Command::new("npm")
                .args(["ci", "--no-audit", "--no-fund"])
                .current_dir(node_folder())
                .status();
            assert!(installed.expect("npm is installed").success(), "npm ci in {}", node_folder().display());
        }
        node
    })
}

pub(crate) fn node_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../atta/tests/compat/node")
}
