//! `cargo xtask bench`: the same work done by atta and by its peers, in one run, in turns, on one private PostgreSQL
//! server.
//!
//! The harnesses are in `bench/`, outside of the workspace. Their output becomes samples here, from which `report`
//! writes `bench/RESULTS.md`. The machine may be twice as fast in one minute as in the next. Therefore compared
//! measurements follow each other directly and are compared within their round; the result is the median of the ratios.

mod cost;
mod fleet;
mod growth;
mod report;
pub(crate) mod server;

use std::process::{Command, Stdio};
use std::time::Instant;

use crate::{Result, cargo, install, root, say};
use report::Samples;
use server::{BENCH_SETTINGS, Server};

/// The number of single jobs to measure latency, and of scheduled ones to measure lateness.
const PINGS: usize = 500;
const LATE_PINGS: usize = 100;

/// The kinds of work that a harness can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Drain,
    Add,
    Latency,
    Late,
}

impl Work {
    fn mode(self) -> &'static str {
        match self {
            Work::Drain => "drain",
            Work::Add => "add",
            Work::Latency => "latency",
            Work::Late => "late",
        }
    }
}

/// The program of a harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// A package in `bench/`, by its folder.
    Rust(&'static str),
    Node,
    Pgbench,
}

#[derive(Clone, Copy, Debug)]
struct Contender {
    /// Also the name of its database.
    name: &'static str,
    about: &'static str,
    program: Program,
    setting: &'static str,
    works: &'static [Work],
}

const ATTA: &str = "atta_held";
const ATTA_DURABLE: &str = "atta_durable";
const GRAPHILE_WORKER: &str = "graphile_worker_npm";
const CEILING: &str = "ceiling";

const ALL: &[Work] = &[Work::Drain, Work::Add, Work::Latency, Work::Late];

const CONTENDERS: [Contender; 7] = [
    Contender {
        name: ATTA,
        about: "atta, `Claims::Held` (the default), 24 slots",
        program: Program::Rust("atta"),
        setting: "held",
        works: ALL,
    },
    // Directly after the contender that is compared with it.
    Contender {
        name: CEILING,
        about: "pgbench, 2 clients, each transaction selects (`for update skip locked`) and deletes 1000 rows",
        program: Program::Pgbench,
        setting: "",
        works: &[Work::Drain],
    },
    Contender {
        name: ATTA_DURABLE,
        about: "atta, `Claims::Durable`, 24 slots, in the drain with a local queue of 5000",
        program: Program::Rust("atta"),
        setting: "durable",
        works: &[Work::Drain, Work::Latency, Work::Late],
    },
    Contender {
        name: GRAPHILE_WORKER,
        about: "graphile-worker (npm), 24 concurrent; in the drain 4 processes, local queue 500, refetch delay 10 ms, \
                batch delays 0",
        program: Program::Node,
        setting: "4x24",
        works: ALL,
    },
    Contender {
        name: "graphile_worker_rs_500",
        about: "graphile_worker (crate), 24 concurrent; in the drain a local queue of 500, batch delays 1 ms",
        program: Program::Rust("graphile_worker"),
        setting: "500",
        works: ALL,
    },
    Contender {
        name: "graphile_worker_rs_5000",
        about: "graphile_worker (crate), 500 concurrent, local queue 5000, batch delays 1 ms",
        program: Program::Rust("graphile_worker"),
        setting: "5000",
        works: &[Work::Drain],
    },
    Contender {
        name: "riverqueue",
        about: "riverqueue (crate), settings of its own bench command: 2000 workers, fetch cooldown 2 ms, poll 20 ms",
        program: Program::Rust("riverqueue"),
        setting: "2000",
        works: ALL,
    },
];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many jobs are added, and how many are drained
    #[arg(long, value_name = "N", default_value = "200000", value_parser = whole)]
    jobs: usize,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value = "3", value_parser = whole)]
    rounds: usize,
    /// Only contenders whose names contain this; the results are printed, not written. `cost`: only what a job costs
    /// PostgreSQL beside jobs that nobody can claim; 5 minutes. `fleet`: only several workers and many clients; 8 minutes
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

impl Options {
    /// Whether the part "Cost" is measured: in a whole run, or alone by `--only cost`.
    fn has_cost(&self) -> bool {
        self.only.is_none() || self.is_only_cost()
    }

    fn is_only_cost(&self) -> bool {
        self.only.as_deref() == Some("cost")
    }

    /// The same for the part "Fleet".
    fn has_fleet(&self) -> bool {
        self.only.is_none() || self.is_only_fleet()
    }

    fn is_only_fleet(&self) -> bool {
        self.only.as_deref() == Some("fleet")
    }

    fn contenders(&self) -> Result<Vec<Contender>> {
        if self.is_only_cost() || self.is_only_fleet() {
            return Ok(Vec::new());
        }
        let wanted = |one: &Contender| self.only.as_deref().is_none_or(|name| one.name.contains(name));
        let chosen: Vec<Contender> = CONTENDERS.into_iter().filter(wanted).collect();
        if chosen.is_empty() {
            let names: Vec<&str> = CONTENDERS.iter().map(|one| one.name).collect();
            return Err(format!("unknown contender; choose one of {}, cost and fleet", names.join(", ")));
        }
        Ok(chosen)
    }
}

/// Parses a whole number above 0.
fn whole(text: &str) -> Result<usize> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "expected a whole number above 0".to_owned())
}

/// Measures, and writes `bench/RESULTS.md`; with `--only` it only prints.
pub(crate) fn run(options: &Options) -> Result {
    let contenders = options.contenders()?;
    let binaries = install::postgres()?;
    if contenders.iter().any(|one| one.program == Program::Node) || options.has_fleet() {
        install::node_packages()?;
    }
    build(&contenders)?;
    if options.has_cost() || options.has_fleet() {
        build_package("atta")?;
    }
    let start = Instant::now();
    let server = Server::start(binaries, &BENCH_SETTINGS)?;
    let measured = measure(&server, options, &contenders);
    let takes_part = contenders.iter().any(|one| one.name == ATTA);
    let growth = if takes_part { growth::measure(&server) } else { Ok(Vec::new()) };
    let cost = if options.has_cost() { cost::measure(&server) } else { Ok(Vec::new()) };
    let fleet = if options.has_fleet() { fleet::measure(&server) } else { Ok(Vec::new()) };
    let about = server.about();
    server.stop()?;
    let report = if options.is_only_cost() {
        cost::report(&cost?)
    } else if options.is_only_fleet() {
        fleet::report(&fleet?)
    } else {
        let parts = [cost::report(&cost?), fleet::report(&fleet?)];
        report::write(options, &contenders, &measured?, &growth?, &parts, &about?)
    };
    say(&format!("\nmeasured in {} s\n", start.elapsed().as_secs()));
    println!("{report}");
    if options.only.is_some() {
        return Ok(());
    }
    let file = root().join("bench/RESULTS.md");
    std::fs::write(&file, report).map_err(|error| format!("writing {}: {error}", file.display()))
}

/// Builds the harnesses that are written in Rust. The ceiling uses atta's tables.
fn build(contenders: &[Contender]) -> Result {
    for package in ["atta", "graphile_worker", "riverqueue"] {
        let is_wanted = |one: &Contender| {
            one.program == Program::Rust(package) || (package == "atta" && one.program == Program::Pgbench)
        };
        if !contenders.iter().any(is_wanted) {
            continue;
        }
        build_package(package)?;
    }
    Ok(())
}

/// Builds a package in `bench/`, by its folder.
pub(crate) fn build_package(package: &str) -> Result {
    let mut command = cargo();
    command
        .args(["build", "--release", "--quiet", "--manifest-path"])
        .arg(root().join("bench").join(package).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(root().join("target/bench"));
    crate::run(&mut command)
}

/// Measures in turns: every contender does one kind of work before the next kind, and all of it again in the next
/// round, so that other load on the machine affects all of them.
fn measure(server: &Server, options: &Options, contenders: &[Contender]) -> Result<Samples> {
    for contender in contenders {
        server.create_database(contender.name)?;
        prepare(server, contender)?;
    }
    let mut samples = Samples::default();
    for round in 1..=options.rounds {
        for work in ALL {
            for contender in contenders.iter().filter(|one| one.works.contains(work)) {
                let (mode, name) = (work.mode(), contender.name);
                let seen = one_turn(server, options, contender, *work)
                    .map_err(|error| format!("{name}, {mode}: {error}"))?;
                let list: Vec<String> = seen.iter().map(|(key, value)| format!("{key} {value:.3}")).collect();
                say(&format!("round {round}  {mode:8} {name:24} {}", list.join("  ")));
                samples.keep(round, *work, name, seen);
            }
        }
    }
    Ok(samples)
}

fn prepare(server: &Server, contender: &Contender) -> Result {
    let mut command = match contender.program {
        Program::Pgbench => harness(Program::Rust("atta"), "held"),
        program => harness(program, contender.setting),
    };
    let command = command.args(["prepare", "0"]).env("DATABASE_URL", server.url(contender.name));
    output(command).map(|_| ()).map_err(|error| format!("{}, prepare: {error}", contender.name))
}

/// One measurement: an empty or a full table, then the harness, and the WAL that it wrote.
fn one_turn(
    server: &Server,
    options: &Options,
    contender: &Contender,
    work: Work,
) -> Result<Vec<(String, f64)>> {
    let is_river = contender.program == Program::Rust("riverqueue");
    let fill = if is_river { "fill_river.sql" } else { "fill_graphile.sql" };
    server.fill(contender.name, fill, if work == Work::Drain { options.jobs } else { 0 })?;
    let count = match work {
        // Its rate is about the same with fewer jobs, and otherwise it would take a third of the run's time.
        Work::Add if is_river => options.jobs.div_ceil(10),
        Work::Drain | Work::Add => options.jobs,
        Work::Latency => PINGS,
        Work::Late => LATE_PINGS,
    };
    let before = server.wal_position(contender.name)?;
    let mut seen = match contender.program {
        Program::Pgbench => vec![("seconds".to_owned(), server.pgbench(contender.name, count)?)],
        program => {
            let mut command = harness(program, contender.setting);
            command.args([work.mode(), &count.to_string()]).env("DATABASE_URL", server.url(contender.name));
            numbers(&output(&mut command)?)?
        }
    };
    if let Some((_, seconds)) = seen.iter().find(|(key, _)| key == "seconds") {
        seen.push(("rate".to_owned(), count as f64 / seconds));
    }
    if work == Work::Drain {
        let wal = server.wal_position(contender.name)? - before;
        seen.push(("wal_per_job".to_owned(), wal / count as f64));
    }
    Ok(seen)
}

fn harness(program: Program, setting: &str) -> Command {
    let mut command = match program {
        Program::Rust(package) => binary(package),
        Program::Node | Program::Pgbench => {
            let mut command = node();
            command.arg(root().join("bench/node/harness.js"));
            command
        }
    };
    command.arg(setting);
    command
}

/// The program of a package in `bench/` that was built before.
pub(crate) fn binary(package: &str) -> Command {
    let name = format!("bench-{}", package.replace('_', "-"));
    Command::new(root().join("target/bench/release").join(name))
}

/// Node from npm, with the packages that the tests use too.
fn node() -> Command {
    let packages = root().join("crates/atta/tests/compat/node/node_modules");
    let mut command = Command::new(packages.join("node/bin/node"));
    command.env("NODE_PATH", packages);
    command
}

/// The output of a command; its standard error if it failed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The numbers of a flat JSON object, as a harness prints it.
pub(crate) fn numbers(line: &str) -> Result<Vec<(String, f64)>> {
    let pair = |text: &str| {
        let (key, value) = text.split_once(':')?;
        Some((key.trim().trim_matches('"').to_owned(), value.trim().parse().ok()?))
    };
    let inner = line.trim().strip_prefix('{').and_then(|line| line.strip_suffix('}'));
    inner
        .and_then(|inner| inner.split(',').map(pair).collect())
        .ok_or_else(|| format!("unexpected output of the harness: {line:?}"))
}

/// One of the numbers that a harness printed.
fn number(seen: &[(String, f64)], key: &str) -> Result<f64> {
    let found = seen.iter().find(|(one, _)| one == key).map(|(_, value)| *value);
    found.ok_or_else(|| format!("the output of the harness has no {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_harness_prints() {
        let seen = numbers("{\"p50\":0.9,\"max\": 12}").unwrap();
        assert_eq!(seen, [("p50".to_owned(), 0.9), ("max".to_owned(), 12.0)]);
        assert!(numbers("panic").is_err());
    }

    #[test]
    fn the_cost_is_part_of_a_whole_run_or_measured_alone() {
        let options = |only: Option<&str>| Options { jobs: 1, rounds: 1, only: only.map(str::to_owned) };
        assert!(options(None).has_cost());
        assert!(options(Some("cost")).has_cost() && options(Some("cost")).contenders().unwrap().is_empty());
        assert!(!options(Some("atta")).has_cost() && !options(Some("cost")).has_fleet());
        assert!(options(None).has_fleet() && options(Some("fleet")).contenders().unwrap().is_empty());
        assert!(options(Some("nobody")).contenders().is_err());
    }
}
