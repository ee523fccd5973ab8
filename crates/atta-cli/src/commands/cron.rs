//! `atta cron`: checks a crontab, shows its next runs, and lists the items that the database knows.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::Read;

use atta::{Cron as Item, CrontabErrors, KnownCrontab, parse_crontab};
use chrono::{DateTime, SecondsFormat, TimeDelta, Timelike, Utc};
use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;

use super::open::open;
use crate::args::Connection;
use crate::output::table::{Cell, Column, Table};
use crate::output::time::{exact, from_now, parse_future};
use crate::output::{Failure, clean, count_of, note, print_json, print_styled};

/// Check a crontab, show when its items run next, or list the items that are in the database
#[derive(Debug, ClapArgs)]
pub(crate) struct Cron {
    #[command(subcommand)]
    command: CronCommand,
}

#[derive(Debug, Subcommand)]
enum CronCommand {
    Check(Check),
    Next(Next),
    List(List),
}

/// Check a crontab and report all mistakes in it; needs no database
///
/// Exits with 1 if there are any.
#[derive(Debug, ClapArgs)]
struct Check {
    /// The crontab, or - for standard input
    #[arg(value_name = "FILE", default_value = "crontab")]
    file: String,

    /// Also report what Node's graphile-worker would reject
    #[arg(long)]
    strict: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show when the items of a crontab run next; needs no database
#[derive(Debug, ClapArgs)]
struct Next {
    /// The crontab, or - for standard input
    #[arg(value_name = "FILE", default_value = "crontab")]
    file: String,

    /// Number of runs to show, for all items together: 1 to 10000
    #[arg(short, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    n: u32,

    /// Start at this time (RFC 3339, or a duration from now: 5m, 2h, 1d) [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse_future)]
    from: Option<DateTime<Utc>>,

    /// Print a JSON array of objects with at, identifier and task
    #[arg(long)]
    json: bool,
}

/// List the cron items that are in the database, and when each ran last
#[derive(Debug, ClapArgs)]
struct List {
    /// A crontab; also shows when its items run next
    #[arg(long, value_name = "FILE")]
    crontab: Option<String>,

    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Cron, connection: &Connection) -> Result<(), Failure> {
    match args.command {
        CronCommand::Check(args) => check(&args),
        CronCommand::Next(args) => next(&args),
        CronCommand::List(args) => list(&args, connection).await,
    }
}

#[derive(Serialize)]
struct CheckJson<'a> {
    ok: bool,
    items: usize,
    errors: Vec<ErrorJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    objections: Option<&'a [Objection]>,
}

#[derive(Serialize)]
struct ErrorJson<'a> {
    line: usize,
    column: usize,
    message: &'a str,
    expected: &'a str,
    text: &'a str,
}

/// An item that Node would reject.
#[derive(Serialize)]
struct Objection {
    line: usize,
    identifier: String,
    message: String,
    text: String,
}

fn check(args: &Check) -> Result<(), Failure> {
    let text = read(&args.file)?;
    let items = match parse_crontab(&text) {
        Ok(items) => items,
        Err(errors) => return report_errors(&errors, args),
    };
    let objections = if args.strict { objections(&text, &items) } else { Vec::new() };
    if args.json {
        let objections_json = args.strict.then_some(objections.as_slice());
        print_json(&CheckJson {
            ok: objections.is_empty(),
            items: items.len(),
            errors: Vec::new(),
            objections: objections_json,
        })?;
    } else {
        for Objection { line, message, text, .. } in &objections {
            print_styled(&format!("line {line}: graphile-worker rejects {message}\n  {}\n", clean(text)));
        }
    }
    if !objections.is_empty() {
        let count = count_of(objections.len(), "construct");
        return Err(Failure::not_so(format!("{} has {count} that graphile-worker rejects", args.file)));
    }
    if !args.json {
        print_styled(&format!("{} is valid: {}\n", clean(&args.file), count_of(items.len(), "item")));
    }
    Ok(())
}

fn report_errors(errors: &CrontabErrors, args: &Check) -> Result<(), Failure> {
    if args.json {
        let errors = errors.iter().map(|error| ErrorJson {
            line: error.line(),
            column: error.column(),
            message: error.message(),
            expected: error.expected(),
            text: error.text(),
        });
        print_json(&CheckJson { ok: false, items: 0, errors: errors.collect(), objections: None })?;
    } else {
        print_styled(&format!("{errors}\n"));
    }
    Err(Failure::not_so(format!("{} has {}", args.file, count_of(errors.len(), "error"))))
}

/// The items are in the order of the lines that are neither empty nor a comment.
fn objections(text: &str, items: &[Item]) -> Vec<Objection> {
    let is_space = |c: char| c.is_whitespace() || c == '\u{feff}';
    let lines = (1..).zip(text.lines()).filter(|(_, line)| {
        let line = line.trim_start_matches(is_space);
        !line.is_empty() && !line.starts_with('#')
    });
    let mut found = Vec::new();
    for ((line, text), item) in lines.zip(items) {
        found.extend(item.graphile_objections().into_iter().map(|message| Objection {
            line,
            identifier: item.identifier().to_owned(),
            message,
            text: text.trim_matches(is_space).to_owned(),
        }));
    }
    found
}

#[derive(Serialize)]
struct RunJson<'a> {
    at: String,
    identifier: &'a str,
    task: &'a str,
}

fn next(args: &Next) -> Result<(), Failure> {
    let now = Utc::now();
    let items = read_items(&args.file)?;
    let runs = upcoming(&items, args.from.unwrap_or(now), args.n as usize);
    if args.json {
        let run = |(at, item): &(DateTime<Utc>, usize)| RunJson {
            at: at.to_rfc3339_opts(SecondsFormat::Secs, true),
            identifier: items[*item].identifier(),
            task: items[*item].task_identifier(),
        };
        return print_json(&runs.iter().map(run).collect::<Vec<_>>());
    }
    if runs.is_empty() {
        note("no run within the next eight years");
        return Ok(());
    }
    let mut table = Table::new(&[
        Column::always("AT (UTC)"),
        Column::ranked(1, "FROM NOW"),
        Column::always("TASK"),
        Column::always("ITEM"),
    ]);
    for (at, item) in runs {
        let item = &items[item];
        let other = (item.identifier() != item.task_identifier()).then(|| item.identifier());
        table.row(vec![
            Cell::text(at.format("%Y-%m-%d %H:%M").to_string()),
            Cell::text(from_now(at, now)),
            Cell::text(item.task_identifier()),
            Cell::maybe(other),
        ]);
    }
    print_styled(&table.show());
    Ok(())
}

/// The first `count` runs from `from` on, each with the index of its item. Includes the minute of `from` if that is
/// exactly its start.
fn upcoming(items: &[Item], from: DateTime<Utc>, count: usize) -> Vec<(DateTime<Utc>, usize)> {
    let is_minute = from.second() == 0 && from.nanosecond() == 0;
    let after = if is_minute { from - TimeDelta::minutes(1) } else { from };
    let first = items.iter().enumerate().filter_map(|(index, item)| Some((item.next_after(after)?, index)));
    let mut queue: BinaryHeap<Reverse<(DateTime<Utc>, usize)>> = first.map(Reverse).collect();
    let mut runs = Vec::new();
    while runs.len() < count {
        let Some(Reverse((at, index))) = queue.pop() else { break };
        runs.push((at, index));
        queue.extend(items[index].next_after(at).map(|at| Reverse((at, index))));
    }
    runs
}

#[derive(Serialize)]
struct ListJson<'a> {
    identifier: &'a str,
    known_since: Option<DateTime<Utc>>,
    last_execution: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_execution: Option<Option<DateTime<Utc>>>,
}

async fn list(args: &List, connection: &Connection) -> Result<(), Failure> {
    let items = args.crontab.as_deref().map(read_items).transpose()?;
    let known = open(connection).await?.list_known_crontabs().await?;
    let now = Utc::now();
    let rows = merge(&known, items.as_deref(), now);
    if args.json {
        return print_json(&rows);
    }
    if rows.is_empty() {
        note("no cron items: no worker has registered a crontab yet");
        return Ok(());
    }
    let mut table = Table::new(&[
        Column::always("ITEM"),
        Column::ranked(4, "KNOWN SINCE"),
        Column::ranked(2, "LAST RUN"),
        Column::ranked(3, ""),
        Column::ranked(1, "NEXT RUN"),
    ]);
    for row in &rows {
        let next = match row.next_execution {
            None => String::new(),
            Some(None) => "not in the crontab".to_owned(),
            Some(Some(at)) => format!("{} ({})", at.format("%Y-%m-%d %H:%M"), from_now(at, now)),
        };
        table.row(vec![
            Cell::text(row.identifier),
            Cell::text(row.known_since.map_or_else(|| "not known yet".to_owned(), exact)),
            Cell::text(row.last_execution.map_or_else(|| "never".to_owned(), exact)),
            Cell::maybe(row.last_execution.map(|at| from_now(at, now))),
            Cell::text(next),
        ]);
    }
    print_styled(&table.show());
    Ok(())
}

/// First the items that the database knows, then those that only the crontab has.
fn merge<'a>(known: &'a [KnownCrontab], items: Option<&'a [Item]>, now: DateTime<Utc>) -> Vec<ListJson<'a>> {
    let by_identifier: Option<HashMap<&str, &Item>> =
        items.map(|items| items.iter().map(|item| (item.identifier(), item)).collect());
    let next = |identifier: &str| {
        let items = by_identifier.as_ref()?;
        Some(items.get(identifier).and_then(|item| item.next_after(now)))
    };
    let mut rows: Vec<ListJson<'a>> = known
        .iter()
        .map(|known| ListJson {
            identifier: &known.identifier,
            known_since: Some(known.known_since),
            last_execution: known.last_execution,
            next_execution: next(&known.identifier),
        })
        .collect();
    for item in items.unwrap_or_default() {
        if known.iter().all(|known| known.identifier != item.identifier()) {
            rows.push(ListJson {
                identifier: item.identifier(),
                known_since: None,
                last_execution: None,
                next_execution: next(item.identifier()),
            });
        }
    }
    rows
}

fn read_items(file: &str) -> Result<Vec<Item>, Failure> {
    parse_crontab(&read(file)?)
        .map_err(|errors| Failure::new(format!("{file} has {}\n{errors}", count_of(errors.len(), "error"))))
}

fn read(file: &str) -> Result<String, Failure> {
    let read = if file == "-" {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    read.map_err(|error| {
        Failure::new(format!("can't read {file}: {error}"))
            .with_hint("give the path of the crontab, or - for standard input")
    })
}
