//! Properties of every chart, however the soak went.

use super::super::verdict;
use super::*;

/// Forty samples of every measure, with a spike and a gap, and a name that needs escaping.
fn series() -> Series {
    let mut text = "# rate: 12345\n# server: PostgreSQL <15> & \"more\"\n# cores: 2\n".to_owned();
    text.push_str(
        "seconds,latency_p50_ms,latency_p99_ms,backlog,added_per_second,completed_per_second,worker_cpu_percent,\
         worker_memory_bytes,connections,dead_rows,jobs_table_bytes,index_bytes jobs_pkey1,queues_table_bytes,\
         atta_tables_bytes\n",
    );
    for n in 1..=40 {
        let spike = if n == 20 { 900.0 } else { 2.0 };
        let p50 = if n == 7 { String::new() } else { "0.9".to_owned() };
        text.push_str(&format!(
            "{},{p50},{spike},0,12345,12000,35,{},9,{},4000000,{},90112,81920\n",
            10 * n,
            2e7 + 1e5 * f64::from(n % 3),
            1000 * (n % 6),
            1_000_000 * n,
        ));
    }
    Series::parse(&text).unwrap()
}

/// Checks that tags open and close in order, that attributes are quoted, and that no character is unescaped: enough for
/// our charts.
fn assert_well_formed(svg: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = svg;
    while let Some((before, after)) = rest.split_once('<') {
        assert!(!before.contains('>') || open.last() == Some(&"style"), "a bare > in {before:?}");
        for entity in before.split('&').skip(1) {
            assert!(
                ["amp;", "lt;", "gt;", "quot;"].iter().any(|known| entity.starts_with(known)),
                "{before:?}"
            );
        }
        let (tag, after) = after.split_once('>').expect("a tag that does not end");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag:?}");
        assert!(!tag.contains('<'), "{tag:?}");
        rest = after;
        let name = tag.trim_matches('/').split_whitespace().next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?} stay open");
    assert!(rest.trim().is_empty());
}

#[test]
fn every_measure_has_its_panel_and_the_text_is_well_formed() {
    let series = series();
    let judgements = verdict::judge(&series).unwrap();
    let svg = svg(&series, &judgements);
    assert_well_formed(&svg);
    assert_eq!(judgements.len(), 13);
    assert_eq!(svg.matches("class=\"curve\"").count(), 13);
    for judgement in &judgements {
        assert!(svg.contains(&format!(">{}</text>", escape(&judgement.measure.title))), "{judgement:?}");
    }
    assert!(svg.contains("PostgreSQL &lt;15&gt; &amp; &quot;more&quot;"));
    assert!(svg.contains("12 of 13 flat"), "an index grows");
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn a_spike_does_not_flatten_the_rest() {
    let series = series();
    let judgements = verdict::judge(&series).unwrap();
    let p99 = judgements.iter().find(|one| one.measure.column == "latency_p99_ms").unwrap();
    let panel = Panel::new(&series, p99);
    assert!(panel.top < 20.0, "{}", panel.top);
    assert!(panel.y(900.0) >= PANEL_HEAD);
    assert!(panel.head().contains("at most 900"));
}

#[test]
fn steps_and_numbers_are_round() {
    assert_eq!(round_step(0.3), 0.5);
    assert_eq!(round_step(21.0), 25.0);
    assert_eq!(round_step(60.0), 100.0);
    assert_eq!(minute_step(120.0), 20.0);
    assert_eq!(minute_step(3.0), 0.5);
    assert_eq!(grouped(1_234_567.0), "1,234,567");
    assert_eq!(short(2.50), "2.5");
}

#[test]
fn a_long_soak_keeps_its_extremes_and_few_points() {
    let mut text = "seconds,backlog\n".to_owned();
    for n in 1..=720 {
        text.push_str(&format!("{},{}\n", 10 * n, 1000 * (n % 6)));
    }
    let series = Series::parse(&text).unwrap();
    let judgements = verdict::judge(&series).unwrap();
    let curve = Panel::new(&series, &judgements[0]).curve();
    // Once below the curve, twice around the band, and the curve itself; and two corners at the bottom.
    assert_eq!(curve.matches(',').count(), 4 * STRETCHES + 2);
    let stretch = Stretch::of(&[(10.0, 5.0), (20.0, 1.0), (30.0, 2.0)]);
    assert_eq!((stretch.time, stretch.least, stretch.median, stretch.most), (20.0, 1.0, 2.0, 5.0));
}
