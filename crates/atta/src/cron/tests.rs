//! Cron without a database: what is read, when it is due, what is to do next.

mod parsing;
mod planning;
mod properties;
mod time_zones;

use chrono::{DateTime, Utc};

use super::Cron;

/// `2026-03-01T08:00` in UTC.
fn at(time: &str) -> DateTime<Utc> {
    let seconds = if time.len() == 16 { ":00Z" } else { "Z" };
    format!("{time}{seconds}").parse().unwrap()
}

fn item(line: &str) -> Cron {
    line.parse().unwrap()
}
