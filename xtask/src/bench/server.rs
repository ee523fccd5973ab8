//! The PostgreSQL server of benchmark and soak: a private one with durable commits, as in production, unlike that of
//! the tests.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use atta_cluster::{Binaries, Cluster};

use super::output;
use crate::{Result, root};

/// Settings of the benchmark, chosen so that no checkpoint affects one contender and not another.
pub(crate) const BENCH_SETTINGS: [&str; 5] = [
    "shared_buffers=256MB",
    "max_wal_size=4GB",
    // Only checkpoints that we request.
    "checkpoint_timeout=1h",
    "synchronous_commit=on",
    "max_connections=300",
];

/// Waits until we end, even by a signal; then ends the server if it still runs, and removes its folder.
const GUARD: &str = r#"
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ]; then
  kill -QUIT "$pid" 2>/dev/null
  while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
fi
rm -rf -- "$1"
"#;

#[derive(Debug)]
pub(crate) struct Server {
    binaries: Binaries,
    cluster: Cluster,
    /// A shell at the other end of a pipe that only we hold open.
    guard: Child,
}

impl Server {
    pub(crate) fn start(binaries: Binaries, settings: &[&str]) -> Result<Server> {
        let folder = std::env::temp_dir().join(format!("atta-bench-{}", std::process::id()));
        let guard = guard(&folder)?;
        let cluster = Cluster::start(&binaries, &folder, settings).map_err(|error| error.to_string())?;
        Ok(Server { binaries, cluster, guard })
    }

    pub(crate) fn stop(mut self) -> Result {
        let stopped = self.cluster.stop().map_err(|error| error.to_string());
        drop(self.guard.stdin.take());
        self.guard.wait().map_err(|error| format!("waiting for the guard of the server: {error}"))?;
        stopped
    }

    /// The process id of the postmaster, the parent of all other server processes.
    pub(crate) fn pid(&self) -> Result<u32> {
        let file = self.cluster.folder().join("data/postmaster.pid");
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let pid = text.lines().next().and_then(|line| line.trim().parse().ok());
        pid.ok_or_else(|| format!("{} has no process id", file.display()))
    }

    pub(crate) fn url(&self, database: &str) -> String {
        self.cluster.url(database)
    }

    pub(crate) fn create_database(&self, name: &str) -> Result {
        self.psql("postgres", &["-c", &format!("create database {name}")]).map(|_| ())
    }

    /// Empties the tables and inserts that many jobs.
    pub(crate) fn fill(&self, database: &str, file: &str, jobs: usize) -> Result {
        let path = root().join("bench").join(file);
        let jobs = format!("jobs={jobs}");
        self.psql(database, &["-v", &jobs, "-f", &path.display().to_string()]).map(|_| ())
    }

    /// How many bytes of WAL the server has ever written.
    pub(crate) fn wal_position(&self, database: &str) -> Result<f64> {
        let bytes = self.psql(database, &["-c", "select pg_current_wal_lsn() - '0/0'::pg_lsn"])?;
        bytes.parse().map_err(|_| format!("a WAL position of {bytes:?}"))
    }

    /// The ceiling: seconds until all jobs are deleted, without the time to connect.
    pub(crate) fn pgbench(&self, database: &str, jobs: usize) -> Result<f64> {
        let transactions = jobs.div_ceil(2000);
        let printed = output(
            self.binaries
                .command("pgbench")
                .args(["--no-vacuum", "--client=2", "--jobs=2", "--protocol=prepared"])
                .arg(format!("--transactions={transactions}"))
                .arg("--file")
                .arg(root().join("bench/pick_and_delete.sql"))
                .arg(self.url(database)),
        )?;
        let left = self.psql(database, &["-c", "select count(*) from graphile_worker._private_jobs"])?;
        if left != "0" {
            return Err(format!("{left} jobs are left"));
        }
        let rate =
            printed.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        let rate: f64 = rate.ok_or_else(|| format!("unexpected output of pgbench: {printed:?}"))?;
        Ok((2 * transactions) as f64 / rate)
    }

    /// The server's version.
    pub(crate) fn about(&self) -> Result<String> {
        self.psql("postgres", &["-c", "select 'PostgreSQL ' || current_setting('server_version')"])
    }

    pub(crate) fn psql(&self, database: &str, args: &[&str]) -> Result<String> {
        output(self.psql_command(database).args(args))
    }

    pub(crate) fn psql_command(&self, database: &str) -> Command {
        let mut command = self.binaries.command("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", &self.url(database)]);
        command
    }
}

/// In a process group of its own, so that Ctrl-C reaches us and not the guard.
fn guard(folder: &PathBuf) -> Result<Child> {
    fs::create_dir_all(folder).map_err(|error| format!("creating {}: {error}", folder.display()))?;
    Command::new("/bin/sh")
        .args(["-c", GUARD, "atta-bench-guard"])
        .arg(folder)
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("starting the guard of the server: {error}"))
}
