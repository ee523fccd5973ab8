//! The samples, their medians, and the text of `bench/RESULTS.md`.

use std::fmt::Write;
use std::fs;
use std::thread::available_parallelism;

use super::growth::{Case, Turn};
use super::{ATTA, ATTA_DURABLE, CEILING, Contender, GRAPHILE_WORKER, Options, Program, Work, node, output};
use crate::root;

/// The measurements, in order.
#[derive(Debug, Default)]
pub(super) struct Samples {
    all: Vec<Sample>,
    rounds: usize,
}

#[derive(Debug)]
struct Sample {
    round: usize,
    work: Work,
    contender: &'static str,
    key: String,
    value: f64,
}

impl Samples {
    pub(super) fn keep(
        &mut self,
        round: usize,
        work: Work,
        contender: &'static str,
        seen: Vec<(String, f64)>,
    ) {
        self.rounds = self.rounds.max(round);
        self.all.extend(seen.into_iter().map(|(key, value)| Sample { round, work, contender, key, value }));
    }

    fn get(&self, round: usize, work: Work, contender: &str, key: &str) -> Option<f64> {
        let is_asked = |sample: &&Sample| {
            (sample.round, sample.work) == (round, work) && sample.contender == contender && sample.key == key
        };
        self.all.iter().find(is_asked).map(|sample| sample.value)
    }

    /// The value of each round in which all of it was measured.
    fn rounds(&self, of: impl Fn(usize) -> Option<f64>) -> Vec<f64> {
        (1..=self.rounds).filter_map(of).collect()
    }

    /// The median over the rounds; none if it was not measured.
    fn median(&self, work: Work, contender: &str, key: &str) -> Option<f64> {
        median(&self.rounds(|round| self.get(round, work, contender, key)))
    }
}

pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 0 => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
    }
}

/// How a number must compare with its bar.
#[derive(Clone, Copy, Debug)]
enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

const LIMITS: &str = "\
## Limits of these numbers

- The jobs do nothing. A real job takes milliseconds or more, and then every contender is as fast as its slots allow. The
  drain shows the cost of the queue itself, not the gain for an application.
- The server and the workers share one machine and its cores, and communicate over loopback. With a network between them,
  round trips cost more, which favours workers that claim and complete many jobs at a time.
- The disk determines the cost of a commit, and so the latency and the lateness. Compare only numbers of this file.
- A held claim lasts only as long as a short transaction. Slow jobs are claimed durably, at the speed of `atta_durable`. So are jobs
  in queues, which also run one after the other; the last line of Growth has their speed.
- The table is filled by plain SQL just before each turn, so its statistics are fresh and it has no dead rows at the start.
  The part Growth shows a backlog of millions of jobs, stuck jobs at the head, and a pinned xmin.
- River keeps completed jobs, the others delete them. graphile-worker needs four processes for its best result, and its
  memory is not measured. Start-up is not counted, except for the first check of the schema by Node's workers.
- The ceiling runs no jobs and fetches only their identifiers.
- Latency is measured with one job at a time on an idle worker; lateness with a hundred jobs that become due within some
  tenths of a second, while none are added.
";

pub(super) fn write(
    options: &Options,
    contenders: &[Contender],
    samples: &Samples,
    growth: &[(Case, Vec<Turn>)],
    parts: &[String],
    postgres: &str,
) -> String {
    let Options { jobs, rounds, .. } = options;
    let mut text = format!(
        "# Results\n\nMade by `cargo xtask bench`: {jobs} jobs per drain and per bulk add, medians of {rounds} rounds in turns\n(riverqueue adds a tenth of that in its bulk add).\n\n\
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
    text.extend(parts.iter().map(String::as_str));
    text + "\n" + LIMITS
}

/// The drain rate on tables that are not plain, as a fraction of the rate on a plain one.
fn growing(growth: &[(Case, Vec<Turn>)]) -> String {
    if growth.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\n## Growth\n\natta alone, held claims, 24 slots, until 100,000 jobs have run, or as many as the case names; each turn right after one on a plain table.\n\n\
         | | jobs/s | plain, jobs/s | of the plain rate | round by round | bar | |\n|---|--:|--:|--:|---|--:|---|\n",
    );
    for (case, turns) in growth {
        let of = |number: fn(&Turn) -> f64| turns.iter().map(number).collect::<Vec<f64>>();
        let parts = of(|turn| turn.rate / turn.plain);
        let Some(part) = median(&parts) else { continue };
        let (bar, verdict) = match case.bar {
            Some(bar) => (format!("at least {bar}"), verdict(part >= bar)),
            None => ("-".to_owned(), ""),
        };
        let (rate, plain) = (whole(median(&of(|turn| turn.rate))), whole(median(&of(|turn| turn.plain))));
        let (about, parts) = (case.about, list(&parts));
        // Writing to a string can't fail.
        let _ = writeln!(text, "| {about} | {rate} | {plain} | {part:.2} | {parts} | {bar} | {verdict} |");
    }
    text
}

/// Numbers, separated by commas.
pub(super) fn list(values: &[f64]) -> String {
    values.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(", ")
}

pub(super) fn verdict(is_reached: bool) -> &'static str {
    if is_reached { "reached" } else { "**missed**" }
}

fn measured(contenders: &[Contender], samples: &Samples) -> String {
    let mut text = String::from(
        "\n## Measured\n\n| | drain, jobs/s | WAL, B/job | peak memory, MB | add, jobs/s | latency p50 / p95 / p99 / max, ms | \
         lateness p50 / p99, ms |\n|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for contender in contenders {
        let name = contender.name;
        let percentiles = |work, keys: &[&str]| {
            let values: Option<Vec<String>> = keys
                .iter()
                .map(|key| samples.median(work, name, key).map(|value| format!("{value:.1}")))
                .collect();
            values.map_or("-".to_owned(), |values| values.join(" / "))
        };
        let cells = [
            whole(samples.median(Work::Drain, name, "rate")),
            whole(samples.median(Work::Drain, name, "wal_per_job")),
            whole(samples.median(Work::Drain, name, "peak_mb")),
            whole(samples.median(Work::Add, name, "rate")),
            percentiles(Work::Latency, &["p50", "p95", "p99", "max"]),
            percentiles(Work::Late, &["p50", "p99"]),
        ];
        text += &format!("| `{name}` | {} |\n", cells.join(" | "));
    }
    text
}

/// Each ratio is computed within a round, whose turns follow each other directly; the median of the ratios counts.
fn bars(contenders: &[Contender], samples: &Samples) -> String {
    let ratio = |work, key: &str, ours: &str, theirs: &str| {
        samples.rounds(|round| {
            Some(samples.get(round, work, ours, key)? / samples.get(round, work, theirs, key)?)
        })
    };
    let peers = || contenders.iter().filter(|one| ![ATTA, ATTA_DURABLE, CEILING].contains(&one.name));
    let fastest_peer = |round| {
        peers().filter_map(|one| samples.get(round, Work::Drain, one.name, "rate")).max_by(f64::total_cmp)
    };
    let against_peers = |ours| {
        samples.rounds(|round| Some(samples.get(round, Work::Drain, ours, "rate")? / fastest_peer(round)?))
    };
    let against_node = |work, key| ratio(work, key, ATTA, GRAPHILE_WORKER);
    let alone = |work, key| samples.rounds(|round| samples.get(round, work, ATTA, key));
    let rows = [
        ("drain, held / fastest peer", against_peers(ATTA), Bar::AtLeast(4.0)),
        ("drain, held / ceiling", ratio(Work::Drain, "rate", ATTA, CEILING), Bar::AtLeast(0.6)),
        ("drain, durable / fastest peer", against_peers(ATTA_DURABLE), Bar::AtLeast(1.0)),
        ("add in one call / graphile-worker", against_node(Work::Add, "rate"), Bar::AtLeast(1.5)),
        ("latency p50 / graphile-worker", against_node(Work::Latency, "p50"), Bar::AtMost(0.5)),
        ("latency p99 / graphile-worker", against_node(Work::Latency, "p99"), Bar::AtMost(1.0)),
        ("lateness p99, ms", alone(Work::Late, "p99"), Bar::AtMost(15.0)),
        ("WAL per job / graphile-worker", against_node(Work::Drain, "wal_per_job"), Bar::AtMost(0.5)),
        ("peak memory in the drain, MB", alone(Work::Drain, "peak_mb"), Bar::AtMost(64.0)),
    ];
    let mut text = String::from(
        "\n## Against the bars\n\nRatios within each round, and their medians.\n\n\
         | | measured | round by round | bar | |\n|---|--:|---|--:|---|\n",
    );
    for (what, values, bar) in rows {
        let Some(value) = median(&values) else { continue };
        let (bar, is_reached) = match bar {
            Bar::AtLeast(bar) => (format!("at least {bar}"), value >= bar),
            Bar::AtMost(bar) => (format!("at most {bar}"), value <= bar),
        };
        let (values, verdict) = (list(&values), verdict(is_reached));
        // Writing to a string can't fail.
        let _ = writeln!(text, "| {what} | {value:.2} | {values} | {bar} | {verdict} |");
    }
    text
}

fn whole(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.0}"))
}

/// Cores, memory and processor, as far as the system reports them.
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

/// The versions of the contenders, from the lock files of their harnesses.
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
    use super::super::CONTENDERS;
    use super::super::growth::CASES;
    use super::*;

    fn rates(contender: &'static str, rates: [f64; 3], samples: &mut Samples) {
        for (round, rate) in (1..).zip(rates) {
            samples.keep(round, Work::Drain, contender, vec![("rate".into(), rate)]);
        }
    }

    #[test]
    fn medians_are_of_the_rounds() {
        let mut samples = Samples::default();
        rates(ATTA, [6.0, 2.0, 3.0], &mut samples);
        assert_eq!(samples.median(Work::Drain, ATTA, "rate"), Some(3.0));
        assert_eq!(samples.median(Work::Add, ATTA, "rate"), None);
        assert_eq!(median(&[1.0, 4.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let mut samples = Samples::default();
        // The machine is twice as fast in one round as in another; the ratio stays the same.
        rates(ATTA, [80.0, 40.0, 20.0], &mut samples);
        rates(CEILING, [100.0, 50.0, 25.0], &mut samples);
        rates(GRAPHILE_WORKER, [8.0, 1.0, 4.0], &mut samples);
        rates("riverqueue", [1.0, 8.0, 1.0], &mut samples);
        let text = bars(&CONTENDERS, &samples);
        assert!(
            text.contains("| drain, held / ceiling | 0.80 | 0.80, 0.80, 0.80 | at least 0.6 | reached |"),
            "{text}"
        );
        assert!(text.contains("| drain, held / fastest peer | 5.00 | 10.00, 5.00, 5.00 |"), "{text}");
        assert!(!text.contains("durable"), "what was not measured is not there: {text}");
    }

    #[test]
    fn growth_is_computed_from_adjacent_turns() {
        let case = CASES[0];
        let turns = [(200.0, 100.0), (100.0, 90.0), (50.0, 50.0)].map(|(plain, rate)| Turn { plain, rate });
        let text = growing(&[(case, turns.into())]);
        assert!(text.contains("| 90 | 100 | 0.90 | 0.50, 0.90, 1.00 | at least 0.8 | reached |"), "{text}");
    }
}
