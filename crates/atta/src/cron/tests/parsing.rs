//! The grammar: what is accepted, what it means, and how an error is shown.

use serde_json::json;

use super::{at, item};
use crate::cron::{Cron, CrontabFill, parse_crontab};
use crate::{Error, IntoTaskHandlerResult, JobKeyMode, TaskHandler, WorkerContext};

#[derive(serde::Serialize, serde::Deserialize)]
struct Report;

impl TaskHandler for Report {
    const IDENTIFIER: &'static str = "report";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {}
}

#[test]
fn comments_blank_lines_tabs_and_crlf_are_accepted() {
    let text = "# comment\n\n30 4 * * 1 send_weekly_email\r\n  30 4 * * 1\tsend_weekly_email \
                ?id=two&fill=2d&max=10 {onboarding:false}  \r\n\t\n0 */4 * * * rollup";
    let items = parse_crontab(text).unwrap();
    let identifiers: Vec<&str> = items.iter().map(|item| item.identifier()).collect();
    assert_eq!(identifiers, ["send_weekly_email", "two", "rollup"]);
    let expected = Cron::task("send_weekly_email", "30 4 * * 1")
        .unwrap()
        .id("two")
        .fill(CrontabFill::days(2))
        .max_attempts(10)
        .payload(json!({ "onboarding": false }));
    assert_eq!(items[1], expected);
}

#[test]
fn all_options_are_read() {
    let read = item(
        "* * * * * a/b:c ?id=x-1&fill=1w&max=3&queue=q:1&jobKey=a%20b%26c+d&jobKeyMode=preserve_run_at&priority=-5",
    );
    let expected = Cron::task("a/b:c", "* * * * *")
        .unwrap()
        .id("x-1")
        .fill(CrontabFill::weeks(1))
        .max_attempts(3)
        .queue("q:1")
        .job_key("a b&c d")
        .job_key_mode(JobKeyMode::PreserveRunAt)
        .priority(-5);
    assert_eq!(read, expected);
}

#[test]
fn typed_items_equal_their_patterns() {
    let pairs = [
        (Cron::every_minute::<Report>(), "* * * * *"),
        (Cron::every_n_minutes::<Report>(5), "*/5 * * * *"),
        (Cron::hourly_at::<Report>(7), "7 * * * *"),
        (Cron::daily_at::<Report>(8, 0), "0 8 * * *"),
        (Cron::weekly_on::<Report>(chrono::Weekday::Sun, 8, 30), "30 8 * * 0"),
        (Cron::monthly_on::<Report>(31, 8, 30), "30 8 31 * *"),
    ];
    for (typed, pattern) in pairs {
        assert_eq!(typed.unwrap(), Cron::pattern::<Report>(pattern).unwrap());
    }
    for wrong in [
        Cron::daily_at::<Report>(24, 0),
        Cron::every_n_minutes::<Report>(0),
        Cron::every_n_minutes::<Report>(60),
    ] {
        assert!(wrong.unwrap_err().is_config());
    }
}

#[test]
fn sunday_is_0_and_7_also_at_the_end_of_a_range() {
    let (sunday, monday) = (at("2026-03-01T00:00"), at("2026-03-02T00:00"));
    for pattern in ["* * * * 0", "* * * * 7", "* * * * 5-7", "* * * * sun", "* * * * FRI-sun", "* * * * 6-7"]
    {
        let item = Cron::task("t", pattern).unwrap();
        assert!(item.matches(sunday) && !item.matches(monday), "{pattern}");
    }
}

#[test]
fn steps_start_at_the_smallest_value() {
    let item = Cron::task("t", "0 0 */2 * *").unwrap();
    assert!(item.matches(at("2026-03-01T00:00")) && !item.matches(at("2026-03-02T00:00")));
    assert!(Cron::task("t", "*/99999999999999999999 * * * *").unwrap().matches(at("2026-03-02T05:00")));
}

#[test]
fn if_day_of_month_and_day_of_week_are_restricted_either_may_match() {
    let item = Cron::task("t", "0 0 13 * 5").unwrap();
    assert!(item.matches(at("2026-03-13T00:00")) && item.matches(at("2026-03-06T00:00")));
    assert!(item.matches(at("2026-04-13T00:00")) && !item.matches(at("2026-04-14T00:00")));
    // A field counts as restricted if it excludes a value, not if it has no star.
    let all_dates = Cron::task("t", "0 0 1-31 * 5").unwrap();
    assert!(!all_dates.matches(at("2026-03-12T00:00")));
}

#[test]
fn an_error_is_shown_with_its_position() {
    let errors = parse_crontab("# ok\n\t0 25 * * * report\n").unwrap_err();
    assert_eq!(
        errors.to_string(),
        "line 2, column 4: \"25\" is not a valid hour; expected *, */n, or numbers and ranges from 0 to 23\n  \
         \t0 25 * * * report\n  \t  ^"
    );
    assert!(Error::from(errors).is_config());
}

#[test]
fn every_error_has_a_line_and_a_column() {
    let mistakes = [
        ("61 * * * * t", 1),
        ("1,,2 * * * * t", 3),
        ("5-5 * * * * t", 3),
        ("1-70 * * * * t", 3),
        ("*/0 * * * * t", 3),
        ("5/10 * * * * t", 1),
        ("-1 * * * * t", 1),
        ("* * 0 * * t", 5),
        ("* * * 13 * t", 7),
        ("* * * * 8 t", 9),
        ("* * * * sat-mon t", 13),
        ("* * * * sun-SUN t", 13),
        ("* * * * * t ?", 14),
        ("* * * * * t ? {}", 14),
        ("* * * * * t {a:\r1}", 16),
        ("  # by a Mac\r* * * * * t", 13),
        ("*\r* * * * t", 2),
        ("* * * * * * t", 11),
        ("* * * *", 8),
        ("* * * * *", 10),
        ("* * * * * 1task", 11),
        ("* * * * * ta.sk", 13),
        ("* * * * * task?fill=1d", 15),
        ("* * * * * t ?fil=1d", 14),
        ("* * * * * t ?fill=1x", 19),
        ("* * * * * t ?max=5&max=6", 20),
        ("* * * * * t ?max=0", 18),
        ("* * * * * t ?max=99999", 18),
        ("* * * * * t ?priority=--1", 23),
        ("* * * * * t ?tz=Mars/Olympus", 17),
        ("* * * * * t ?jobKeyMode=none", 25),
        ("* * * * * t ?id=", 17),
        ("* * * * * t {a: oh}", 17),
        ("* * * * * t {a: 1", 18),
        ("* * * * * t [1]", 13),
        ("* * * * * t # why", 13),
        ("* * * * * t {} ?max=1", 22),
        ("@dayly t", 1),
        ("@reboot t", 1),
        ("was für ein Tag ist heute", 1),
    ];
    for (line, column) in mistakes {
        let text = format!("0 0 * * * fine\n{line}");
        let errors = parse_crontab(&text).unwrap_err();
        let first = errors.iter().next().unwrap();
        assert_eq!((first.line(), first.column()), (2, column), "{line}\n{errors}");
        assert!(!first.expected().is_empty() && first.text() == line);
    }
}

#[test]
fn all_errors_of_a_crontab_are_reported_together() {
    let errors =
        parse_crontab("60 24 * * * 1\n* * * * * t ?x=1&max=y {\n* * * * * a\n* * * * * a").unwrap_err();
    let places: Vec<(usize, usize)> = errors.iter().map(|error| (error.line(), error.column())).collect();
    assert_eq!(places, [(1, 1), (1, 4), (1, 13), (2, 14), (2, 22), (2, 25), (4, 11)]);
}

#[test]
fn another_error_does_not_hide_a_duplicate_identifier() {
    let errors = parse_crontab("* * * * * a\n61 * * * * a {\n* * * * * a ?id=1").unwrap_err();
    let places: Vec<(usize, usize)> = errors.iter().map(|error| (error.line(), error.column())).collect();
    assert_eq!(places, [(2, 1), (2, 12), (2, 15), (3, 17)]);
}

#[test]
fn a_long_text_is_shortened_in_an_error() {
    let errors = parse_crontab(&format!("{} * * * * a", "9".repeat(10_000))).unwrap_err();
    assert!(errors.to_string().chars().count() < 400, "{errors}");
}

#[test]
fn one_identifier_is_one_item() {
    let errors = parse_crontab("* * * * * a\n@daily   b ?id=a").unwrap_err();
    let error = errors.iter().next().unwrap();
    assert_eq!((errors.len(), error.line(), error.column()), (1, 2, 10));
    assert!(parse_crontab("* * * * * a\n* * * * * a ?id=b").is_ok());
}

#[test]
fn macros_stand_for_patterns() {
    for (word, pattern) in [("@hourly", "0 * * * *"), ("@weekly", "0 0 * * 0"), ("@yearly", "0 0 1 1 *")] {
        let (short, long) = (Cron::task("t", word).unwrap(), Cron::task("t", pattern).unwrap());
        let from = at("2026-02-03T04:05");
        assert_eq!(short.next_after(from), long.next_after(from));
        assert_eq!(short.to_string(), format!("{word} t"));
    }
}

#[test]
fn constructs_that_node_would_reject_are_listed() {
    for line in ["*/5 1-5,7 * * 0-7 t ?id=a&fill=1d {a: 1}", "* * * * 7 a/b"] {
        assert_eq!(item(line).graphile_objections(), Vec::<String>::new());
    }
    let refused = [
        ("@daily t", 1),
        ("1-9/2 * * jan,FEB mon-fri t ?tz=Europe/Paris", 4),
        ("* * * * * t ?jobKey=a&jobKeyMode=unsafe_dedupe", 1),
        ("* * * * * t ?jobKey=a%0Ab", 1),
    ];
    for (line, count) in refused {
        assert_eq!(item(line).graphile_objections().len(), count, "{line}");
    }
}

#[test]
fn values_that_the_database_would_reject_are_rejected_before() {
    let item = || Cron::task("t", "* * * * *").unwrap();
    assert!(item().check().is_ok());
    let wrong = [
        item().max_attempts(0),
        item().queue("x".repeat(129)),
        item().job_key(""),
        item().id("a\0b"),
        Cron::task("x".repeat(129), "* * * * *").unwrap(),
        item().payload(std::collections::HashMap::from([((1, 2), 3)])),
    ];
    for item in wrong {
        assert!(item.check().unwrap_err().is_config());
    }
}

#[test]
fn a_byte_order_mark_and_unicode_spaces_count_as_spaces() {
    assert_eq!(parse_crontab("\u{feff}* *\u{a0}* *\t* t\u{2003}\n").unwrap().len(), 1);
}

#[test]
fn the_next_time_is_found_or_there_is_none() {
    let from = at("2026-03-01T08:00");
    let next = |pattern: &str| Cron::task("t", pattern).unwrap().next_after(from);
    assert_eq!(next("* * * * *"), Some(at("2026-03-01T08:01")));
    assert_eq!(next("0 8 * * *"), Some(at("2026-03-02T08:00")));
    assert_eq!(next("0 0 29 2 *"), Some(at("2028-02-29T00:00")));
    assert_eq!(next("0 0 31 2 *"), None);
    let leap = Cron::task("t", "0 0 29 2 *").unwrap();
    assert_eq!(leap.next_after(at("2096-03-01T00:00")), Some(at("2104-02-29T00:00")));
    assert_eq!(leap.next_after(chrono::DateTime::<chrono::Utc>::MAX_UTC), None);
    let own = Cron::task_matching("t", |digest| digest.day_of_week == 3 && digest.hour == 5);
    assert_eq!(own.next_after(from), Some(at("2026-03-04T05:00")));
}

#[test]
fn a_match_function_that_panics_does_not_match() {
    assert!(!Cron::task_matching("t", |_| panic!("on purpose")).matches(at("2026-03-01T08:00")));
}
