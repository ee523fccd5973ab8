//! `cargo xtask test --repeat N [FILTER...]`: all test binaries N times, to find tests that fail only now and then.
//!
//! A round runs two passes: plain, and one of three in turn: with durable claims, or behind PgBouncer in one of its modes.
//! Four passes in each round would take twice as long, and ten rounds more than two hours. Each round uses another number
//! of test threads, and every second round runs under CPU load. Every failure is collected and its output kept; nothing
//! stops before the last round. `libtest` parses the output of test binaries, `report` prints.

mod libtest;
mod load;
mod report;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use atta_cluster::{Binaries, Cluster};

use crate::bench::output;
use crate::{Result, cargo, install, pooler, root, say, test};
use libtest::TestBinary;
use load::Load;
use report::Failure;

/// The number of test threads of the rounds, in turn.
const THREADS: [usize; 4] = [6, 8, 12, 16];

/// A test binary that runs for longer than this counts as hanging.
const LONGEST_RUN: Duration = Duration::from_secs(30 * 60);

/// The settings of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Round {
    number: usize,
    threads: usize,
    has_load: bool,
}

impl Round {
    fn new(number: usize) -> Round {
        // The load alternates between rounds and shifts after each cycle of thread counts, so that each count runs with
        // and without it.
        let turn = (number - 1) / THREADS.len();
        let threads = THREADS[(number - 1) % THREADS.len()];
        Round { number, threads, has_load: (number + turn).is_multiple_of(2) }
    }
}

/// One way to run the tests within a round.
struct Pass {
    name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    /// Only this test binary of the library; none: all.
    only: Option<&'static str>,
    /// Only tests whose names contain one of these; empty: all.
    modules: &'static [&'static str],
    skipped: Vec<&'static str>,
}

/// The passes of a round, of those that `cargo xtask test` runs.
fn passes(round: usize) -> [Pass; 2] {
    let pass = |name, settings, only| Pass { name, settings, only, modules: &[], skipped: Vec::new() };
    let skipped = |mode| pooler::skipped(mode).iter().map(|(name, _)| *name).collect();
    let other = match round % 3 {
        0 => Pass {
            modules: test::WORKER_MODULES,
            ..pass("durable", &[("ATTA_TEST_CLAIMS", "durable")], Some("it"))
        },
        1 => Pass {
            skipped: skipped(pooler::TRANSACTION),
            ..pass("pgbouncer-transaction", &[("ATTA_TEST_POOLER", pooler::TRANSACTION)], Some("it"))
        },
        _ => Pass {
            skipped: skipped(pooler::SESSION),
            ..pass("pgbouncer-session", &[("ATTA_TEST_POOLER", pooler::SESSION)], Some("it"))
        },
    };
    [pass("plain", &[], None), other]
}

/// Runs the rounds. With filters, a test runs if its name contains one of them, as in libtest. The exit code is 1 if a
/// test failed.
pub(crate) fn run(rounds: usize, filters: &[String]) -> Result<ExitCode> {
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    let postgres = install::postgres()?;
    install::node_packages()?;
    install::python_packages()?;
    install::pgbouncer()?;
    install::faketime()?;
    let binaries = build()?;
    let folder = root().join("target/repeat");
    // Old outputs would be mistaken for those of this run.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|error| format!("creating {}: {error}", folder.display()))?;
    let mut failures = Vec::new();
    for round in (1..=rounds).map(Round::new) {
        failures.extend(one_round(round, rounds, &postgres, &binaries, &filters, &folder)?);
    }
    println!("{}", report::write(rounds, &failures));
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds all test binaries of the workspace, and the examples that some of them run.
fn build() -> Result<Vec<TestBinary>> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--all-features", "--no-run"]);
    crate::run(&mut command)?;
    libtest::binaries(&output(command.arg("--message-format=json").arg("--quiet"))?)
}

fn one_round(
    round: Round,
    rounds: usize,
    postgres: &Binaries,
    binaries: &[TestBinary],
    filters: &[&str],
    folder: &Path,
) -> Result<Vec<Failure>> {
    let start = Instant::now();
    let beside = if round.has_load { "with CPU load" } else { "without load" };
    say(&format!("==> round {} of {rounds}: {} test threads, {beside}", round.number, round.threads));
    let _load = round.has_load.then(Load::start);
    let mut failures = Vec::new();
    for pass in passes(round.number) {
        let cluster = Cluster::temporary(postgres).map_err(|error| error.to_string())?;
        for binary in binaries.iter().filter(|binary| pass.only.is_none_or(|only| binary.target == only)) {
            let Some(words) = words(&pass, binary, filters)? else { continue };
            let mut command = binary.command();
            command
                .args(&words)
                .env("ATTA_TEST_SERVER", cluster.port().to_string())
                .env("ATTA_TEST_PG_BIN", postgres.folder())
                .env("RUST_TEST_THREADS", round.threads.to_string())
                .envs(pass.settings.iter().copied());
            let file = folder.join(format!("round-{}-{}-{}.log", round.number, pass.name, binary.target));
            let failed = run_binary(&mut command, &file)?;
            failures.extend(failed.into_iter().map(|test| Failure {
                test,
                binary: binary.target.clone(),
                round,
                pass: pass.name,
                file: file.clone(),
            }));
        }
        cluster.stop().map_err(|error| error.to_string())?;
    }
    let seconds = start.elapsed().as_secs();
    say(&format!("    round {}: {} failures in {seconds} s", round.number, failures.len()));
    Ok(failures)
}

/// The arguments of a test binary in a pass; none if none of its tests is selected. Filters of libtest can only be
/// joined by "or", so a pass that is restricted to modules passes the names that match both.
fn words(pass: &Pass, binary: &TestBinary, filters: &[&str]) -> Result<Option<Vec<String>>> {
    let listed = libtest::names(&output(binary.command().arg("--list"))?);
    let chosen = libtest::choose(&listed, &[pass.modules, filters], &pass.skipped);
    if chosen.is_empty() {
        // A binary without libtest's harness lists nothing. It is run only by a plain pass of all tests.
        let runs_whole = listed.is_empty() && filters.is_empty() && pass.only.is_none();
        return Ok(runs_whole.then(Vec::new));
    }
    if chosen.len() == listed.len() {
        return Ok(Some(Vec::new()));
    }
    Ok(Some(["--exact".to_owned()].into_iter().chain(chosen.into_iter().map(str::to_owned)).collect()))
}

/// Runs a test binary and returns the tests that failed. The file of its output is kept only if there are any.
fn run_binary(command: &mut Command, file: &Path) -> Result<Vec<String>> {
    let failed = |error| format!("{}: {error}", file.display());
    let errors = PathBuf::from(format!("{}.stderr", file.display()));
    let (out, err) = (File::create(file).map_err(failed)?, File::create(&errors).map_err(failed)?);
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    let mut child = command.spawn().map_err(failed)?;
    let status = wait(&mut child).map_err(failed)?;
    let printed = String::from_utf8_lossy(&fs::read(file).map_err(failed)?).into_owned();
    let complaints = String::from_utf8_lossy(&fs::read(&errors).map_err(failed)?).into_owned();
    let tests = libtest::failures(&printed, status.is_some_and(|status| status.success()));
    // Both files are in our own folder; one that remains does no harm.
    let _ = fs::remove_file(&errors);
    if tests.is_empty() {
        let _ = fs::remove_file(file);
        return Ok(tests);
    }
    let ended = status.map_or("killed: it hung".to_owned(), |status| status.to_string());
    fs::write(file, format!("{printed}\n==> standard error\n{complaints}\n==> {ended}\n")).map_err(failed)?;
    for test in &tests {
        say(&format!("    FAILED {test}: {}", file.display()));
    }
    Ok(tests)
}

/// None if it hung and was killed.
fn wait(child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    while start.elapsed() < LONGEST_RUN {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_differ_and_each_thread_count_meets_load_and_no_load() {
        let rounds: Vec<Round> = (1..=8).map(Round::new).collect();
        assert_eq!(
            rounds.iter().map(|round| round.threads).collect::<Vec<_>>(),
            [6, 8, 12, 16, 6, 8, 12, 16]
        );
        for (first, second) in rounds.iter().zip(&rounds[4..]) {
            assert_ne!(first.has_load, second.has_load, "{first:?}");
        }
        assert_eq!(rounds.iter().filter(|round| round.has_load).count(), 4);
    }
}
