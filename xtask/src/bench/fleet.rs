//! What a fleet costs: the same work by one worker and by several, and many clients that add jobs at the same time. atta
//! and graphile-worker, in turns.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use super::report::{list, median, verdict};
use super::server::Server;
use super::{Program, harness, number, numbers, output};
use crate::{Result, say};

const ROUNDS: usize = 3;

/// Jobs of a drain, and of the one with queues.
const JOBS: usize = 200_000;
const QUEUED_JOBS: usize = 20_000;

/// Single adds per second while the CPU time is measured, and for how many seconds.
const RATE: usize = 200;
const SECONDS: usize = 5;

const PINGS: usize = 300;

/// For how long clients add jobs as fast as they can, in seconds.
const ADDING: usize = 4;

const ATTA: Peer = Peer { name: "atta", program: Program::Rust("atta") };
const NODE: Peer = Peer { name: "graphile-worker", program: Program::Node };

/// A queue, with a database of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Peer {
    name: &'static str,
    program: Program,
}

impl Peer {
    fn database(self) -> String {
        format!("fleet_{}", self.name.replace('-', "_"))
    }

    /// The harness with this number of workers.
    fn setting(self, workers: usize) -> String {
        match self.program {
            Program::Node => format!("{workers}x24"),
            Program::Rust(_) | Program::Pgbench => format!("held-{workers}"),
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A drain of jobs that do nothing.
    Drain(Peer, usize),
    /// The CPU time of the server per job, by the number of idle workers.
    Cost(Peer, usize),
    /// From the add to the start of a job, by the number of idle workers.
    Latency(usize),
    /// Plain inserts, by the number of clients. Nobody works.
    Insert(usize),
    /// Calls of `add_job`, by the number of clients, while this number of workers runs the jobs.
    Add(usize, usize),
    Queues(Peer),
}

const WORKS: [Work; 22] = [
    Work::Drain(ATTA, 1),
    Work::Drain(ATTA, 4),
    Work::Drain(ATTA, 12),
    Work::Drain(NODE, 4),
    Work::Drain(NODE, 12),
    Work::Cost(ATTA, 1),
    Work::Cost(NODE, 1),
    Work::Cost(ATTA, 4),
    Work::Cost(NODE, 4),
    Work::Cost(ATTA, 16),
    Work::Cost(NODE, 16),
    Work::Latency(1),
    Work::Latency(16),
    Work::Insert(1),
    Work::Insert(16),
    Work::Insert(64),
    Work::Add(16, 0),
    Work::Add(1, 1),
    Work::Add(16, 1),
    Work::Add(64, 1),
    Work::Queues(ATTA),
    Work::Queues(NODE),
];

impl Work {
    fn about(self) -> String {
        match self {
            Work::Drain(peer, workers) => format!("{}, {workers} workers: drain, jobs/s", peer.name),
            Work::Cost(peer, workers) => {
                format!("{}, {workers} idle workers: CPU of PostgreSQL, ms/job", peer.name)
            }
            Work::Latency(workers) => format!("atta, {workers} idle workers: add to start, p50, ms"),
            Work::Insert(clients) => format!("{clients} clients, plain inserts, nobody works: adds/s"),
            Work::Add(clients, workers) => format!("{clients} clients, `add_job`, {workers} workers: adds/s"),
            Work::Queues(peer) => format!("{}: 20,000 jobs in 10,000 queues, jobs/s", peer.name),
        }
    }
}

/// One measurement: the value, and a second one for the latency (p99).
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    work: Work,
    round: usize,
    value: f64,
    second: Option<f64>,
}

pub(super) fn measure(server: &Server) -> Result<Vec<Turn>> {
    for peer in [ATTA, NODE] {
        let database = peer.database();
        server.create_database(&database)?;
        let mut prepare = harness(peer.program, &peer.setting(1));
        output(prepare.args(["prepare", "0"]).env("DATABASE_URL", server.url(&database)))?;
    }
    let mut turns = Vec::new();
    for round in 1..=ROUNDS {
        for work in WORKS {
            let about = work.about();
            let (value, second) = one_turn(server, work).map_err(|error| format!("{about}: {error}"))?;
            say(&format!("round {round}  fleet    {about:62} {value:.2}"));
            turns.push(Turn { work, round, value, second });
        }
    }
    Ok(turns)
}

fn one_turn(server: &Server, work: Work) -> Result<(f64, Option<f64>)> {
    match work {
        Work::Drain(peer, workers) => drain(server, peer, workers, "fill_graphile.sql", JOBS),
        Work::Queues(peer) => {
            let workers = if peer == NODE { 4 } else { 1 };
            drain(server, peer, workers, "growth/queued.sql", QUEUED_JOBS)
        }
        Work::Cost(peer, workers) => {
            let seen = run(server, peer, workers, "cost", SECONDS)?;
            Ok((number(&seen, "cpu_ms")?, None))
        }
        Work::Latency(workers) => {
            let seen = run(server, ATTA, workers, "latency", PINGS)?;
            Ok((number(&seen, "p50")?, Some(number(&seen, "p99")?)))
        }
        Work::Insert(clients) => add(server, "fleet/insert.sql", clients, 0),
        Work::Add(clients, workers) => add(server, "fleet/add_job.sql", clients, workers),
    }
}

fn drain(server: &Server, peer: Peer, workers: usize, file: &str, jobs: usize) -> Result<(f64, Option<f64>)> {
    server.fill(&peer.database(), file, jobs)?;
    let seen = harness_output(server, peer, workers, "drain", jobs)?;
    Ok((jobs as f64 / number(&seen, "seconds")?, None))
}

/// Runs a harness on an empty table.
fn run(server: &Server, peer: Peer, workers: usize, mode: &str, count: usize) -> Result<Vec<(String, f64)>> {
    server.fill(&peer.database(), "fill_graphile.sql", 0)?;
    harness_output(server, peer, workers, mode, count)
}

fn harness_output(
    server: &Server,
    peer: Peer,
    workers: usize,
    mode: &str,
    count: usize,
) -> Result<Vec<(String, f64)>> {
    let mut command = harness(peer.program, &peer.setting(workers));
    command.args([mode, &count.to_string()]).env("DATABASE_URL", server.url(&peer.database()));
    command.env("BENCH_RATE", RATE.to_string()).env("BENCH_POSTGRES_PID", server.pid()?.to_string());
    numbers(&output(&mut command)?)
}

/// Clients add jobs as fast as they can, while this number of workers runs them. Returns the adds per second.
fn add(server: &Server, file: &str, clients: usize, workers: usize) -> Result<(f64, Option<f64>)> {
    let database = ATTA.database();
    server.fill(&database, "fill_graphile.sql", 0)?;
    let waiting = if workers == 0 { None } else { Some(Waiting::start(server, workers)?) };
    let rate = server.pgbench_rate(&database, file, clients, ADDING)?;
    waiting.map_or(Ok(()), Waiting::stop)?;
    Ok((rate, None))
}

/// Workers that run until they are stopped.
struct Waiting(Child);

impl Waiting {
    fn start(server: &Server, workers: usize) -> Result<Waiting> {
        let mut command = harness(ATTA.program, &ATTA.setting(workers));
        command.args(["wait", "0"]).env("DATABASE_URL", server.url(&ATTA.database()));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting workers: {error}"))?;
        let ready = child.stdout.as_mut().and_then(|stdout| BufReader::new(stdout).lines().next());
        match ready {
            Some(Ok(line)) if line == "ready" => Ok(Waiting(child)),
            _ => Err("the workers did not start".into()),
        }
    }

    fn stop(mut self) -> Result {
        // The workers end when their standard input is closed.
        drop(self.0.stdin.take());
        let status = self.0.wait().map_err(|error| error.to_string())?;
        status.success().then_some(()).ok_or_else(|| format!("the workers ended with {status}"))
    }
}

/// A ratio of two measurements of the same round, and its bar.
struct Ratio {
    about: &'static str,
    of: Work,
    to: Work,
    /// Whether the second values are compared.
    second: bool,
    bar: Bar,
}

#[derive(Clone, Copy)]
enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

const RATIOS: [Ratio; 8] = [
    Ratio {
        about: "drain, 12 workers / 1 worker",
        of: Work::Drain(ATTA, 12),
        to: Work::Drain(ATTA, 1),
        second: false,
        bar: Bar::AtLeast(0.8),
    },
    Ratio {
        about: "drain, 12 workers, atta / graphile-worker",
        of: Work::Drain(ATTA, 12),
        to: Work::Drain(NODE, 12),
        second: false,
        bar: Bar::AtLeast(5.0),
    },
    Ratio {
        about: "CPU per job, 16 workers / 1 worker",
        of: Work::Cost(ATTA, 16),
        to: Work::Cost(ATTA, 1),
        second: false,
        bar: Bar::AtMost(1.3),
    },
    Ratio {
        about: "CPU per job, 16 workers, atta / graphile-worker",
        of: Work::Cost(ATTA, 16),
        to: Work::Cost(NODE, 16),
        second: false,
        bar: Bar::AtMost(0.4),
    },
    Ratio {
        about: "add to start, p50, 16 workers / 1 worker",
        of: Work::Latency(16),
        to: Work::Latency(1),
        second: false,
        bar: Bar::AtMost(1.2),
    },
    Ratio {
        about: "add to start, p99, 16 workers / 1 worker",
        of: Work::Latency(16),
        to: Work::Latency(1),
        second: true,
        bar: Bar::AtMost(1.5),
    },
    Ratio {
        about: "16 clients, `add_job` with a worker / plain inserts",
        of: Work::Add(16, 1),
        to: Work::Insert(16),
        second: false,
        bar: Bar::AtLeast(0.45),
    },
    Ratio {
        about: "jobs in 10,000 queues, atta / graphile-worker",
        of: Work::Queues(ATTA),
        to: Work::Queues(NODE),
        second: false,
        bar: Bar::AtLeast(2.0),
    },
];

pub(super) fn report(turns: &[Turn]) -> String {
    if turns.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n## Fleet\n\nSeveral workers on one table, and many clients that add jobs one by one; {RATE} adds per second where the CPU time of\nPostgreSQL is measured. Medians of {ROUNDS} rounds.\n\n| | median | round by round |\n|---|--:|---|\n"
    );
    for work in WORKS {
        let values: Vec<f64> = turns.iter().filter(|turn| turn.work == work).map(|turn| turn.value).collect();
        let median = median(&values).unwrap_or(f64::NAN);
        // Writing to a string can't fail.
        let _ = writeln!(text, "| {} | {} | {} |", work.about(), rounded(median), rounded_list(&values));
    }
    text.push_str("\n| ratio | measured | round by round | bar | |\n|---|--:|---|--:|---|\n");
    for ratio in RATIOS {
        let of = |work: Work, round: usize| {
            let turn = turns.iter().find(|turn| turn.work == work && turn.round == round)?;
            if ratio.second { turn.second } else { Some(turn.value) }
        };
        let ratios: Vec<f64> =
            (1..=ROUNDS).filter_map(|round| Some(of(ratio.of, round)? / of(ratio.to, round)?)).collect();
        let Some(measured) = median(&ratios) else { continue };
        let (bar, is_reached) = match ratio.bar {
            Bar::AtLeast(bar) => (format!("at least {bar}"), measured >= bar),
            Bar::AtMost(bar) => (format!("at most {bar}"), measured <= bar),
        };
        let (about, values, verdict) = (ratio.about, list(&ratios), verdict(is_reached));
        // Writing to a string can't fail.
        let _ = writeln!(text, "| {about} | {measured:.2} | {values} | {bar} | {verdict} |");
    }
    text
}

fn rounded(value: f64) -> String {
    if value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

fn rounded_list(values: &[f64]) -> String {
    values.iter().map(|value| rounded(*value)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_a_round() {
        let turn = |work, round, value| Turn { work, round, value, second: None };
        let turns = [
            turn(Work::Drain(ATTA, 1), 1, 1000.0),
            turn(Work::Drain(ATTA, 12), 1, 900.0),
            turn(Work::Drain(ATTA, 1), 2, 100.0),
            turn(Work::Drain(ATTA, 12), 2, 50.0),
            turn(Work::Drain(ATTA, 1), 3, 100.0),
            turn(Work::Drain(ATTA, 12), 3, 85.0),
        ];
        let text = report(&turns);
        let row = "| drain, 12 workers / 1 worker | 0.85 | 0.90, 0.50, 0.85 | at least 0.8 | reached |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| atta, 12 workers: drain, jobs/s | 85.00 | 900, 50.00, 85.00 |"), "{text}");
        assert!(!text.contains("plain inserts |"), "what was not measured has no ratio: {text}");
        assert_eq!(report(&[]), "");
    }
}
