//! The worker of the command line, tested by its real binary.
#![allow(missing_docs)]

mod usage;
mod settings;
mod once;
mod log;
mod broken;
mod running;
mod watching;
mod dev;
mod command_lines;
mod secrets;
mod roles;
mod breaking;
mod book_reference;
mod quickstarts;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use testkit::{Database, Process, wait_for};

/// A folder of one test, removed with this value.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("atta-run-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(path.join("tasks")).expect("a test's folder is made");
        Folder { path }
    }

    /// With one task, `hello`, which prints its name.
    fn with_hello() -> Folder {
        let folder = Folder::new();
        folder.script("hello", "echo hello from job $GRAPHILE_WORKER_JOB_ID");
        folder
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path.join(name), text).expect("a test's file is written");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path.join(name)).unwrap_or_default()
    }

    fn has(&self, name: &str) -> bool {
        self.path.join(name).exists()
    }

    /// Writes a task that is a shell script. The file is replaced in one step, as editors do.
    fn script(&self, identifier: &str, text: &str) {
        let (draft, path) = (self.path.join(".draft"), self.path.join("tasks").join(identifier));
        fs::write(&draft, format!("#!/bin/sh\n{text}\n")).expect("a task is written");
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).expect("a task may be executed");
        fs::rename(draft, path).expect("a task is put in place");
    }

    /// `atta` in this folder, without the variables of our environment that it reads.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_atta"));
        command.args(words);
        command
    }

    /// A shell, with the same environment.
    fn shell(&self) -> Command {
        self.program("/bin/sh")
    }

    fn program(&self, path: &str) -> Command {
        let mut command = Command::new(path);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            let is_read = ["DATABASE_URL", "RUST_LOG", "NO_COLOR"].contains(&name.as_str());
            if is_read || ["ATTA_", "PG", "GRAPHILE_"].iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.current_dir(&self.path).stdin(Stdio::null());
        command
    }

    fn atta(&self, words: &[&str]) -> Run {
        run(&mut self.command(words))
    }

    /// Starts `atta` with its log in a file.
    fn start(&self, log: &str, command: &mut Command) -> Worker {
        let log = self.path.join(log);
        let file = fs::File::create(&log).expect("a log is made");
        Worker { process: Process::start(command.stderr(file)), log }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, a temporary folder stays.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A running `atta`.
struct Worker {
    process: Process,
    log: PathBuf,
}

impl Worker {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log contains this text this number of times.
    async fn says_times(&self, text: &str, times: usize) {
        wait_for(&format!("{text:?} in {}", self.log.display()), || {
            let is_there = self.log().matches(text).count() >= times;
            async move { is_there.then_some(()) }
        })
        .await;
    }

    async fn says(&self, text: &str) {
        self.says_times(text, 1).await;
    }

    /// The exit code, once it has ended.
    async fn code(&mut self) -> Option<i32> {
        self.process.ended().await.code()
    }
}

/// Adds a job by SQL; `more` are further arguments.
async fn add(db: &Database, task: &str, more: &str) {
    let sql = format!("select graphile_worker.add_job('{task}'{more})");
    db.client().await.execute(&sql, &[]).await.expect("a job is added");
}

/// The number of jobs that match the condition.
async fn jobs(db: &Database, condition: &str) -> i64 {
    let sql = format!("select count(*) from graphile_worker.jobs where {condition}");
    db.client().await.query_one(&sql, &[]).await.expect("jobs are counted").get(0)
}

/// Waits until a file exists, or no longer exists.
async fn wait_for_file(path: &Path, is_wanted: bool) {
    wait_for(&format!("{} to be there: {is_wanted}", path.display()), || {
        let is_so = path.exists() == is_wanted;
        async move { is_so.then_some(()) }
    })
    .await;
}

fn run(command: &mut Command) -> Run {
    let Output { status, stdout, stderr } = command.output().expect("atta runs");
    Run {
        code: status.code().expect("no signal ended it"),
        out: String::from_utf8(stdout).expect("it prints UTF-8"),
        err: String::from_utf8(stderr).expect("it prints UTF-8"),
    }
}

/// How a run ended.
#[derive(Debug)]
struct Run {
    code: i32,
    out: String,
    err: String,
}
