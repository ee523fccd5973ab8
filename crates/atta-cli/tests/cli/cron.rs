//! `atta cron`.

use serde_json::{Value, json};

use crate::support::{Place, TextFile, run_with_input};

const CRONTAB: &str = "# comment\n\n0 4 * * * report ?id=nightly {a: 1}\n30 */6 * * * tidy\n";

#[test]
fn a_valid_crontab_is_reported_as_valid() {
    let file = TextFile::new("right", CRONTAB);
    let run = run_with_input(&["cron", "check", file.path()], "");
    assert_eq!(
        (run.code, run.out, run.err.as_str()),
        (0, format!("{} is valid: 2 items\n", file.path()), "")
    );
    let json = run_with_input(&["cron", "check", "-", "--json", "--strict"], CRONTAB);
    assert_eq!(json.code, 0, "{}", json.err);
    assert_eq!(
        serde_json::from_str::<Value>(&json.out).unwrap(),
        json!({ "ok": true, "items": 2, "errors": [], "objections": [] })
    );
}

#[test]
fn all_errors_of_a_crontab_are_shown_with_a_caret() {
    let wrong = "0 25 * * * report\n* * * * *\n";
    let run = run_with_input(&["cron", "check", "-"], wrong);
    assert_eq!(run.code, 1);
    assert!(
        run.out.starts_with("line 1, column 3: ") && run.out.contains("\n  0 25 * * * report\n    ^\n"),
        "{}",
        run.out
    );
    assert!(run.out.contains("line 2, column "), "{}", run.out);
    assert_eq!(run.err, "error: - has 2 errors\n");
    let json = run_with_input(&["cron", "check", "-", "--json"], wrong);
    assert_eq!(json.code, 1);
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (&json["ok"], &json["errors"][0]["line"], &json["errors"][0]["column"]),
        (&json!(false), &json!(1), &json!(3))
    );
    assert_eq!(json["errors"][0]["text"], "0 25 * * * report");
}

#[test]
fn strict_reports_what_node_would_reject() {
    let crontab = "# ours\n@daily one\n0 8 * * mon two ?tz=Europe/Paris\n0 8 * * 1 three\n";
    assert_eq!(run_with_input(&["cron", "check", "-"], crontab).code, 0);
    let run = run_with_input(&["cron", "check", "-", "--strict"], crontab);
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(
        run.out.contains("line 2: graphile-worker rejects ")
            && run.out.contains("line 3: graphile-worker rejects "),
        "{}",
        run.out
    );
    assert!(!run.out.contains("line 4"), "{}", run.out);
    let json = run_with_input(&["cron", "check", "-", "--strict", "--json"], crontab);
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (&json["ok"], &json["objections"][0]["line"], &json["objections"][0]["identifier"]),
        (&json!(false), &json!(2), &json!("one"))
    );
}

#[test]
fn the_next_runs_of_all_items_come_in_their_order() {
    let file = TextFile::new("next", CRONTAB);
    let words = ["cron", "next", file.path(), "-n", "4", "--from", "2026-03-01T00:30:00Z"];
    let json = run_with_input(&[&words[..], &["--json"]].concat(), "");
    assert_eq!((json.code, json.err.as_str()), (0, ""));
    assert_eq!(
        serde_json::from_str::<Value>(&json.out).unwrap(),
        json!([
            { "at": "2026-03-01T00:30:00Z", "identifier": "tidy", "task": "tidy" },
            { "at": "2026-03-01T04:00:00Z", "identifier": "nightly", "task": "report" },
            { "at": "2026-03-01T06:30:00Z", "identifier": "tidy", "task": "tidy" },
            { "at": "2026-03-01T12:30:00Z", "identifier": "tidy", "task": "tidy" },
        ])
    );
    let run = run_with_input(&words, "");
    let lines: Vec<&str> = run.out.lines().collect();
    assert_eq!(lines.len(), 5, "{}", run.out);
    assert!(
        lines[2].starts_with("2026-03-01 04:00  ") && lines[2].ends_with("report  nightly"),
        "{}",
        run.out
    );
    let ten = run_with_input(&["cron", "next", file.path(), "--json"], "");
    assert_eq!(serde_json::from_str::<Value>(&ten.out).unwrap().as_array().unwrap().len(), 10);
}

#[test]
fn an_invalid_or_missing_crontab_has_no_next_run() {
    let wrong = run_with_input(&["cron", "next", "-"], "* * * * * 1\n");
    assert_eq!((wrong.code, wrong.out.as_str()), (2, ""));
    assert!(wrong.err.starts_with("error: - has 1 error\nline 1, column 11: "), "{}", wrong.err);
    for command in ["check", "next"] {
        let missing = run_with_input(&["cron", command, "/nowhere/crontab"], "");
        assert_eq!(missing.code, 2);
        assert!(missing.err.starts_with("error: can't read /nowhere/crontab: "), "{}", missing.err);
    }
}

#[tokio::test]
async fn known_items_are_listed_with_the_next_run_of_a_crontab() {
    let place = Place::new().await;
    let none = place.atta(&["cron", "list"]);
    assert_eq!((none.code, none.out.as_str()), (0, ""));
    let known = "insert into graphile_worker._private_known_crontabs values
        ('nightly', '2026-01-01Z', '2026-02-01 04:00Z'), ('old', '2025-01-01Z', null)";
    place.client.batch_execute(known).await.unwrap();
    assert_eq!(
        place.json(&["cron", "list", "--json"]),
        json!([
            { "identifier": "nightly", "known_since": "2026-01-01T00:00:00Z", "last_execution": "2026-02-01T04:00:00Z" },
            { "identifier": "old", "known_since": "2025-01-01T00:00:00Z", "last_execution": null },
        ])
    );
    let file = TextFile::new("list", CRONTAB);
    let listed = place.json(&["cron", "list", "--crontab", file.path(), "--json"]);
    assert!(listed[0]["next_execution"].as_str().unwrap().ends_with("T04:00:00Z"), "{listed}");
    assert_eq!(
        (&listed[1]["next_execution"], &listed[2]["identifier"], &listed[2]["known_since"]),
        (&Value::Null, &json!("tidy"), &Value::Null)
    );
    let run = place.atta(&["cron", "list", "--crontab", file.path()]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert!(
        run.out.contains("2026-02-01T04:00:00Z")
            && run.out.contains("not in the crontab")
            && run.out.contains("not known yet"),
        "{}",
        run.out
    );
}

/// More runs than anybody reads would use up the memory.
#[test]
fn the_number_of_runs_has_limits() {
    for number in ["0", "10001", "1000000000000", "-1"] {
        let run = run_with_input(&["cron", "next", "-", &format!("-n={number}")], CRONTAB);
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{number}");
        assert!(run.err.starts_with("error: ") && run.err.contains("1..=10000"), "{number}: {}", run.err);
    }
    let run =
        run_with_input(&["cron", "next", "-", "-n=10000", "--json"], "0 0 29 2 * rare\n* * * * * often\n");
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert_eq!(serde_json::from_str::<Vec<Value>>(&run.out).unwrap().len(), 10_000);
}

/// As in graphile-worker: JSON has no such numbers, and JavaScript writes them as null.
#[test]
fn numbers_that_json_lacks_are_valid() {
    let crontab = "0 4 * * * report {a: NaN, b: Infinity, c: -Infinity, d: 1e999, e: 0x1F}\n";
    let run = run_with_input(&["cron", "check", "-", "--strict"], crontab);
    assert_eq!((run.code, run.out.as_str()), (0, "- is valid: 1 item\n"), "{}", run.err);
}
