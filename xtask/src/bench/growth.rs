//! The drain rate when the table is in a bad state: atta alone, each turn directly after a plain drain.

use std::process::{Child, Command, Stdio};

use super::server::Server;
use super::{Program, harness, numbers, output};
use crate::{Result, say};

/// The database of all cases except one.
const DATABASE: &str = "growth";

/// The database of the backlog, which is filled once: writing five million rows takes longer than everything else.
const BACKLOG: &str = "backlog";

/// The number of jobs of a plain drain, and of most cases.
const JOBS: usize = 100_000;

const ROUNDS: usize = 5;

/// A case, and the smallest fraction of the plain rate that it must reach, if there is a bar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) about: &'static str,
    pub(super) bar: Option<f64>,
    setting: &'static str,
    table: Table,
    jobs: usize,
}

/// The jobs per second of a turn, and of the plain drain before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) plain: f64,
    pub(super) rate: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    Plain,
    Backlog,
    Stuck,
    Queued,
    Dead,
}

const PLAIN: Case = Case {
    about: "100,000 jobs and nothing else",
    bar: None,
    setting: "held",
    table: Table::Plain,
    jobs: JOBS,
};

pub(super) const CASES: [Case; 5] = [
    Case {
        about: "the first 100,000 of a backlog of 5 million",
        bar: Some(0.8),
        table: Table::Backlog,
        ..PLAIN
    },
    Case {
        about: "100,000 stuck jobs before them: forbidden flags, locked queues",
        bar: Some(0.7),
        table: Table::Stuck,
        ..PLAIN
    },
    Case {
        about: "1 million dead rows before them, and xmin pinned",
        bar: Some(0.5),
        table: Table::Dead,
        ..PLAIN
    },
    Case { about: "12 workers with 5 connections each", setting: "held-12", ..PLAIN },
    Case {
        about: "20,000 jobs in 10,000 queues, which are claimed durably",
        table: Table::Queued,
        jobs: 20_000,
        ..PLAIN
    },
];

/// Every case with its turns, one per round.
pub(super) fn measure(server: &Server) -> Result<Vec<(Case, Vec<Turn>)>> {
    for database in [DATABASE, BACKLOG] {
        server.create_database(database)?;
        run(server, database, "held", &["prepare", "0"])?;
    }
    // Enough that five million remain after all turns.
    server.fill(BACKLOG, "fill_graphile.sql", 5_000_000 + ROUNDS * JOBS)?;
    let mut turns: Vec<(Case, Vec<Turn>)> = CASES.map(|case| (case, Vec::new())).into();
    for round in 1..=ROUNDS {
        for (case, turns) in &mut turns {
            let plain = drain(server, PLAIN)?;
            let rate = drain(server, *case).map_err(|error| format!("{}: {error}", case.about))?;
            say(&format!("round {round}  growth   {:62} {rate:.0} jobs/s, plain {plain:.0}", case.about));
            turns.push(Turn { plain, rate });
        }
    }
    Ok(turns)
}

/// Drains, and returns the jobs per second.
fn drain(server: &Server, case: Case) -> Result<f64> {
    let _pin = set_table(server, case)?;
    let database = if case.table == Table::Backlog { BACKLOG } else { DATABASE };
    let printed = run(server, database, case.setting, &["part", &case.jobs.to_string()])?;
    let seconds = numbers(&printed)?.into_iter().find(|(key, _)| key == "seconds");
    let (_, seconds) = seconds.ok_or_else(|| format!("unexpected output of the harness: {printed:?}"))?;
    Ok(case.jobs as f64 / seconds)
}

fn run(server: &Server, database: &str, setting: &str, words: &[&str]) -> Result<String> {
    output(harness(Program::Rust("atta"), setting).args(words).env("DATABASE_URL", server.url(database)))
}

/// Puts the table into the state of the case, and keeps it there as long as the returned value lives.
fn set_table(server: &Server, case: Case) -> Result<Option<Pin>> {
    let fill = |file: &str, jobs| server.fill(DATABASE, file, jobs);
    match case.table {
        Table::Plain => fill("fill_graphile.sql", case.jobs)?,
        Table::Backlog => {}
        Table::Queued => fill("growth/queued.sql", case.jobs)?,
        Table::Stuck => {
            fill("fill_graphile.sql", case.jobs)?;
            fill("growth/stuck.sql", case.jobs)?;
        }
        Table::Dead => {
            fill("fill_graphile.sql", 0)?;
            let pin = Pin::set(server)?;
            fill("growth/dead.sql", 1_000_000)?;
            fill("growth/more.sql", case.jobs)?;
            return Ok(Some(pin));
        }
    }
    Ok(None)
}

/// A transaction that is open until this is dropped, so that rows that were deleted since can't be removed.
struct Pin {
    psql: Child,
}

impl Pin {
    fn set(server: &Server) -> Result<Pin> {
        let mut psql: Command = server.psql_command(DATABASE);
        let mut psql = psql
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting psql: {error}"))?;
        use std::io::{BufRead, BufReader, Write};
        let (Some(words), Some(answer)) = (psql.stdin.as_mut(), psql.stdout.as_mut()) else {
            return Err("psql has no pipes".to_owned());
        };
        let begin = b"begin isolation level repeatable read;\nselect txid_current();\n";
        words.write_all(begin).and_then(|()| words.flush()).map_err(|error| error.to_string())?;
        // Once the answer has arrived, the transaction has its snapshot.
        BufReader::new(answer).read_line(&mut String::new()).map_err(|error| error.to_string())?;
        Ok(Pin { psql })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        drop(self.psql.stdin.take());
        // It ends at the end of its input; if it can't be waited for, it has ended.
        let _ = self.psql.wait();
    }
}
