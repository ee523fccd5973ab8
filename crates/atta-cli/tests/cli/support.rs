//! A database with jobs in every state, and shorter ways to ask the binary.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::Value;
use testkit::Database;
use tokio_postgres::Client;

use crate::{Run, command};

/// A database of a test's own, with a connection to look at it from the side.
pub(crate) struct Place {
    pub(crate) db: Database,
    pub(crate) client: Client,
}

impl Place {
    pub(crate) async fn new() -> Place {
        let db = Database::migrated().await;
        let client = db.client().await;
        Place { db, client }
    }

    /// In a database with this encoding.
    pub(crate) async fn encoded(encoding: &str) -> Place {
        let db = Database::encoded(encoding).await;
        let mut client = db.client().await;
        atta::migrate(&mut client, &atta::Schema::default()).await.expect("the schema is installed");
        Place { db, client }
    }

    /// With one job in each state: ids 1 to 6 in the order of the states' names below.
    pub(crate) async fn with_jobs() -> Place {
        let place = Place::new().await;
        let fill = "
            select graphile_worker.add_job('email', '{\"to\": \"a\"}', job_key := 'ready-key', flags := array['x', 'y']);
            select graphile_worker.add_job('email', queue_name := 'serial');
            select graphile_worker.add_job('resize', run_at := now() + interval '5 minutes');
            select graphile_worker.add_job('resize', run_at := now() + interval '3 hours');
            select graphile_worker.add_job('report', queue_name := 'serial', job_key := 'running-key');
            select graphile_worker.add_job('report', max_attempts := 3);
            update graphile_worker._private_jobs set attempts = 2, last_error = E'timed out\\nbadly', updated_at = now() - interval '5 minutes' where id = 4;
            update graphile_worker._private_jobs set attempts = 1, locked_at = now() - interval '2 hours', locked_by = 'node-1' where id = 5;
            update graphile_worker._private_jobs set attempts = 3, last_error = 'no such host', updated_at = now() - interval '3 hours' where id = 6;
            update graphile_worker._private_job_queues set locked_at = now(), locked_by = 'node-1';";
        place.client.batch_execute(fill).await.expect("jobs are added");
        place
    }

    pub(crate) fn atta(&self, words: &[&str]) -> Run {
        self.atta_with_input(words, "")
    }

    pub(crate) fn atta_with_input(&self, words: &[&str], input: &str) -> Run {
        let mut all = words.to_vec();
        let url = self.db.url();
        all.extend(["-c", &url]);
        run_with_input(&all, input)
    }

    /// The JSON document that a successful run prints, and nothing else.
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let run = self.atta(words);
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{words:?}: {}", run.out);
        serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{words:?}: {error}: {}", run.out))
    }

    /// The one value of a statement, as text.
    pub(crate) async fn value(&self, sql: &str) -> String {
        let row =
            self.client.query_one(&format!("select ({sql})::text"), &[]).await.expect("the statement runs");
        row.get::<_, Option<String>>(0).unwrap_or_default()
    }

    /// The ids of all jobs.
    pub(crate) async fn ids(&self) -> String {
        self.value(
            "select coalesce(string_agg(id::text, ' ' order by id), '') from graphile_worker._private_jobs",
        )
        .await
    }
}

pub(crate) fn run_with_input(words: &[&str], input: &str) -> Run {
    let mut child = command(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("atta starts");
    // A process that ended before it read anything is nothing to us.
    let _ = child.stdin.take().expect("its input is ours").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("atta ends");
    Run {
        code: output.status.code().expect("no signal ended it"),
        out: String::from_utf8(output.stdout).expect("it prints UTF-8"),
        err: String::from_utf8(output.stderr).expect("it prints UTF-8"),
    }
}

/// A command that a signal ends.
pub(crate) struct Interrupted {
    child: std::process::Child,
    /// What it has written to standard error.
    err: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Interrupted {
    pub(crate) fn start(words: &[&str]) -> Interrupted {
        let mut command = command(words);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("atta starts");
        let (stderr, err) = (child.stderr.take().expect("it is ours"), Arc::new(Mutex::new(String::new())));
        let read = err.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                *read.lock().expect("no test panics here") += &(line.expect("it prints UTF-8") + "\n");
            }
        });
        Interrupted { child, err, reader }
    }

    /// Waits until it has written this to standard error.
    pub(crate) async fn wait_for(&self, text: &str) {
        testkit::wait_for(text, || async {
            self.err.lock().expect("no test panics here").contains(text).then_some(())
        })
        .await;
    }

    /// Waits until it handles SIGTERM itself.
    #[cfg(target_os = "linux")]
    pub(crate) async fn handles_sigterm(&self) {
        const SIGTERM: u64 = 1 << 14;
        testkit::wait_for("SIGTERM to be handled", || async {
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
            let mask = u64::from_str_radix(mask.trim(), 16).expect("a number in base 16");
            (mask & SIGTERM != 0).then_some(())
        })
        .await;
    }

    /// Its standard input stays open.
    pub(crate) fn write(&mut self, input: &str) {
        let stdin = self.child.stdin.as_mut().expect("its input is ours");
        stdin.write_all(input.as_bytes()).expect("it reads");
    }

    pub(crate) fn send(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.child.id());
        let sent = std::process::Command::new("/bin/sh").args(["-c", &kill]).status();
        assert!(sent.expect("a shell starts").success());
    }

    /// Sends a signal and waits for the end.
    pub(crate) async fn signal(self, signal: &str) -> Run {
        self.send(signal);
        self.end().await
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("atta is ours").is_some()
    }

    pub(crate) async fn end(mut self) -> Run {
        testkit::wait_for("the command to end", || {
            let ended = self.has_ended();
            async move { ended.then_some(()) }
        })
        .await;
        let output = self.child.wait_with_output().expect("atta has ended");
        self.reader.join().expect("it does not panic");
        Run {
            code: output.status.code().expect("no signal ended it by itself"),
            out: String::from_utf8(output.stdout).expect("it prints UTF-8"),
            err: self.err.lock().expect("no test panics here").clone(),
        }
    }
}

/// A file of a test's own, removed with this value.
pub(crate) struct TextFile(std::path::PathBuf);

impl TextFile {
    pub(crate) fn new(name: &str, text: &str) -> TextFile {
        let path = std::env::temp_dir().join(format!("atta-cli-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("a temporary file is written");
        TextFile(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().expect("the path is UTF-8")
    }
}

impl Drop for TextFile {
    fn drop(&mut self) {
        // It is in a folder for temporary files.
        let _ = std::fs::remove_file(&self.0);
    }
}
