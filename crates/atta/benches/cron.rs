//! How long a large crontab takes to be read, and to be matched against a minute: `cargo bench -p atta --bench cron`.
//!
//! Ends with an error if it is more than what `docs/guides/cron.md` promises. No library for it: a median of a few runs
//! is all that these two figures need.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use atta::{CronItems, parse_crontab};

const LINES: usize = 10_000;
const ROUNDS: usize = 51;

fn main() -> ExitCode {
    let plain = crontab("");
    let zones = ["Europe/Paris", "America/New_York", "Asia/Tokyo", "Australia/Lord_Howe"]
        .map(|zone| format!("&tz={zone}"));
    let zoned: String =
        zones.iter().enumerate().map(|(n, zone)| part(n * LINES / 4, LINES / 4, zone)).collect();
    let within = [
        parse("parse 10,000 lines", &plain, Duration::from_millis(50)),
        match_minute("match a minute against 10,000 items", &plain, Duration::from_millis(1)),
        match_minute("the same, in four time zones", &zoned, Duration::from_millis(1)),
    ];
    if within.iter().all(|within| *within) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn crontab(option: &str) -> String {
    part(0, LINES, option)
}

/// Lines as people write them: options, a payload, every hour or once a week.
fn part(first: usize, count: usize, option: &str) -> String {
    let mut text = String::new();
    for n in first..first + count {
        let (minute, hour, day) = (n % 60, n % 24, n % 7);
        let pattern = match n % 4 {
            0 => format!("{minute} {hour} * * {day}"),
            1 => format!("*/{} * * * *", minute + 1),
            2 => format!("{minute} 8-18 * * 1-5"),
            _ => format!("{minute},{} {hour} 1,15 */3 *", (minute + 30) % 60),
        };
        writeln!(
            text,
            "{pattern} task_{n} ?fill=2d&max=10&queue=q{hour}{option} {{onboarding: false, n: {n}}}"
        )
        .unwrap();
    }
    text
}

fn parse(what: &str, text: &str, limit: Duration) -> bool {
    report(what, limit, || parse_crontab(text).unwrap().len())
}

fn match_minute(what: &str, text: &str, limit: Duration) -> bool {
    let items = CronItems::new();
    items.extend(parse_crontab(text).unwrap()).unwrap();
    let time = "2026-03-01T08:30:00Z".parse().unwrap();
    report(what, limit, || items.due(time).len())
}

/// The median; the result of the work is used, so that it is not left out.
fn report(what: &str, limit: Duration, mut work: impl FnMut() -> usize) -> bool {
    let mut times = Vec::with_capacity(ROUNDS);
    let mut result = 0;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        result = work();
        times.push(start.elapsed());
    }
    times.sort();
    let (median, longest) = (times[ROUNDS / 2], times[ROUNDS - 1]);
    println!("{what}: {median:.2?} (longest {longest:.2?}, limit {limit:?}; {result} items)");
    median <= limit
}
