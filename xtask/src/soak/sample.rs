//! One sample: the counts of the two processes, the system's figures for the worker, and the sizes in the database.

use std::fs;
use std::time::Instant;

use super::harness::Harness;
use crate::bench::server::Server;
use crate::{Result, root};

/// Linux counts the time of a process in hundredths of a second, on every machine.
const TICKS_PER_SECOND: f64 = 100.0;

/// Names and values, in the order of the file's columns. An unknown value is NaN.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample(pub(super) Vec<(String, f64)>);

impl Sample {
    /// The sample as a line for the terminal.
    pub(super) fn line(&self) -> String {
        let value = |name: &str| {
            self.0.iter().find(|(column, _)| column == name).map_or(f64::NAN, |(_, value)| *value)
        };
        format!(
            "{:6.0} s  {:7.0} jobs/s run  {:8.0} waiting  p50 {:6.2} ms  p99 {:7.2} ms  worker {:5.1} MB  table {:7.1} MB  {:9.0} dead",
            value("seconds"),
            value("completed_per_second"),
            value("backlog"),
            value("latency_p50_ms"),
            value("latency_p99_ms"),
            value("worker_memory_bytes") / 1e6,
            value("jobs_table_bytes") / 1e6,
            value("dead_rows"),
        )
    }
}

/// Counters that only grow, so that only their differences matter.
#[derive(Clone, Copy, Debug)]
struct Counts {
    at: Instant,
    asked: f64,
    completed: f64,
    cpu_seconds: f64,
}

#[derive(Debug)]
pub(super) struct Sampler<'a> {
    server: &'a Server,
    database: &'static str,
    worker: Harness,
    producer: Harness,
    began: Instant,
    last: Counts,
}

impl<'a> Sampler<'a> {
    pub(super) fn new(
        server: &'a Server,
        database: &'static str,
        worker: Harness,
        producer: Harness,
    ) -> Result<Sampler<'a>> {
        let began = Instant::now();
        let last = Counts { at: began, asked: 0.0, completed: 0.0, cpu_seconds: cpu_seconds(worker.id()) };
        Ok(Sampler { server, database, worker, producer, began, last })
    }

    pub(super) fn take(&mut self) -> Result<Sample> {
        let (ran, added) = (self.worker.ask("")?, self.producer.ask("")?);
        let now = Counts {
            at: Instant::now(),
            asked: value(&added, "asked"),
            completed: value(&ran, "completed"),
            cpu_seconds: cpu_seconds(self.worker.id()),
        };
        let seconds = (now.at - self.last.at).as_secs_f64();
        let mut columns = vec![
            ("seconds".to_owned(), (now.at - self.began).as_secs_f64().round()),
            ("latency_p50_ms".to_owned(), value(&ran, "p50")),
            ("latency_p99_ms".to_owned(), value(&ran, "p99")),
            ("backlog".to_owned(), (value(&added, "rows") - now.completed).max(0.0)),
            ("added_per_second".to_owned(), (now.asked - self.last.asked) / seconds),
            ("completed_per_second".to_owned(), (now.completed - self.last.completed) / seconds),
            ("worker_cpu_percent".to_owned(), 100.0 * (now.cpu_seconds - self.last.cpu_seconds) / seconds),
            ("worker_memory_bytes".to_owned(), memory_bytes(self.worker.id())),
        ];
        columns.extend(self.ask_database()?);
        self.last = now;
        Ok(Sample(columns))
    }

    /// How many jobs were passed to be added, and how many rows resulted.
    pub(super) fn stop_adding(&mut self) -> Result<(f64, f64)> {
        let added = self.producer.ask("stop")?;
        Ok((value(&added, "asked"), value(&added, "rows")))
    }

    pub(super) fn completed(&mut self) -> Result<f64> {
        Ok(value(&self.worker.ask("")?, "completed"))
    }

    /// Ends both processes, and returns how many jobs are left in the table.
    pub(super) fn end(self) -> Result<String> {
        self.producer.end()?;
        self.worker.end()?;
        self.server.psql(self.database, &["-c", "select count(*) from graphile_worker._private_jobs"])
    }

    fn ask_database(&self) -> Result<Vec<(String, f64)>> {
        let file = root().join("bench/soak/sample.sql").display().to_string();
        let printed = self.server.psql(self.database, &["-f", &file])?;
        let line = |line: &str| {
            let (name, value) = line.split_once('|')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let lines: Option<Vec<(String, f64)>> = printed.lines().map(line).collect();
        lines.ok_or_else(|| format!("unexpected reply of the server: {printed:?}"))
    }
}

fn value(numbers: &[(String, f64)], name: &str) -> f64 {
    numbers.iter().find(|(key, _)| key == name).map_or(f64::NAN, |(_, value)| *value)
}

/// The current memory of a process, as Linux counts it.
fn memory_bytes(process: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    line.and_then(|kilobytes| kilobytes.parse().ok()).map_or(f64::NAN, |kilobytes: f64| kilobytes * 1024.0)
}

/// The CPU time of all threads of a process, as Linux counts it.
fn cpu_seconds(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    ticks(&stat).map_or(f64::NAN, |ticks| ticks / TICKS_PER_SECOND)
}

/// Fields 14 and 15. The second field is the program's name in brackets, which may contain any character.
fn ticks(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processs_time_is_found_behind_any_name() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 3 0 100 1000 200";
        assert_eq!(ticks(stat), Some(300.0));
        assert_eq!(ticks(""), None);
    }
}
