//! The figures, as a table for people and as JSON for programs.

use std::fmt;

use serde::Serialize;

use crate::args::{Bench, ClaimsChoice};

/// All measurements. docs/operating/benchmarking.md explains each figure.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) settings: Settings,
    pub(super) add: AddRates,
    pub(super) drain: Drain,
    pub(super) steady: Steady,
    pub(super) latency_ms: Spread,
    pub(super) lateness_ms: Spread,
    pub(super) start_up_ms: f64,
    /// None if the system does not report it.
    pub(super) memory_bytes: Option<u64>,
    pub(super) cost_per_job: CostPerJob,
}

#[derive(Debug, Serialize)]
pub(super) struct Settings {
    atta_version: &'static str,
    server_version: String,
    jobs: usize,
    workers: usize,
    concurrency: usize,
    claims: &'static str,
    local_queue: Option<usize>,
    payload_bytes: usize,
    queues: usize,
    fail_rate: f64,
    pin_xmin: bool,
    in_place: bool,
}

impl Settings {
    pub(super) fn new(args: &Bench, server_version: String) -> Settings {
        Settings {
            atta_version: env!("CARGO_PKG_VERSION"),
            server_version,
            jobs: args.jobs,
            workers: args.workers,
            concurrency: args.concurrency,
            claims: match args.claims {
                ClaimsChoice::Held => "held",
                ClaimsChoice::Durable => "durable",
            },
            local_queue: args.local_queue,
            payload_bytes: args.payload_bytes,
            queues: args.queues,
            fail_rate: args.fail_rate,
            pin_xmin: args.pin_xmin,
            in_place: args.in_place,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct AddRates {
    pub(super) bulk_per_second: f64,
    pub(super) bulk_returning_per_second: f64,
    pub(super) single_per_second: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Drain {
    /// Number of runs: more than the number of jobs if some ran twice.
    pub(super) ran: u64,
    pub(super) failed: u64,
    pub(super) seconds: f64,
    pub(super) per_second: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Steady {
    pub(super) added: u64,
    pub(super) ran: u64,
    pub(super) seconds: f64,
    pub(super) per_second: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct CostPerJob {
    pub(super) wal_bytes: f64,
    pub(super) commits: f64,
    pub(super) dead_rows: f64,
}

/// The distribution of measured values.
#[derive(Debug, Serialize)]
pub(super) struct Spread {
    pub(super) count: usize,
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Percentiles are measured values (the nearest rank), never interpolated.
    pub(super) fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let at = |percent: usize| {
            let rank = (count * percent).div_ceil(100).max(1);
            values.get(rank - 1).copied().unwrap_or_default()
        };
        Spread { count, p50: at(50), p95: at(95), p99: at(99), max: at(100) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.settings)?;
        let mut row = |name: &str, value: String, unit: &str| writeln!(f, "{name:<34}{value:>12}  {unit}");
        row("add, many in one call", whole(self.add.bulk_per_second), "jobs/s")?;
        row("add, many and get them back", whole(self.add.bulk_returning_per_second), "jobs/s")?;
        row("add, one by one", whole(self.add.single_per_second), "jobs/s")?;
        row("drain", whole(self.drain.per_second), "jobs/s")?;
        if self.drain.failed > 0 {
            row("drain, of these failed", self.drain.failed.to_string(), "jobs")?;
        }
        row("steady state, adds and runs", whole(self.steady.per_second), "jobs/s")?;
        let Spread { p50, p95, p99, max, .. } = self.latency_ms;
        for (name, value) in [("p50", p50), ("p95", p95), ("p99", p99), ("max", max)] {
            row(&format!("from add to start, {name}"), format!("{value:.2}"), "ms")?;
        }
        let Spread { p50, p99, max, .. } = self.lateness_ms;
        for (name, value) in [("p50", p50), ("p99", p99), ("max", max)] {
            row(&format!("lateness of scheduled jobs, {name}"), format!("{value:.2}"), "ms")?;
        }
        row("start-up and shutdown", format!("{:.1}", self.start_up_ms), "ms")?;
        match self.memory_bytes {
            Some(bytes) => row("memory of a worker, peak", format!("{:.1}", bytes as f64 / 1e6), "MB")?,
            None => row("memory of a worker, peak", "unknown".into(), "")?,
        }
        row("WAL per job, without its add", whole(self.cost_per_job.wal_bytes), "bytes")?;
        row("commits per job", format!("{:.4}", self.cost_per_job.commits), "")?;
        row("dead rows per job", format!("{:.2}", self.cost_per_job.dead_rows), "")
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "atta {} on PostgreSQL {}: ", self.atta_version, self.server_version)?;
        write!(f, "{} jobs, {} x {} at a time, ", self.jobs, self.workers, self.concurrency)?;
        write!(f, "claims {}", self.claims)?;
        if let Some(size) = self.local_queue {
            write!(f, ", local queue {size}")?;
        }
        if self.payload_bytes > 0 {
            write!(f, ", payload {} bytes", self.payload_bytes)?;
        }
        if self.queues > 0 {
            write!(f, ", {} queues", self.queues)?;
        }
        if self.fail_rate > 0.0 {
            write!(f, ", fail rate {}", self.fail_rate)?;
        }
        if self.pin_xmin {
            write!(f, ", xmin pinned")?;
        }
        if self.in_place {
            write!(f, ", in place")?;
        }
        Ok(())
    }
}

/// `1234567.8` becomes `1,234,568`.
fn whole(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let spread = Spread::of((1..=200).rev().map(f64::from).collect());
        assert_eq!((spread.p50, spread.p95, spread.p99, spread.max), (100.0, 190.0, 198.0, 200.0));
        let one = Spread::of(vec![7.0]);
        assert_eq!((one.p50, one.p99, one.max), (7.0, 7.0, 7.0));
    }

    #[test]
    fn long_numbers_are_grouped() {
        assert_eq!([whole(7.4), whole(999.6), whole(1_234_567.8)], ["7", "1,000", "1,234,568"]);
    }
}
