//! `cargo xtask test`: all checks that must pass before a change is merged.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Instant;

use atta_cluster::{Binaries, Cluster};
use clap::value_parser;

use crate::{
    Result, book, cargo, chaos, dependencies, fuzz, install, matrix, package, pooler, postgres, prose,
    repeat, say,
};

/// Tests mostly wait for the database, so more of them run at a time than there are cores.
const TEST_THREADS: &str = "8";
/// Enough to find what a change of the grammar has broken; `cargo xtask fuzz` runs for longer.
const FUZZ_SECONDS: u32 = 15;

/// The tests that depend on the version of the server: the library, and the parts of the command line that read the
/// database. Tasks in other languages, and hours of cron on a fast clock, take long and give the same result on each
/// version. A standby needs pg_basebackup, which the packages of other versions do not contain.
const OF_THE_SERVER: &[&str] = &[
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
const OF_THE_LIBRARY: &[&str] = &["--test=it", "--"];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The checks, and instead of all tests those that depend on the server, on PostgreSQL 12 to 18
    #[arg(long, group = "kind")]
    all_postgres: bool,
    /// Only the tests that depend on the server, on one version of it: 12 to 18
    #[arg(long, group = "kind", value_name = "MAJOR", value_parser = value_parser!(u32).range(12..=18))]
    postgres: Option<u32>,
    /// All test binaries N times, with different thread counts and CPU load; lists the failures by test, and exits with
    /// 1 if there are any
    #[arg(long, group = "kind", value_name = "N")]
    repeat: Option<NonZeroUsize>,
    /// With --repeat: only tests whose names contain one of these
    #[arg(value_name = "FILTER", requires = "repeat", conflicts_with_all = ["all_postgres", "postgres"])]
    filters: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let success = |()| ExitCode::SUCCESS;
    match (options.repeat, options.postgres) {
        (Some(rounds), _) => repeat::run(rounds.get(), &options.filters),
        (None, Some(major)) => on_version(major).map(success),
        (None, None) => once(options.all_postgres).map(success),
    }
}

fn once(all_postgres: bool) -> Result {
    let binaries = install::postgres()?;
    install_programs()?;
    let dependencies = dependencies::Pending::start()?;
    check_code()?;
    let chaos = if all_postgres { None } else { Some(chaos::Beside::start()?) };
    let mut doc = cargo();
    doc.args(["doc", "--workspace", "--no-deps", "--all-features", "--quiet"]);
    crate::run(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    book::run_as_step()?;
    fuzz::run_for(FUZZ_SECONDS)?;
    if all_postgres {
        on_every_version()?;
        return dependencies.finish();
    }
    tests(&binaries, &[], &[])?;
    tests(&binaries, &[OF_THE_LIBRARY, WORKER_MODULES].concat(), &[("ATTA_TEST_CLAIMS", "durable")])?;
    pooler::run(&binaries)?;
    matrix::run_rows(matrix::SAMPLE)?;
    chaos.map_or(Ok(()), chaos::Beside::finish)?;
    dependencies.finish()
}

/// The tests that depend on the server, on one of its versions and without the checks. The forge runs one job per
/// version.
fn on_version(major: u32) -> Result {
    let known = postgres::VERSIONS.into_iter().find(|(known, _)| *known == major);
    let (major, version) = known.ok_or_else(|| format!("no PostgreSQL {major} is known here"))?;
    install_programs()?;
    tests(&postgres::fetch(major, version)?, OF_THE_SERVER, &[])
}

/// What the tests need besides a server.
fn install_programs() -> Result {
    install::node_packages()?;
    install::python_packages()?;
    install::pgbouncer()?;
    install::faketime()
}

pub(crate) fn check() -> Result {
    dependencies::check_if_installed()?;
    check_code()
}

/// Format, packages, and lints: once as the tests are built, and once as most users build the library.
fn check_code() -> Result {
    let lint = |selection: &[&str]| {
        crate::run(cargo().args(["clippy", "--quiet"]).args(selection).args(["--", "-D", "warnings"]))
    };
    crate::run(cargo().args(["fmt", "--all", "--check"]))?;
    prose::check()?;
    package::check()?;
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
///
/// `which` selects among the tests of the whole workspace. With `--package`, cargo would enable fewer features of some
/// dependencies, and would build these, and all that depends on them, a second time.
pub(crate) fn tests(binaries: &Binaries, which: &[&str], settings: &[(&str, &str)]) -> Result {
    let cluster = Cluster::temporary(binaries).map_err(|error| error.to_string())?;
    let mut command = cargo();
    command
        .args(["test", "--quiet", "--workspace", "--all-features"])
        .args(which)
        .env("ATTA_TEST_SERVER", cluster.port().to_string())
        .env("ATTA_TEST_PG_BIN", binaries.folder())
        .env("RUST_TEST_THREADS", TEST_THREADS)
        .envs(settings.iter().copied());
    let tested = crate::run(&mut command);
    cluster.stop().map_err(|error| error.to_string())?;
    tested
}
