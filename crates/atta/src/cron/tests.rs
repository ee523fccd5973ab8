//! Tests of cron without a database: parsing, when items are due, and planning.

mod parsing;
mod planning;
mod properties;
mod time_zones;

use chrono::{DateTime, Utc};

use super::Cron;

/// Reads `2026-03-01T08:00` as UTC.
fn at(time: &str) -> DateTime<Utc> {
    let seconds = if time.len() == 16 { ":00Z" } else { "Z" };
    format!("{time}{seconds}").parse().unwrap()
}

fn item(line: &str) -> Cron {
    line.parse().unwrap()
}
