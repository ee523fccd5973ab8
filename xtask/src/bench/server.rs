//! The PostgreSQL server of benchmark and soak: a private one with durable commits, as in production, unlike that of
//! the tests.

use std::fs;
use std::process::Command;

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

#[derive(Debug)]
pub(crate) struct Server {
    binaries: Binaries,
    cluster: Cluster,
}

impl Server {
    /// Its guard removes it when this process ends, however that happens.
    pub(crate) fn start(binaries: Binaries, settings: &[&str]) -> Result<Server> {
        let cluster = Cluster::temporary_durable(&binaries, settings).map_err(|error| error.to_string())?;
        Ok(Server { binaries, cluster })
    }

    pub(crate) fn stop(self) -> Result {
        self.cluster.stop().map_err(|error| error.to_string())
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
        Ok((2 * transactions) as f64 / transactions_per_second(&printed)?)
    }

    /// Runs a script of `bench/` with this number of clients for that number of seconds. Returns the transactions per second.
    pub(crate) fn pgbench_rate(
        &self,
        database: &str,
        file: &str,
        clients: usize,
        seconds: usize,
    ) -> Result<f64> {
        let printed = output(
            self.binaries
                .command("pgbench")
                .args(["--no-vacuum", "--jobs=2", "--protocol=prepared"])
                .arg(format!("--client={clients}"))
                .arg(format!("--time={seconds}"))
                .arg("--file")
                .arg(root().join("bench").join(file))
                .arg(self.url(database)),
        )?;
        transactions_per_second(&printed)
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

fn transactions_per_second(printed: &str) -> Result<f64> {
    let rate = printed.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.ok_or_else(|| format!("unexpected output of pgbench: {printed:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_durable_and_leaves_nothing_behind() {
        let binaries =
            std::env::var_os("ATTA_TEST_PG_BIN").map_or_else(Binaries::find, Binaries::at).unwrap();
        let server = Server::start(binaries, &["max_connections=20"]).unwrap();
        let setting = |name: &str| server.psql("postgres", &["-c", &format!("show {name}")]).unwrap();
        assert_eq!((setting("fsync"), setting("max_connections")), ("on".to_owned(), "20".to_owned()));
        assert!(server.pid().unwrap() > 0);
        let folder = server.cluster.folder().to_owned();
        server.stop().unwrap();
        assert!(!folder.exists());
    }
}
