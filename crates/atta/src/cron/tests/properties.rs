//! Properties of every crontab. `ATTA_FUZZ_CASES` sets how many strings are parsed (default 20,000).

use std::collections::BTreeSet;

use chrono::{Datelike, TimeDelta, Timelike};
use proptest::prelude::*;
use proptest::test_runner::Config;

use super::at;
use crate::cron::moment::Minute;
use crate::cron::{Cron, CrontabFill, parse_crontab};

/// A field as text, and as the set that a slow and simple reading of the grammar gives.
fn field(min: u32, max: u32) -> impl Strategy<Value = (String, BTreeSet<u32>)> {
    let part = prop_oneof![
        4 => (min..=max).prop_map(|n| (n.to_string(), BTreeSet::from([n]))),
        2 => (min..max).prop_flat_map(move |a| (Just(a), a + 1..=max))
            .prop_map(|(a, b)| (format!("{a}-{b}"), (a..=b).collect())),
        2 => (1..=max + 3).prop_map(move |n| {
            (format!("*/{n}"), (min..=max).filter(|value| (value - min).is_multiple_of(n)).collect())
        }),
        2 => Just(("*".to_owned(), (min..=max).collect())),
    ];
    proptest::collection::vec(part, 1..4).prop_map(|parts| {
        let text: Vec<&str> = parts.iter().map(|(text, _)| text.as_str()).collect();
        (text.join(","), parts.iter().flat_map(|(_, set)| set.iter().copied()).collect())
    })
}

type Fields = [(String, BTreeSet<u32>); 5];

fn fields() -> impl Strategy<Value = Fields> {
    (field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 7))
        .prop_map(|(minute, hour, date, month, day)| [minute, hour, date, month, day])
}

fn pattern(fields: &Fields) -> String {
    fields.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join(" ")
}

fn naive(fields: &Fields, minute: Minute) -> bool {
    let [minutes, hours, dates, months, days] = fields.each_ref().map(|(_, set)| set);
    let days: BTreeSet<u32> = days.iter().map(|day| day % 7).collect();
    let time = minute.begin();
    let (date, day) =
        (dates.contains(&time.day()), days.contains(&(time.weekday().number_from_monday() % 7)));
    let by_day = if dates.len() < 31 && days.len() < 7 { date || day } else { date && day };
    minutes.contains(&time.minute())
        && hours.contains(&time.hour())
        && months.contains(&time.month())
        && by_day
}

fn payload() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        (-1e9..1e9).prop_map(|number: f64| number.into()),
        any::<String>().prop_map(Into::into),
    ];
    let value = leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            proptest::collection::hash_map(any::<String>(), inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    });
    proptest::collection::hash_map(any::<String>(), value, 0..4)
        .prop_map(|map| serde_json::Value::Object(map.into_iter().collect()))
}

proptest! {
    #![proptest_config(Config { cases: 6, ..Config::default() })]

    /// Compares every minute of a year per case.
    #[test]
    fn matching_agrees_with_a_naive_reading(fields in fields(), year in 2020i32..2032) {
        let item = Cron::task("t", &pattern(&fields)).unwrap();
        let first = Minute::of(at(&format!("{year}-01-01T00:00")));
        for minute in (first.0..first.0 + 366 * 24 * 60).map(Minute) {
            let time = minute.begin();
            prop_assert_eq!(item.matches(time), naive(&fields, minute), "{} at {}", pattern(&fields), time);
        }
    }
}

proptest! {
    #![proptest_config(Config { cases: 300, ..Config::default() })]

    #[test]
    fn the_next_time_is_the_first_that_matches(fields in fields(), minutes in 0i64..5_000_000, zone in 0usize..3) {
        let zones = [None, Some(chrono_tz::Tz::Europe__Paris), Some(chrono_tz::Tz::Australia__Lord_Howe)];
        let mut item = Cron::task("t", &pattern(&fields)).unwrap();
        if let Some(zone) = zones[zone] {
            item = item.time_zone(zone);
        }
        let from = at("2026-01-01T00:00") + TimeDelta::minutes(minutes);
        let Some(next) = item.next_after(from) else { return Ok(()) };
        prop_assert!(next > from && item.matches(next));
        for step in 1..(next - from).num_minutes().min(2_000) {
            prop_assert!(!item.matches(from + TimeDelta::minutes(step)));
        }
    }

    #[test]
    fn a_printed_item_can_be_parsed_to_the_same_item(
        fields in fields(),
        word in proptest::option::of(0usize..3),
        task in "[a-zA-Z_][a-zA-Z0-9_:/-]{0,20}",
        id in proptest::option::of("[a-zA-Z_][a-zA-Z0-9_-]{0,20}"),
        fill in any::<Option<u32>>(),
        max in proptest::option::of(1i16..),
        queue in proptest::option::of("[a-zA-Z0-9:_-]{1,20}"),
        key in proptest::option::of("[^\0]{1,40}"),
        priority in any::<Option<i16>>(),
        zone in proptest::option::of(0..chrono_tz::TZ_VARIANTS.len()),
        payload in proptest::option::of(payload()),
    ) {
        let pattern = word.map_or_else(|| pattern(&fields), |word| ["@daily", "1-9/3 * * feb sun", "@hourly"][word].into());
        let mut item = Cron::task(task, &pattern).unwrap();
        item = id.into_iter().fold(item, Cron::id);
        item = fill.into_iter().fold(item, |item, fill| item.fill(CrontabFill::seconds(fill.into())));
        item = max.into_iter().fold(item, Cron::max_attempts);
        item = queue.into_iter().fold(item, Cron::queue);
        item = key.into_iter().fold(item, Cron::job_key);
        item = priority.into_iter().fold(item, Cron::priority);
        item = zone.into_iter().fold(item, |item, zone| item.time_zone(chrono_tz::TZ_VARIANTS[zone]));
        item = payload.into_iter().fold(item, |item, payload| item.payload(payload));
        let line = item.to_string();
        let read: Cron = line.parse().map_err(|error| TestCaseError::fail(format!("{line}: {error}")))?;
        prop_assert_eq!(&read, &item);
        prop_assert_eq!(read.to_string(), line);
    }
}

const CRONTAB: &str = "# a comment\n30 4 * * 1 send_weekly_email ?fill=2d&max=10 {onboarding:false}\r\n\
    */5 1-5,7 * jan-mar mon-fri/2 a/b:c ?id=x&jobKey=a%20b&jobKeyMode=replace&tz=Europe/Paris {'a': [1, {b: \"\\u0041\"}]}\n\
    \n@daily rollup ?queue=q&priority=-5 {\"é\": 0x1F, n: -.5e3}";

/// Random bytes, or a crontab with some of its bytes changed, removed or doubled.
fn mangled(random: &mut fastrand::Rng) -> String {
    let mut bytes: Vec<u8> = if random.u8(..) < 64 {
        (0..random.usize(..80)).map(|_| random.u8(..)).collect()
    } else {
        CRONTAB.into()
    };
    for _ in 0..random.usize(..12) {
        let index = random.usize(..=bytes.len().saturating_sub(1));
        match random.u8(..4) {
            _ if bytes.is_empty() => {}
            0 => bytes[index] = random.u8(..),
            1 => bytes[index] = *random.choice(b" *,-/?&={}[]'\"\\:+%\n\r\t#@09azAZ").unwrap_or(&b' '),
            2 => drop(bytes.drain(index..(index + random.usize(..20)).min(bytes.len()))),
            _ => {
                let piece: Vec<u8> = bytes[index..(index + random.usize(..20)).min(bytes.len())].to_vec();
                let target = random.usize(..=bytes.len());
                drop(bytes.splice(target..target, piece));
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn no_text_makes_the_parser_panic() {
    let cases = std::env::var("ATTA_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20_000);
    let seed = std::env::var("ATTA_FUZZ_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    println!("ATTA_FUZZ_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..cases {
        let text = mangled(&mut random);
        match parse_crontab(&text) {
            Ok(items) => {
                let lines = text
                    .lines()
                    .map(|line| line.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}'));
                let meant = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).count();
                assert_eq!(items.len(), meant, "no line is left out of {text:?}");
                for item in items {
                    item.check().unwrap();
                    assert_eq!(item.to_string().parse::<Cron>().unwrap(), item, "{text:?}");
                }
            }
            Err(errors) => assert!(!errors.to_string().is_empty()),
        }
    }
}
