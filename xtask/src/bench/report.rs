//! The samples, their medians, and the text of `bench/RESULTS.md`.

use std::fmt::Write;
use std::fs;
use std::thread::available_parallelism;

use super::growth::Case;
use super::{ATTA, ATTA_DURABLE, CEILING, Contender, GRAPHILE_WORKER, Options, Program, Work, node, output};
use crate::root;

/// What was measured, in the order in which it was.
#[derive(Debug, Default)]
pub(super) struct Samples {
    all: Vec<(Work, &'static str, String, f64)>,
}

impl Samples {
    pub(super) fn keep(&mut self, work: Work, contender: &'static str, seen: Vec<(String, f64)>) {
        self.all.extend(seen.into_iter().map(|(key, value)| (work, contender, key, value)));
    }

    /// The median over the rounds, and nothing for what was not measured.
    fn median(&self, work: Work, contender: &str, key: &str) -> Option<f64> {
        let is_asked = |sample: &&(Work, &'static str, String, f64)| {
            sample.0 == work && sample.1 == contender && sample.2 == key
        };
        let mut values: Vec<f64> = self.all.iter().filter(is_asked).map(|sample| sample.3).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            length if length % 2 == 0 => Some((values[middle - 1] + values[middle]) / 2.0),
            _ => Some(values[middle]),
        }
    }

    /// Jobs a second.
    fn rate(&self, work: Work, contender: &str) -> Option<f64> {
        self.median(work, contender, "rate")
    }
}

/// How a number must compare with its bar.
#[derive(Clone, Copy, Debug)]
enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

const UNSAID: &str = "\
## What the numbers do not say

- The jobs do nothing. A job that talks to the world takes milliseconds, and then every contender is as fast as its
  slots allow: the drain shows what the queue itself costs, not what an application gains.
- Server and workers share one machine and its cores, and talk over loopback. With a network between them round trips
  weigh more, which favours those who claim and complete many jobs at a time.
- The disk decides what a commit costs, and with it the latency and the lateness: compare within this file only.
- A held claim lasts as long as a short transaction. Slow jobs, and jobs in queues, are claimed durably: their speed is
  that of the second row.
- The table is filled by plain SQL just before, so its statistics are fresh and it has no dead rows at the start.
  What comes of a backlog of millions, of stuck jobs at the head and of a pinned xmin is under Growth.
- River keeps completed jobs, the others delete them. graphile-worker needs four processes for its best, and its
  memory is not measured. Start-up is not counted for anyone, but for Node's workers the first check of the schema is.
- The ceiling runs no jobs and fetches their identifiers only.
- Latency is that of one job at a time on an idle worker, lateness that of a hundred jobs that fall due within some tenths
  of a second, with nobody adding meanwhile.
";

pub(super) fn write(
    options: &Options,
    contenders: &[Contender],
    samples: &Samples,
    growth: &[(Case, f64)],
    postgres: &str,
) -> String {
    let Options { jobs, rounds, .. } = options;
    let mut text = format!(
        "# Results\n\nMade by `cargo xtask bench`: {jobs} jobs a drain and a call that adds, medians of {rounds} rounds in turns\n(riverqueue adds a tenth of that in its call).\n\n\
         ## Machine\n\n{}\n- {postgres}: fsync and synchronous_commit on, 256 MB of shared buffers\n",
        machine()
    );
    for line in versions(contenders) {
        text += &format!("- {line}\n");
    }
    text += "\n## Contenders\n\n";
    for contender in contenders {
        text += &format!("- `{}`: {}\n", contender.name, contender.about);
    }
    text += &measured(contenders, samples);
    text += &bars(contenders, samples);
    text += &growing(growth);
    text + "\n" + UNSAID
}

/// How the drain goes on tables that are not plain, as parts of the rate on one that is.
fn growing(growth: &[(Case, f64)]) -> String {
    let Some(((_, plain), cases)) = growth.split_first() else { return String::new() };
    let mut text = format!(
        "\n## Growth\n\natta alone, held claims, 24 slots, until 100,000 jobs have run. A plain table: {plain:.0} jobs/s.\n\n\
         | | jobs/s | of the plain rate | bar | |\n|---|--:|--:|--:|---|\n"
    );
    for (case, rate) in cases {
        let part = rate / plain;
        let (bar, verdict) = match case.bar {
            Some(bar) => (format!("at least {bar}"), verdict(part >= bar)),
            None => ("-".to_owned(), ""),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} | {rate:.0} | {part:.2} | {bar} | {verdict} |", case.about);
    }
    text
}

fn verdict(is_reached: bool) -> &'static str {
    if is_reached { "reached" } else { "**missed**" }
}

fn measured(contenders: &[Contender], samples: &Samples) -> String {
    let mut text = String::from(
        "\n## Measured\n\n| | drain, jobs/s | WAL, B/job | peak memory, MB | add, jobs/s | latency p50 / p95 / p99 / max, ms | \
         lateness p50 / p99, ms |\n|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for contender in contenders {
        let name = contender.name;
        let list = |work, keys: &[&str]| {
            let values: Option<Vec<String>> = keys
                .iter()
                .map(|key| samples.median(work, name, key).map(|value| format!("{value:.1}")))
                .collect();
            values.map_or("-".to_owned(), |values| values.join(" / "))
        };
        let cells = [
            whole(samples.rate(Work::Drain, name)),
            whole(samples.median(Work::Drain, name, "wal_per_job")),
            whole(samples.median(Work::Drain, name, "peak_mb")),
            whole(samples.rate(Work::Add, name)),
            list(Work::Latency, &["p50", "p95", "p99", "max"]),
            list(Work::Late, &["p50", "p99"]),
        ];
        text += &format!("| `{name}` | {} |\n", cells.join(" | "));
    }
    text
}

fn bars(contenders: &[Contender], samples: &Samples) -> String {
    let rate = |work, name| samples.rate(work, name);
    let peers = contenders.iter().filter(|one| ![ATTA, ATTA_DURABLE, CEILING].contains(&one.name));
    let fastest = peers.filter_map(|one| rate(Work::Drain, one.name)).max_by(f64::total_cmp);
    let held = rate(Work::Drain, ATTA);
    let against_node =
        |work, key| ratio(samples.median(work, ATTA, key), samples.median(work, GRAPHILE_WORKER, key));
    let rows = [
        ("drain, held / fastest peer", ratio(held, fastest), Bar::AtLeast(4.0)),
        ("drain, held / ceiling", ratio(held, rate(Work::Drain, CEILING)), Bar::AtLeast(0.6)),
        ("drain, durable / fastest peer", ratio(rate(Work::Drain, ATTA_DURABLE), fastest), Bar::AtLeast(1.0)),
        (
            "add in one call / graphile-worker",
            ratio(rate(Work::Add, ATTA), rate(Work::Add, GRAPHILE_WORKER)),
            Bar::AtLeast(1.5),
        ),
        ("latency p50 / graphile-worker", against_node(Work::Latency, "p50"), Bar::AtMost(0.5)),
        ("latency p99 / graphile-worker", against_node(Work::Latency, "p99"), Bar::AtMost(1.0)),
        ("lateness p99, ms", samples.median(Work::Late, ATTA, "p99"), Bar::AtMost(15.0)),
        ("WAL a job / graphile-worker", against_node(Work::Drain, "wal_per_job"), Bar::AtMost(0.5)),
        ("peak memory in the drain, MB", samples.median(Work::Drain, ATTA, "peak_mb"), Bar::AtMost(64.0)),
    ];
    let mut text = String::from("\n## Against the bars\n\n| | measured | bar | |\n|---|--:|--:|---|\n");
    for (what, value, bar) in rows {
        let Some(value) = value else { continue };
        let (bar, is_reached) = match bar {
            Bar::AtLeast(bar) => (format!("at least {bar}"), value >= bar),
            Bar::AtMost(bar) => (format!("at most {bar}"), value <= bar),
        };
        let verdict = verdict(is_reached);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {what} | {value:.2} | {bar} | {verdict} |");
    }
    text
}

fn ratio(ours: Option<f64>, theirs: Option<f64>) -> Option<f64> {
    Some(ours? / theirs?)
}

fn whole(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.0}"))
}

/// Cores, memory and processor, as far as the system tells.
fn machine() -> String {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let memory = field("/proc/meminfo", "MemTotal")
        .and_then(|text| text.trim_end_matches(" kB").parse::<f64>().ok())
        .map_or(String::new(), |kilobytes| format!(", {:.0} GB of memory", kilobytes / 1024.0 / 1024.0));
    let processor = field("/proc/cpuinfo", "model name").map_or(String::new(), |model| format!(", {model}"));
    let cores = available_parallelism().map_or(1, usize::from);
    format!("- {cores} cores{memory}{processor}")
}

/// The versions of those who took part, from the lock files of their harnesses.
fn versions(contenders: &[Contender]) -> Vec<String> {
    let takes_part = |program| contenders.iter().any(|one| one.program == program);
    let mut lines = Vec::new();
    for package in ["atta", "graphile_worker", "riverqueue"] {
        let file = root().join("bench").join(package).join("Cargo.lock");
        let lock = fs::read_to_string(file).unwrap_or_default();
        let entry = format!("name = \"{package}\"\nversion = \"");
        let version = lock.split_once(&entry).and_then(|(_, rest)| rest.split_once('"'));
        if let Some((version, _)) = version.filter(|_| takes_part(Program::Rust(package))) {
            lines.push(format!("{package} {version} (crate)"));
        }
    }
    if takes_part(Program::Node) {
        let node = output(node().arg("--version")).unwrap_or_default();
        lines.push(format!("graphile-worker 0.18.0 (npm) on Node {node}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_the_rounds() {
        let mut samples = Samples::default();
        for seconds in [3.0, 1.0, 2.0] {
            samples.keep(
                Work::Drain,
                ATTA,
                vec![("seconds".into(), seconds), ("rate".into(), 6.0 / seconds)],
            );
        }
        assert_eq!(samples.rate(Work::Drain, ATTA), Some(3.0));
        assert_eq!(samples.median(Work::Drain, ATTA, "seconds"), Some(2.0));
        assert_eq!(samples.median(Work::Add, ATTA, "seconds"), None);
    }
}
