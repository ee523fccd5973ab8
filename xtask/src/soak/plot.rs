//! The chart of a soak: one small panel per measure, all over the same time, each starting from zero.
//!
//! Colours are CSS classes with a light and a dark set, chosen by the reader's system. The input is the samples, the
//! result is the text of an SVG; nothing here reads or writes files.

use super::series::Series;
use super::verdict::{Judgement, Verdict, median, quarters};

const COLUMNS: usize = 3;
const WIDTH: f64 = 1080.0;
const MARGIN: f64 = 28.0;
const HEAD: f64 = 84.0;
const FOOT: f64 = 44.0;
/// The gap between panels.
const GAP: f64 = 30.0;
/// The size of a panel, and of its parts above, below and to the left of the curve.
const PANEL_WIDTH: f64 = (WIDTH - 2.0 * MARGIN - (COLUMNS as f64 - 1.0) * GAP) / COLUMNS as f64;
const PANEL_HEIGHT: f64 = 190.0;
const PANEL_HEAD: f64 = 46.0;
const PANEL_FOOT: f64 = 20.0;
const PANEL_LEFT: f64 = 38.0;
/// The approximate number of lines across a panel, and of marks below it.
const LINES: f64 = 4.0;
const MARKS: f64 = 6.0;
/// The largest number of points of a curve.
const STRETCHES: usize = 120;
/// Some values may be so far out that the curve of the others would be flat. The curve is cut off beyond this multiple
/// of a value that nearly all others stay below.
const CUT: f64 = 4.0;
const NEARLY_ALL: f64 = 0.95;

const STYLE: &str = "
text { font: 11px system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; fill: #1f2328 }
.title { font-size: 20px; font-weight: 600 }
.name { font-size: 13px; font-weight: 600 }
.quiet { fill: #59636e }
.flat { fill: #1a7f37 }
.not-flat { fill: #cf222e }
.word { font-weight: 600 }
.page { fill: #ffffff }
.warm { fill: #eff1f3 }
.grid { stroke: #e3e6e9 }
.ground { stroke: #a9b1ba }
.curve { stroke: #0969da; stroke-width: 1.4; stroke-linejoin: round; fill: none }
.under { fill: #0969da; fill-opacity: .08 }
.band { fill: #0969da; fill-opacity: .28 }
.median { stroke: #bc4c00; stroke-width: 2; stroke-linecap: round }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.quiet { fill: #9198a1 }
.flat { fill: #3fb950 }
.not-flat { fill: #f85149 }
.page { fill: #0d1117 }
.warm { fill: #1a2029 }
.grid { stroke: #262c35 }
.ground { stroke: #59636e }
.curve { stroke: #58a6ff }
.under { fill: #58a6ff; fill-opacity: .1 }
.band { fill: #58a6ff; fill-opacity: .34 }
.median { stroke: #f0883e }
}
";

pub(super) fn svg(series: &Series, judgements: &[Judgement]) -> String {
    let rows = judgements.len().div_ceil(COLUMNS) as f64;
    let height = HEAD + rows * (PANEL_HEIGHT + GAP) - GAP + FOOT;
    let title = title(series);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{}\">\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\n",
        escape(&title)
    );
    svg.push_str(&text(MARGIN, 38.0, "title", "start", &title));
    svg.push_str(&text(MARGIN, 58.0, "quiet", "start", &about(series)));
    let (sum, class) = sum(judgements);
    svg.push_str(&text(WIDTH - MARGIN, 38.0, &format!("name {class}"), "end", &sum));
    for (n, judgement) in judgements.iter().enumerate() {
        let (column, row) = ((n % COLUMNS) as f64, (n / COLUMNS) as f64);
        let left = MARGIN + column * (PANEL_WIDTH + GAP);
        let top = HEAD + row * (PANEL_HEIGHT + GAP);
        svg.push_str(&format!("<g transform=\"translate({left:.1} {top:.1})\">\n"));
        svg.push_str(&Panel::new(series, judgement).draw());
        svg.push_str("</g>\n");
    }
    svg.push_str(&text(MARGIN, height - 18.0, "quiet", "start", LEGEND));
    svg.push_str("</svg>\n");
    svg
}

const LEGEND: &str = "Grey: warm-up. Line and band: median, least and most of a minute or so. Orange: the first and the last \
                      quarter's median; flat: the last is at most 1.2 times the first.";

fn title(series: &Series) -> String {
    let minutes = series.length() / 60.0;
    let time =
        if minutes >= 10.0 { format!("{minutes:.0} minutes") } else { format!("{minutes:.1} minutes") };
    match series.note("rate").and_then(|rate| rate.parse().ok()) {
        Some(rate) => format!("{time} at {} jobs per second", grouped(rate)),
        None => time,
    }
}

/// Describes the run and its result, from the notes.
fn about(series: &Series) -> String {
    let number = |name| series.note(name).and_then(|text| text.parse::<f64>().ok()).map(grouped);
    let mut parts = Vec::new();
    parts.extend(number("full_speed").map(|full| format!("half of the full speed, {full} jobs/s")));
    parts.extend(series.note("server").map(str::to_owned));
    parts.extend(number("cores").map(|cores| format!("{cores} cores for server, worker and producer")));
    parts.extend(match (number("completed"), series.note("left")) {
        (Some(completed), Some("0")) => Some(format!("{completed} jobs completed, none left")),
        (Some(completed), Some(left)) => Some(format!("{completed} jobs completed, {left} left")),
        _ => Some("not ended".to_owned()),
    });
    parts.extend(series.note("started").map(str::to_owned));
    parts.join(" · ")
}

fn sum(judgements: &[Judgement]) -> (String, &'static str) {
    let flat = judgements.iter().filter(|one| one.verdict == Verdict::Flat).count();
    let class = if flat == judgements.len() { "flat" } else { "not-flat" };
    (format!("{flat} of {} flat", judgements.len()), class)
}

/// One measure, and the coordinates of its values.
struct Panel<'a> {
    judgement: &'a Judgement,
    points: Vec<(f64, f64)>,
    /// The time at the right edge, and the value at the upper edge.
    length: f64,
    top: f64,
    step: f64,
    /// The divisor of all its numbers, and their unit after that.
    scale: f64,
    unit_name: &'static str,
}

impl<'a> Panel<'a> {
    fn new(series: &Series, judgement: &'a Judgement) -> Panel<'a> {
        let points = series.points(&judgement.measure.column);
        let highest = highest(points.iter().map(|(_, value)| *value).collect());
        let (scale, unit_name) = judgement.measure.unit.scale(highest);
        let step = round_step(highest / scale / LINES) * scale;
        let top = (highest * 1.02 / step).ceil().max(1.0) * step;
        Panel { judgement, points, length: series.length(), top, step, scale, unit_name }
    }

    fn x(&self, seconds: f64) -> f64 {
        PANEL_LEFT + (PANEL_WIDTH - PANEL_LEFT) * seconds / self.length
    }

    fn y(&self, value: f64) -> f64 {
        let ground = PANEL_HEIGHT - PANEL_FOOT;
        ground - (ground - PANEL_HEAD) * value.min(self.top) / self.top
    }

    fn draw(&self) -> String {
        [self.head(), self.paper(), self.curve(), self.medians()].concat()
    }

    /// Name and verdict, and below them the figures.
    fn head(&self) -> String {
        let one = self.judgement;
        let (unit, class) =
            (one.measure.unit, if one.verdict == Verdict::Flat { "flat" } else { "not-flat" });
        let (scale, name) = (self.scale, self.unit_name);
        let [first, last, most] = [one.first, one.last, one.most].map(|value| unit.number(value / scale));
        let figures = format!("{first} → {last} {name}, at most {most}");
        let word = one.verdict.word();
        [
            text(0.0, 12.0, "name", "start", &one.measure.title),
            // To the right of the word, whose width depends on the reader's fonts.
            format!("<circle class=\"{class}\" cx=\"{:.1}\" cy=\"8\" r=\"3.5\"/>\n", PANEL_WIDTH - 3.5),
            text(PANEL_WIDTH - 12.0, 12.0, &format!("word {class}"), "end", word),
            text(0.0, 29.0, "quiet", "start", &figures),
            text(PANEL_WIDTH, 29.0, "quiet", "end", &one.ratio().replace('x', "×")),
        ]
        .concat()
    }

    /// The background: the warm-up, the lines with their values, and the minutes.
    fn paper(&self) -> String {
        let [(warm, _), _] = quarters(self.length);
        let (ground, width) = (PANEL_HEIGHT - PANEL_FOOT, self.x(warm) - PANEL_LEFT);
        let mut paper = format!(
            "<rect class=\"warm\" x=\"{PANEL_LEFT}\" y=\"{PANEL_HEAD}\" width=\"{width:.1}\" height=\"{:.1}\"/>\n",
            ground - PANEL_HEAD
        );
        for n in 0..=(self.top / self.step).round() as u32 {
            let value = f64::from(n) * self.step;
            let (y, class) = (self.y(value), if n == 0 { "ground" } else { "grid" });
            paper.push_str(&format!(
                "<line class=\"{class}\" x1=\"{PANEL_LEFT}\" x2=\"{PANEL_WIDTH:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n"
            ));
            paper.push_str(&text(PANEL_LEFT - 6.0, y + 3.8, "quiet", "end", &short(value / self.scale)));
        }
        let minutes = self.length / 60.0;
        let step = minute_step(minutes);
        for n in 0..=(minutes / step) as u32 {
            let minute = f64::from(n) * step;
            let label = if n == 0 { "0 min".to_owned() } else { short(minute) };
            paper.push_str(&text(self.x(60.0 * minute), PANEL_HEIGHT - 5.0, "quiet", "middle", &label));
        }
        paper
    }

    /// The medians of a few samples each, and around them a band from the smallest to the largest of those: two hours
    /// of values that go up and down every minute would be one blue block.
    fn curve(&self) -> String {
        let together = self.points.len().div_ceil(STRETCHES).max(1);
        let stretches: Vec<Stretch> = self.points.chunks(together).map(Stretch::of).collect();
        let (Some(first), Some(last)) = (stretches.first(), stretches.last()) else { return String::new() };
        let place = |time: f64, value: f64| format!("{:.1},{:.1} ", self.x(time), self.y(value));
        let least: String = stretches.iter().map(|one| place(one.time, one.least)).collect();
        let most: String = stretches.iter().rev().map(|one| place(one.time, one.most)).collect();
        let middle: String = stretches.iter().map(|one| place(one.time, one.median)).collect();
        let (middle, from, to) = (middle.trim_end(), place(first.time, 0.0), place(last.time, 0.0));
        format!(
            "<polygon class=\"under\" points=\"{from}{middle} {}\"/>\n<polygon class=\"band\" points=\"{least}{}\"/>\n\
             <polyline class=\"curve\" points=\"{middle}\"/>\n",
            to.trim_end(),
            most.trim_end(),
        )
    }

    fn medians(&self) -> String {
        let medians = [self.judgement.first, self.judgement.last];
        let line = |((from, to), median): ((f64, f64), f64)| {
            let (from, to, y) = (self.x(from), self.x(to), self.y(median));
            format!("<line class=\"median\" x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n")
        };
        quarters(self.length).into_iter().zip(medians).map(line).collect()
    }
}

/// Samples that are drawn as one point.
struct Stretch {
    time: f64,
    least: f64,
    median: f64,
    most: f64,
}

impl Stretch {
    fn of(points: &[(f64, f64)]) -> Stretch {
        let values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
        let extreme = |choose: fn(f64, f64) -> f64| values.iter().copied().fold(values[0], choose);
        let time = points.iter().map(|(time, _)| time).sum::<f64>() / points.len() as f64;
        Stretch { time, least: extreme(f64::min), median: median(&values), most: extreme(f64::max) }
    }
}

/// The value that must fit in: the largest, unless it is far beyond nearly all others.
fn highest(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let most = values.last().copied().unwrap_or(0.0);
    let nearly =
        values.get((NEARLY_ALL * values.len().saturating_sub(1) as f64) as usize).copied().unwrap_or(most);
    let highest = if most > CUT * nearly && nearly > 0.0 { CUT * nearly / 2.0 } else { most };
    if highest > 0.0 { highest } else { 1.0 }
}

/// The next higher number among 1, 2, 2.5 and 5 times a power of ten.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0].into_iter().find(|step| step * power >= least * 0.999);
    step.unwrap_or(10.0) * power
}

fn minute_step(minutes: f64) -> f64 {
    let steps = [0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0];
    steps.into_iter().find(|step| minutes / step <= MARKS).unwrap_or(480.0)
}

/// The number without trailing zeros.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The number rounded to an integer, with commas between thousands.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn text(x: f64, y: f64, class: &str, anchor: &str, text: &str) -> String {
    let text = escape(text);
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{text}</text>\n")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests;
