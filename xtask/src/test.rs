//! `cargo xtask test`: all that must hold before a change lands.

use std::time::Instant;

use atta_cluster::{Binaries, Cluster};

use crate::{Result, cargo, install, postgres, say};

/// Tests mostly wait for the database, so more of them run at a time than there are cores.
const TEST_THREADS: &str = "8";

pub(crate) fn run(all_postgres: bool) -> Result {
    let binaries = install::postgres()?;
    install::node_packages()?;
    check()?;
    crate::run(
        cargo().args(["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    if all_postgres {
        return on_every_version();
    }
    tests(&binaries, &["--workspace"])
}

/// Format and lints.
pub(crate) fn check() -> Result {
    crate::run(cargo().args(["fmt", "--all", "--check"]))?;
    crate::run(cargo().args(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))
}

/// The tests that talk to a server, once for each version of it.
fn on_every_version() -> Result {
    let start = Instant::now();
    for (major, version) in postgres::VERSIONS {
        say(&format!("==> PostgreSQL {major}"));
        let binaries = postgres::fetch(major, version)?;
        tests(&binaries, &["--workspace"])?;
    }
    say(&format!("all versions passed in {} s", start.elapsed().as_secs()));
    Ok(())
}

/// One server for all test processes of the run; it goes with us, however we end.
fn tests(binaries: &Binaries, selection: &[&str]) -> Result {
    let cluster = Cluster::temporary(binaries).map_err(|error| error.to_string())?;
    let mut command = cargo();
    command
        .args(["test", "--quiet"])
        .args(selection)
        .env("ATTA_TEST_SERVER", cluster.port().to_string())
        .env("ATTA_TEST_PG_BIN", binaries.folder())
        .env("RUST_TEST_THREADS", TEST_THREADS);
    let tested = crate::run(&mut command);
    cluster.stop().map_err(|error| error.to_string())?;
    tested
}
