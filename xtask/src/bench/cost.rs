//! What a job costs PostgreSQL, and how that depends on jobs that the worker can't run: atta alone, at a steady rate of
//! single adds, next to jobs that can't be claimed. Each round begins with the empty table.

use std::fmt::Write;

use super::report::{list, median, verdict};
use super::server::Server;
use super::{Program, harness, number, numbers, output};
use crate::{Result, say};

/// Single adds per second, and for how long they are measured; the harness warms up first.
const RATE: usize = 200;
const SECONDS: &str = "6";

const ROUNDS: usize = 3;

/// A case may cost this many times what the empty table costs.
const BAR: f64 = 1.5;

/// The harness settings, with the number of workers that each starts.
const WORKERS: [(&str, usize); 2] = [("held", 1), ("held-4", 4)];

/// The contents of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    about: &'static str,
    /// Also the name of its database.
    name: &'static str,
    /// The file in `bench/cost` that fills the table, and how many jobs it adds.
    fill: Option<(&'static str, usize)>,
}

const CASES: [Case; 5] = [
    Case { about: "an empty table", name: "cost_empty", fill: None },
    Case {
        about: "1 million jobs scheduled for tomorrow",
        name: "cost_scheduled",
        fill: Some(("cost/scheduled.sql", 1_000_000)),
    },
    Case {
        about: "1 million due jobs of tasks that no worker has",
        name: "cost_unknown",
        fill: Some(("cost/unknown.sql", 1_000_000)),
    },
    Case {
        about: "200,000 due jobs with a flag that is forbidden to the workers",
        name: "cost_forbidden",
        fill: Some(("cost/forbidden.sql", 200_000)),
    },
    Case {
        about: "100,000 jobs in 5,000 queues that are not due",
        name: "cost_queued",
        fill: Some(("cost/queued.sql", 100_000)),
    },
];

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    case: Case,
    workers: usize,
    round: usize,
    /// CPU time of all server processes per job, in milliseconds.
    cpu_ms: f64,
    /// Jobs per second that ran: fewer than the target if the server is saturated.
    rate: f64,
    /// The median time of an add, in milliseconds.
    add_ms: f64,
}

pub(super) fn measure(server: &Server) -> Result<Vec<Turn>> {
    for case in CASES {
        server.create_database(case.name)?;
        output(
            harness(Program::Rust("atta"), "held")
                .args(["prepare", "0"])
                .env("DATABASE_URL", server.url(case.name)),
        )?;
        server.fill(case.name, "fill_graphile.sql", 0)?;
        if let Some((file, jobs)) = case.fill {
            server.fill(case.name, file, jobs)?;
        }
    }
    let mut turns = Vec::new();
    for round in 1..=ROUNDS {
        for (setting, workers) in WORKERS {
            for case in CASES {
                let turn = one_turn(server, case, setting, workers, round)
                    .map_err(|error| format!("{}: {error}", case.about))?;
                say(&format!(
                    "round {round}  cost     {:62} {workers} workers  {:.2} ms CPU/job, {:.0} jobs/s, add {:.1} ms",
                    case.about, turn.cpu_ms, turn.rate, turn.add_ms
                ));
                turns.push(turn);
            }
        }
    }
    Ok(turns)
}

fn one_turn(server: &Server, case: Case, setting: &str, workers: usize, round: usize) -> Result<Turn> {
    // Removes jobs that a saturated server left from the turn before, and its dead rows.
    server.fill(case.name, "cost/clean.sql", 0)?;
    let mut command = harness(Program::Rust("atta"), setting);
    command.args(["cost", SECONDS]).env("DATABASE_URL", server.url(case.name));
    command.env("BENCH_RATE", RATE.to_string()).env("BENCH_POSTGRES_PID", server.pid()?.to_string());
    let seen = numbers(&output(&mut command)?)?;
    let (cpu_ms, rate) = (number(&seen, "cpu_ms")?, number(&seen, "rate")?);
    let add_ms = number(&seen, "add_ms")?;
    Ok(Turn { case, workers, round, cpu_ms, rate, add_ms })
}

/// What a job costs next to jobs that nobody can claim, compared with the empty table of the same round.
pub(super) fn report(turns: &[Turn]) -> String {
    if turns.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\n## Cost\n\nCPU time of all processes of PostgreSQL per job, at 200 single adds per second; atta alone, held claims. Ratios to the empty\ntable of the same round and the same number of workers, and their medians. Fewer than 200 jobs/s: the server is saturated.\n\n\
         | beside | workers | CPU, ms/job | jobs/s | add, ms | of the empty table | round by round | bar | |\n|---|--:|--:|--:|--:|--:|---|--:|---|\n",
    );
    for (_, workers) in WORKERS {
        let of = |case: Case| turns.iter().filter(move |turn| turn.workers == workers && turn.case == case);
        let empty = |round| of(CASES[0]).find(|turn| turn.round == round).map(|turn| turn.cpu_ms);
        for case in CASES {
            let all =
                |number: fn(&Turn) -> f64| median(&of(case).map(number).collect::<Vec<f64>>()).unwrap_or(0.0);
            let ratios: Vec<f64> =
                of(case).filter_map(|turn| Some(turn.cpu_ms / empty(turn.round)?)).collect();
            let Some(ratio) = median(&ratios) else { continue };
            let (cpu, rate, add) = (all(|turn| turn.cpu_ms), all(|turn| turn.rate), all(|turn| turn.add_ms));
            let (about, values) = (case.about, list(&ratios));
            let (bar, verdict) = match case == CASES[0] {
                true => ("-".to_owned(), ""),
                false => (format!("at most {}", BAR), verdict(ratio <= BAR)),
            };
            // Writing to a string can't fail.
            let _ = writeln!(
                text,
                "| {about} | {workers} | {cpu:.2} | {rate:.0} | {add:.1} | {ratio:.2} | {values} | {bar} | {verdict} |"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_compared_with_the_empty_table_of_their_round() {
        let turn = |case: usize, workers, round, cpu_ms| {
            let case = CASES[case];
            Turn { case, workers, round, cpu_ms, rate: 200.0, add_ms: 1.0 }
        };
        let turns = [
            turn(0, 1, 1, 1.0),
            turn(1, 1, 1, 1.2),
            turn(0, 1, 2, 2.0),
            turn(1, 1, 2, 2.8),
            turn(0, 4, 1, 1.0),
            turn(1, 4, 1, 3.0),
        ];
        let text = report(&turns);
        let row =
            |workers, rest: &str| format!("| 1 million jobs scheduled for tomorrow | {workers} | {rest} |");
        assert!(
            text.contains(&row(1, "2.00 | 200 | 1.0 | 1.30 | 1.20, 1.40 | at most 1.5 | reached")),
            "{text}"
        );
        assert!(
            text.contains(&row(4, "3.00 | 200 | 1.0 | 3.00 | 3.00 | at most 1.5 | **missed**")),
            "{text}"
        );
        assert!(!text.contains("5,000 queues"), "what was not measured is not there: {text}");
        assert_eq!(report(&[]), "");
    }
}
