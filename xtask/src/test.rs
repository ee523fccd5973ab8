//! `cargo xtask test`: all checks that must pass before a change is merged.

use std::time::Instant;

use atta_cluster::{Binaries, Cluster};

use crate::{Result, cargo, chaos, deny, fuzz, install, matrix, pooler, postgres, prose, say};

/// Tests mostly wait for the database, so more of them run at a time than there are cores.
const TEST_THREADS: &str = "8";
/// Enough to find what a change of the grammar has broken; `cargo xtask fuzz` runs for longer.
const FUZZ_SECONDS: u32 = 15;

/// The tests that depend on the version of the server: the library, and the parts of the command line that read the
/// database. Tasks in other languages, and hours of cron on a fast clock, take long and give the same result on each
/// version. A standby needs pg_basebackup, which the packages of other versions do not contain.
const OF_THE_SERVER: &[&str] = &[
    "--package=atta",
    "--package=atta-cli",
    "--lib",
    "--test=it",
    "--test=compat",
    "--test=adapters",
    "--test=examples",
    "--test=cli",
    "--",
    "--skip=cron::killed",
    "--skip=cron::an_hour",
    "--skip=crontabs::",
    "--skip=faults::failover",
];

/// The modules that test the guarantees of a worker, for any kind of claims.
pub(crate) const WORKER_MODULES: &[&str] = &["worker::", "faults::"];
const OF_THE_LIBRARY: &[&str] = &["--package=atta", "--test=it", "--"];

pub(crate) fn run(all_postgres: bool) -> Result {
    let binaries = install::postgres()?;
    install::node_packages()?;
    install::python_packages()?;
    install::pgbouncer()?;
    install::faketime()?;
    install::cargo_deny();
    check()?;
    let chaos = if all_postgres { None } else { Some(chaos::Beside::start()?) };
    let mut doc = cargo();
    doc.args(["doc", "--workspace", "--no-deps", "--all-features", "--quiet"]);
    crate::run(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    fuzz::run(FUZZ_SECONDS)?;
    if all_postgres {
        return on_every_version();
    }
    tests(&binaries, &["--workspace"], &[])?;
    tests(&binaries, &[OF_THE_LIBRARY, WORKER_MODULES].concat(), &[("ATTA_TEST_CLAIMS", "durable")])?;
    pooler::run(&binaries)?;
    if matrix::IS_PART_OF_TEST {
        matrix::run("")?;
    }
    chaos.map_or(Ok(()), chaos::Beside::finish)
}

/// Format, retired words, rules for dependencies, and lints: once as the tests are built, and once as most users build the library.
pub(crate) fn check() -> Result {
    let lint = |selection: &[&str]| {
        crate::run(cargo().args(["clippy", "--quiet"]).args(selection).args(["--", "-D", "warnings"]))
    };
    crate::run(cargo().args(["fmt", "--all", "--check"]))?;
    prose::check()?;
    deny::check()?;
    lint(&["--workspace", "--all-targets", "--all-features"])?;
    lint(&["--package", "atta", "--lib"])
}

/// Runs the tests once for each version of the server; failures are reported at the end, after all versions.
fn on_every_version() -> Result {
    let start = Instant::now();
    let mut failed = Vec::new();
    for (major, version) in postgres::VERSIONS {
        say(&format!("==> PostgreSQL {major}"));
        if let Err(error) = tests(&postgres::fetch(major, version)?, OF_THE_SERVER, &[]) {
            failed.push(format!("PostgreSQL {major}: {error}"));
        }
    }
    let seconds = start.elapsed().as_secs();
    if !failed.is_empty() {
        return Err(format!("after {seconds} s: {}", failed.join("; ")));
    }
    say(&format!("all versions passed in {seconds} s"));
    Ok(())
}

/// Starts one server for all test processes of the run; it ends with this process, however that ends.
pub(crate) fn tests(binaries: &Binaries, which: &[&str], settings: &[(&str, &str)]) -> Result {
    let cluster = Cluster::temporary(binaries).map_err(|error| error.to_string())?;
    let mut command = cargo();
    command
        .args(["test", "--quiet", "--all-features"])
        .args(which)
        .env("ATTA_TEST_SERVER", cluster.port().to_string())
        .env("ATTA_TEST_PG_BIN", binaries.folder())
        .env("RUST_TEST_THREADS", TEST_THREADS)
        .envs(settings.iter().copied());
    let tested = crate::run(&mut command);
    cluster.stop().map_err(|error| error.to_string())?;
    tested
}
