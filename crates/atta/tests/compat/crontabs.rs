//! Crontabs, read by Graphile Worker's own parser and by ours. `ATTA_FUZZ_SEED` repeats a run.

use std::io::Write;
use std::process::{Command, Stdio};

use atta::{Cron, parse_crontab};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::node::folder;

const VERSION: &str = "0.18.0";
/// 1 January 2024, in minutes.
const YEAR_2024: i64 = 1_704_067_200 / 60;

#[derive(Default, Serialize)]
struct Questions {
    texts: Vec<String>,
    /// Each with a minute when it is due.
    patterns: Vec<(String, i64)>,
    minutes: Vec<i64>,
}

#[derive(Deserialize)]
struct Answers {
    /// The items, or none if they were refused.
    texts: Vec<Option<Value>>,
    /// A 0 or a 1 for each of [`times_for`].
    patterns: Vec<String>,
}

fn ask(questions: &Questions) -> Answers {
    let mut node = Command::new(folder().join("node_modules/node/bin/node"));
    node.args(["crontab.js", VERSION]).current_dir(folder()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = node.spawn().expect("Node starts");
    let text = serde_json::to_string(questions).expect("questions are JSON");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("Node reads its questions");
    let output = child.wait_with_output().expect("Node ends");
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).expect("answers are JSON")
}

/// The same as in `node/crontab.js`.
fn times_for(minute: i64, others: &[i64]) -> Vec<i64> {
    let (day, time) = (minute.div_euclid(1440), minute.rem_euclid(1440));
    let of_day = (0..1440).map(|n| day * 1440 + n);
    let of_years = (0..731).map(|n| (day + n) * 1440 + time);
    of_day.chain(of_years).chain(others.iter().copied()).collect()
}

fn at(minute: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(minute * 60, 0).expect("a time in this century")
}

fn random() -> fastrand::Rng {
    let seed = std::env::var("ATTA_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("ATTA_FUZZ_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

fn field(random: &mut fastrand::Rng, min: u32, max: u32) -> String {
    let part = |random: &mut fastrand::Rng| match random.u8(..10) {
        0..3 => "*".to_owned(),
        3..5 => format!("*/{}", random.u32(1..=max + 2)),
        5..7 => {
            let first = random.u32(min..max);
            format!("{first}-{}", random.u32(first + 1..=max))
        }
        _ => format!("{:0width$}", random.u32(min..=max), width = random.usize(1..4)),
    };
    let parts: Vec<String> = (0..random.usize(1..4)).map(|_| part(random)).collect();
    parts.join(",")
}

fn pattern(random: &mut fastrand::Rng) -> String {
    let limits = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)];
    limits.map(|(min, max)| field(random, min, max)).join([" ", "\t", "  "][random.usize(..3)])
}

#[test]
fn our_matching_and_graphile_workers_agree_on_a_thousand_patterns() {
    let mut random = random();
    let minutes = (0..300).map(|_| YEAR_2024 + random.i64(0..20 * 366 * 1440)).collect();
    let mut questions = Questions { minutes, ..Questions::default() };
    let mut items = Vec::new();
    while items.len() < 1000 {
        let pattern = pattern(&mut random);
        let item = Cron::task("t", &pattern).expect("a pattern");
        // What is never due, such as 31 February, has any minute.
        let due = item.next_after(at(YEAR_2024)).map_or(YEAR_2024, |time| time.timestamp() / 60);
        questions.patterns.push((pattern, due));
        items.push(item);
    }
    let answers = ask(&questions);
    let mut hits = 0;
    for ((item, (pattern, due)), theirs) in items.iter().zip(&questions.patterns).zip(&answers.patterns) {
        let times = times_for(*due, &questions.minutes);
        assert_eq!(times.len(), theirs.len());
        for (minute, their) in times.into_iter().zip(theirs.bytes()) {
            assert_eq!(item.matches(at(minute)), their == b'1', "{pattern} at {}", at(minute));
            hits += usize::from(their == b'1');
        }
    }
    assert!(hits > 10_000, "they are about something: {hits}");
}

const PAYLOADS: [&str; 14] = [
    "{}",
    "{a: 1}",
    "{onboarding:false}",
    "{\"a\": [1, 2, {b: null}], 'c': \"d\",}",
    "{a: 0x1F, b: +.5, c: -5., d: 1e3, e: -0}",
    "{a: Infinity, b: -Infinity, c: NaN, d: 1e999}",
    "{$a_1: 'it\\'s', ünï: '\\u0041\\x41\\v\\z', \\u0061b: 2}",
    "{a: 1, a: 2, _cron: 3, __proto__: 4}",
    "{a: 12345678901234567890, b: 123456789012345678901234567890, c: -9223372036854775809}",
    "{a: 9007199254740993, b: 0.1, c: 1e-7, d: 1.7976931348623157e308}",
    "{/* a comment # */ a: 1 /* } */}",
    "{a: 'grüße 世界 😀', b: '?max=1 {x: 1}', c: ' spaced '}",
    "{a: '\\0'}",
    "{a: {b: {c: [[[]]]}}, true: 1, null: 2, if: 3}",
];

const OPTIONS: [&str; 22] = [
    "id=x",
    "id=a-b_C9",
    "id=_",
    "fill=1d",
    "fill=4w3d2h1m",
    "fill=0s1s010m",
    "max=1",
    "max=0025",
    "queue=a-b:C_9",
    "queue=9",
    "jobKey=k",
    "jobKey=a%20b%26c+d%3D",
    "jobKey=%E4%B8%96%zz%E9",
    "jobKey==&",
    "jobKeyMode=replace",
    "jobKeyMode=preserve_run_at",
    "priority=0",
    "priority=-5",
    "priority=0012",
    "m%61x=3",
    "",
    "&",
];

fn line(random: &mut fastrand::Rng) -> String {
    let task = ["t", "send_email", "_", "a/b:c-d", "Z9"][random.usize(..5)];
    let mut line = format!("{} {task}", pattern(random));
    if random.bool() {
        let options: Vec<&str> =
            (0..random.usize(1..5)).map(|_| OPTIONS[random.usize(..OPTIONS.len())]).collect();
        line.push_str(&format!(" ?{}", options.join("&")));
    }
    if random.bool() {
        line.push_str(&format!("  {}", PAYLOADS[random.usize(..PAYLOADS.len())]));
    }
    line
}

/// Some characters of it taken out, put in or doubled.
fn spoil(random: &mut fastrand::Rng, line: &str) -> String {
    const CHARACTERS: &[char] = &[
        ' ', '*', ',', '-', '/', '?', '&', '=', '{', '}', '[', '\'', '"', '\\', ':', '+', '%', '\n', '\r',
        '\t', '#', '@', '0', '7', '9', 'a', 'Z', '_', '\u{feff}', '\u{a0}', 's', 'm',
    ];
    let mut characters: Vec<char> = line.chars().collect();
    for _ in 0..random.usize(1..4) {
        let index = random.usize(..characters.len().max(1));
        match random.u8(..3) {
            0 if !characters.is_empty() => drop(characters.remove(index)),
            1 if !characters.is_empty() => characters[index] = CHARACTERS[random.usize(..CHARACTERS.len())],
            _ => characters.insert(index, CHARACTERS[random.usize(..CHARACTERS.len())]),
        }
    }
    characters.into_iter().collect()
}

/// What the database would refuse, and Graphile Worker finds out only then; and what may hide lines.
fn is_stricter_on_purpose(text: &str) -> bool {
    let errors = parse_crontab(text).expect_err("it was refused");
    let is_known = |message: &str| {
        ["max", "priority", "jobKey", "fill"]
            .iter()
            .any(|name| message.ends_with(&format!("is no value for {name}")))
            || message.starts_with("a carriage return is inside")
    };
    errors.iter().all(|error| is_known(error.message()))
}

/// As JavaScript has them: whole or not, numbers are the same.
fn with_plain_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::from(number.as_f64().expect("a number")),
        Value::Array(values) => values.into_iter().map(with_plain_numbers).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, value)| (name, with_plain_numbers(value))).collect()
        }
        other => other,
    }
}

/// What both read must mean the same: the lines that we print are read by Graphile Worker as the ones they come from.
#[test]
fn our_parser_and_graphile_workers_take_the_same_texts_for_the_same_items() {
    let mut random = random();
    let mut texts = Vec::new();
    for _ in 0..1500 {
        let line = line(&mut random);
        texts.extend([spoil(&mut random, &line), spoil(&mut random, &line), line]);
    }
    let theirs = ask(&Questions { texts: texts.clone(), ..Questions::default() }).texts;
    let (mut both, mut neither, mut printed, mut read) = (0, 0, Vec::new(), Vec::new());
    for (text, theirs) in texts.iter().zip(theirs) {
        match (parse_crontab(text), theirs) {
            (Err(_), None) => neither += 1,
            (Err(errors), Some(_)) => {
                assert!(is_stricter_on_purpose(text), "Graphile Worker reads this: {text:?}\n{errors}")
            }
            (Ok(items), None) => {
                let objections: Vec<String> = items.iter().flat_map(Cron::graphile_objections).collect();
                assert!(!objections.is_empty(), "Graphile Worker refuses this: {text:?}");
            }
            (Ok(items), Some(theirs)) => {
                both += 1;
                for item in &items {
                    assert_eq!(item.graphile_objections(), Vec::<String>::new(), "{text:?}");
                }
                let lines: Vec<String> = items.iter().map(Cron::to_string).collect();
                printed.push(lines.join("\n"));
                read.push((text, theirs));
            }
        }
    }
    assert!(both > 500 && neither > 500, "both kinds were there: {both} and {neither}");
    let again = ask(&Questions { texts: printed.clone(), ..Questions::default() }).texts;
    for (((text, items), printed), again) in read.into_iter().zip(printed).zip(again) {
        let again = again.unwrap_or_else(|| panic!("Graphile Worker refuses what we print: {printed}"));
        assert_eq!(
            with_plain_numbers(items),
            with_plain_numbers(again),
            "{text:?} was printed as {printed:?}"
        );
    }
}
