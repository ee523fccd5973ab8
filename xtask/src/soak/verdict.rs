//! The measures of a soak, and whether they stayed constant.
//!
//! The rule: the first tenth is warm-up and is ignored. In the rest, the median of the last quarter may be at most 1.2
//! times that of the first, or exceed it by at most the measure's slack, which is the effect of one page, one
//! connection or the clock's resolution on a small number. A measure that should keep its pace may not fall by as much
//! either.

use super::series::Series;
use crate::Result;

const WARM_UP: f64 = 0.1;
const MOST: f64 = 1.2;
/// Two samples per quarter; fewer would be meaningless.
const FEWEST: usize = 8;
/// The prefix of the columns of indexes; there is one column per index of the table.
const INDEX: &str = "index_bytes ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Milliseconds,
    Jobs,
    JobsPerSecond,
    Percent,
    Bytes,
    Rows,
    Connections,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measure {
    pub(super) column: String,
    pub(super) title: String,
    pub(super) unit: Unit,
    slack: f64,
    /// Whether a fall is as bad as a rise.
    is_pace: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Flat,
    Grows,
    Falls,
}

impl Verdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Verdict::Flat => "flat",
            Verdict::Grows => "grows",
            Verdict::Falls => "falls",
        }
    }
}

/// The result for a measure: the medians of the quarters, and the largest value after the warm-up.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Judgement {
    pub(super) measure: Measure,
    pub(super) first: f64,
    pub(super) last: f64,
    pub(super) most: f64,
    pub(super) verdict: Verdict,
}

/// Judges every measure that the samples have, in the order of the chart.
pub(super) fn judge(series: &Series) -> Result<Vec<Judgement>> {
    let judged = measures(series).into_iter().map(|measure| {
        let points = series.points(&measure.column);
        let values: Vec<f64> = points.into_iter().map(|(_, value)| value).collect();
        judge_one(measure, &values)
    });
    judged.collect()
}

/// The first and the last quarter after the warm-up, as times of a soak of this length.
pub(super) fn quarters(length: f64) -> [(f64, f64); 2] {
    let warm = WARM_UP * length;
    let quarter = (length - warm) / 4.0;
    [(warm, warm + quarter), (length - quarter, length)]
}

fn judge_one(measure: Measure, values: &[f64]) -> Result<Judgement> {
    let warm = (WARM_UP * values.len() as f64).ceil() as usize;
    let values = &values[warm.min(values.len())..];
    if values.len() < FEWEST {
        return Err(format!("{}: {} samples after the warm-up are too few", measure.title, values.len()));
    }
    let quarter = values.len() / 4;
    let (first, last) = (median(&values[..quarter]), median(&values[values.len() - quarter..]));
    let most = values.iter().copied().fold(f64::MIN, f64::max);
    let verdict = if last > first * MOST && last - first > measure.slack {
        Verdict::Grows
    } else if measure.is_pace && last < first / MOST && first - last > measure.slack {
        Verdict::Falls
    } else {
        Verdict::Flat
    };
    Ok(Judgement { measure, first, last, most, verdict })
}

pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

fn measures(series: &Series) -> Vec<Measure> {
    let measure = |column: &str, title: &str, unit, slack| Measure {
        column: column.to_owned(),
        title: title.to_owned(),
        unit,
        slack,
        is_pace: false,
    };
    let pace = |column, title| Measure { is_pace: true, ..measure(column, title, Unit::JobsPerSecond, 1.0) };
    let page = 8192.0;
    let mut measures = vec![
        measure("latency_p50_ms", "Add to start, p50", Unit::Milliseconds, 0.5),
        measure("latency_p99_ms", "Add to start, p99", Unit::Milliseconds, 1.0),
        measure("backlog", "Jobs in the table", Unit::Jobs, 1000.0),
        pace("added_per_second", "Added"),
        pace("completed_per_second", "Completed"),
        measure("worker_cpu_percent", "Worker, share of a core", Unit::Percent, 2.0),
        measure("worker_memory_bytes", "Worker, memory (RSS)", Unit::Bytes, 2e6),
        measure("connections", "Connections", Unit::Connections, 1.0),
        measure("dead_rows", "Dead rows", Unit::Rows, 1000.0),
        measure("jobs_table_bytes", "Table of jobs", Unit::Bytes, 128.0 * page),
    ];
    for column in &series.columns {
        if let Some(name) = column.strip_prefix(INDEX) {
            measures.push(measure(column, name, Unit::Bytes, 128.0 * page));
        }
    }
    measures.push(measure("queues_table_bytes", "Table of queues", Unit::Bytes, 32.0 * page));
    measures.push(measure("atta_tables_bytes", "Tables _atta_*", Unit::Bytes, 8.0 * page));
    measures.retain(|measure| !series.points(&measure.column).is_empty());
    measures
}

/// A table for the terminal, with one line per measure.
pub(super) fn table(judgements: &[Judgement]) -> String {
    let mut text =
        format!("{:28} {:>14} {:>14} {:>14} {:>7}\n", "", "first quarter", "last quarter", "most", "ratio");
    for one in judgements {
        let unit = one.measure.unit;
        text.push_str(&format!(
            "{:28} {:>14} {:>14} {:>14} {:>7}  {}\n",
            one.measure.title,
            unit.show(one.first),
            unit.show(one.last),
            unit.show(one.most),
            one.ratio(),
            one.verdict.word(),
        ));
    }
    text
}

impl Judgement {
    /// The last quarter as a multiple of the first.
    pub(super) fn ratio(&self) -> String {
        if self.first == 0.0 { "-".to_owned() } else { format!("x{:.2}", self.last / self.first) }
    }
}

impl Unit {
    /// A number with its unit, in about three digits.
    pub(super) fn show(self, value: f64) -> String {
        let (scale, name) = self.scale(value);
        format!("{} {name}", self.number(value / scale))
    }

    /// Formats a number that was divided by its scale.
    pub(super) fn number(self, scaled: f64) -> String {
        if scaled == 0.0 || scaled >= 99.95 || self == Unit::Connections {
            return format!("{scaled:.0}");
        }
        if scaled >= 9.995 { format!("{scaled:.1}") } else { format!("{scaled:.2}") }
    }

    /// The divisor for numbers of this size, and their unit after that.
    pub(super) fn scale(self, most: f64) -> (f64, &'static str) {
        match self {
            Unit::Milliseconds => (1.0, "ms"),
            Unit::Percent => (1.0, "%"),
            Unit::Connections => (1.0, "open"),
            Unit::Bytes if most >= 1e9 => (1e9, "GB"),
            Unit::Bytes if most >= 1e6 => (1e6, "MB"),
            Unit::Bytes => (1e3, "kB"),
            Unit::Jobs if most >= 1e6 => (1e6, "million jobs"),
            Unit::Jobs if most >= 1e4 => (1e3, "thousand jobs"),
            Unit::Jobs => (1.0, "jobs"),
            Unit::JobsPerSecond if most >= 1e4 => (1e3, "thousand/s"),
            Unit::JobsPerSecond => (1.0, "jobs/s"),
            Unit::Rows if most >= 1e6 => (1e6, "million rows"),
            Unit::Rows if most >= 1e4 => (1e3, "thousand rows"),
            Unit::Rows => (1.0, "rows"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(column: &str, values: &[f64]) -> Verdict {
        let mut text = format!("seconds,{column}\n");
        for (n, value) in values.iter().enumerate() {
            text.push_str(&format!("{},{value}\n", 10 * (n + 1)));
        }
        let judged = judge(&Series::parse(&text).unwrap()).unwrap();
        assert_eq!(judged.len(), 1);
        judged[0].verdict
    }

    fn line(from: f64, to: f64) -> Vec<f64> {
        (0..100).map(|n| from + (to - from) * f64::from(n) / 99.0).collect()
    }

    #[test]
    fn a_slope_grows_and_a_wave_is_flat() {
        let wave: Vec<f64> = (0..100).map(|n| 1e8 + 9e7 * f64::from(n % 6)).collect();
        assert_eq!(verdict("jobs_table_bytes", &wave), Verdict::Flat);
        assert_eq!(verdict("jobs_table_bytes", &line(1e8, 2e8)), Verdict::Grows);
        assert_eq!(verdict("jobs_table_bytes", &line(2e8, 1e8)), Verdict::Flat);
    }

    #[test]
    fn the_warm_up_does_not_count() {
        let mut values = vec![0.0; 10];
        values.extend([5e7; 90]);
        assert_eq!(verdict("worker_memory_bytes", &values), Verdict::Flat);
    }

    #[test]
    fn a_small_number_may_change_by_its_slack() {
        assert_eq!(verdict("connections", &line(2.0, 3.0)), Verdict::Flat);
        assert_eq!(verdict("connections", &line(2.0, 8.0)), Verdict::Grows);
        assert_eq!(verdict("backlog", &line(10.0, 500.0)), Verdict::Flat);
    }

    #[test]
    fn a_pace_may_not_fall() {
        assert_eq!(verdict("completed_per_second", &line(5000.0, 2000.0)), Verdict::Falls);
        assert_eq!(verdict("completed_per_second", &line(5000.0, 4900.0)), Verdict::Flat);
    }

    #[test]
    fn too_few_samples_are_not_judged() {
        let series = Series::parse("seconds,backlog\n10,1\n20,1\n30,1\n").unwrap();
        assert!(judge(&series).unwrap_err().contains("too few"));
    }

    #[test]
    fn numbers_are_short_and_have_units() {
        assert_eq!(Unit::Bytes.show(81_920.0), "81.9 kB");
        assert_eq!(Unit::Bytes.show(1.25e9), "1.25 GB");
        assert_eq!(Unit::Jobs.show(0.0), "0 jobs");
        assert_eq!(Unit::JobsPerSecond.show(38_400.0), "38.4 thousand/s");
        assert_eq!(Unit::Connections.show(9.0), "9 open");
    }
}
