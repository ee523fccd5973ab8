//! `atta jobs` and `atta show`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};
use testkit::SetClock;

use crate::command;
use crate::support::Place;

fn ids(jobs: &Value) -> Vec<i64> {
    let jobs = jobs.as_array().expect("an array");
    jobs.iter().map(|job| job["id"].as_i64().expect("a job has an id")).collect()
}

#[tokio::test]
async fn jobs_are_listed_as_a_table_without_colours_or_cuts() {
    let place = Place::with_jobs().await;
    let run = place.atta(&["jobs"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let lines: Vec<&str> = run.out.lines().collect();
    let words: Vec<Vec<&str>> = lines
        .iter()
        .map(|line| line.split("  ").filter(|word| !word.is_empty()).map(str::trim).collect())
        .collect();
    assert_eq!(
        words[0],
        ["ID", "STATE", "TASK", "QUEUE", "KEY", "DUE", "TRIED", "WORKER", "SINCE", "FAILED AT", "ERROR"]
    );
    assert_eq!(words[1][..4], ["1", "ready", "email", "ready-key"]);
    assert_eq!(words[2][..4], ["2", "waiting", "email", "serial"]);
    assert_eq!(words[3], ["3", "scheduled", "resize", "in 5 min", "0/25"]);
    assert_eq!(words[4], ["4", "retrying", "resize", "in 3 h", "2/25", "5 min ago", "timed out badly"]);
    assert_eq!(words[5][1..5], ["running", "report", "serial", "running-key"]);
    assert!(words[5].ends_with(&["1/25", "node-1", "2 h ago"]), "{words:?}");
    assert!(words[6].ends_with(&["3/3", "3 h ago", "no such host"]), "{words:?}");
    assert!(!run.out.contains('\u{1b}'));
}

#[tokio::test]
async fn each_filter_selects_the_matching_jobs() {
    let place = Place::with_jobs().await;
    for (words, found) in [
        (vec!["--state", "ready"], vec![1]),
        (vec!["--state", "locked,failed"], vec![5, 6]),
        (vec!["--state", "scheduled", "--state", "retrying"], vec![3, 4]),
        (vec!["--task", "email"], vec![1, 2]),
        (vec!["--queue", "serial"], vec![2, 5]),
        (vec!["--key", "ready-key"], vec![1]),
        (vec!["--key", "ready-key", "--task", "resize"], vec![]),
        (vec!["--worker", "node-1"], vec![5]),
        (vec!["--error", "such"], vec![6]),
        (vec!["--older-than", "1h"], vec![]),
        (vec!["--older-than", "0s"], vec![1, 2, 3, 4, 5, 6]),
        (vec!["--limit", "2", "--after", "3"], vec![4, 5]),
        (vec!["--newest", "--limit", "2"], vec![6, 5]),
        (vec!["--newest", "--limit", "2", "--after", "5"], vec![4, 3]),
        (vec!["--failed-since", "10m"], vec![4]),
        (vec!["--failed-since", "1970-01-01T00:00:00Z"], vec![4, 6]),
        (vec!["--failed-since", "1m"], vec![]),
        (vec!["--running-for", "1h"], vec![5]),
        (vec!["--running-for", "3h"], vec![]),
    ] {
        let all = [vec!["jobs", "--json"], words.clone()].concat();
        assert_eq!(ids(&place.json(&all)), found, "{words:?}");
    }
}

/// This machine's clock is a day ahead.
#[tokio::test]
async fn an_age_counts_from_the_time_of_the_database() {
    let place = Place::with_jobs().await;
    let clock = SetClock::new(std::env::temp_dir().join(format!("{}-clock", place.db.name())));
    clock.set(86_400);
    let url = place.db.url();
    let old =
        "update graphile_worker._private_jobs set created_at = now() - interval '13 hours' where id = 2";
    place.client.batch_execute(old).await.expect("a job is made older");
    for words in
        [&["jobs", "--older-than", "12h", "--count"][..], &["remove", "--older-than", "12h", "--yes"]]
    {
        let mut command = command(&[words, &["-c", &url]].concat());
        clock.give_to(&mut command);
        let output = command.output().expect("atta runs");
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && out.contains('1'), "{words:?}: {out}");
    }
    assert_eq!(place.ids().await, "1 3 4 5 6");
}

#[tokio::test]
async fn jobs_are_counted_by_the_same_filters() {
    let place = Place::with_jobs().await;
    for (words, count) in [
        (vec![], 6),
        (vec!["--task", "email"], 2),
        (vec!["--failed-since", "1d"], 2),
        (vec!["--queue", "none"], 0),
    ] {
        let run = place.atta(&[vec!["jobs", "--count"], words.clone()].concat());
        assert_eq!((run.code, run.out, run.err.as_str()), (0, format!("{count}\n"), ""), "{words:?}");
        let json = place.json(&[vec!["jobs", "--count", "--json"], words.clone()].concat());
        assert_eq!(json, json!({ "count": count }), "{words:?}");
    }
    assert_eq!(place.atta(&["jobs", "--count", "--newest"]).code, 2);
    let wrong = place.atta(&["jobs", "--running-for", "2026-05-01T08:00:00Z"]);
    assert!(wrong.code == 2 && wrong.err.contains("expected a duration"), "{}", wrong.err);
}

#[tokio::test]
async fn a_job_as_json_has_the_names_of_its_columns() {
    let place = Place::with_jobs().await;
    let job = &place.json(&["jobs", "--json", "--state", "ready"])[0];
    let names: Vec<&String> = job.as_object().unwrap().keys().collect();
    assert_eq!(
        names,
        [
            "attempts",
            "created_at",
            "flags",
            "id",
            "key",
            "last_error",
            "locked_at",
            "locked_by",
            "max_attempts",
            "payload",
            "priority",
            "queue_name",
            "revision",
            "run_at",
            "state",
            "task_identifier",
            "updated_at"
        ]
    );
    assert_eq!(
        (&job["state"], &job["flags"], &job["payload"]),
        (&json!("ready"), &json!(["x", "y"]), &json!({ "to": "a" }))
    );
    assert_eq!(&place.json(&["show", "1", "--json"]), job);
    assert_eq!(&place.json(&["show", "--key", "ready-key", "--json"]), job);
}

#[tokio::test]
async fn a_page_names_the_option_for_the_next_one_and_an_empty_list_prints_no_jobs() {
    let place = Place::with_jobs().await;
    let first = place.atta(&["jobs", "--limit", "4"]);
    assert_eq!((first.code, first.out.lines().count()), (0, 5));
    assert_eq!(first.err, "there are more; for the next: --after 4\n");
    let last = place.atta(&["jobs", "--limit", "4", "--after", "4"]);
    assert_eq!((last.out.lines().count(), last.err.as_str()), (3, ""));
    let none = place.atta(&["jobs", "--task", "nothing"]);
    assert_eq!((none.code, none.out.as_str(), none.err.as_str()), (0, "", "no jobs\n"));
    assert_eq!(place.json(&["jobs", "--task", "nothing", "--json"]), json!([]));
}

#[tokio::test]
async fn a_job_is_shown_in_full() {
    let place = Place::with_jobs().await;
    let run = place.atta(&["show", "4"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    for line in [
        "job        4\n",
        "state      retrying\n",
        "task       resize\n",
        "attempts   2 of 25\n",
        "(in 3 h)\n",
        "error      timed out\n           badly\n",
        "payload    {}\n",
    ] {
        assert!(run.out.contains(line), "{line:?}: {}", run.out);
    }
}

#[tokio::test]
async fn a_missing_job_is_reported_with_exit_code_1() {
    let place = Place::new().await;
    let run = place.atta(&["show", "7"]);
    assert_eq!((run.code, run.out.as_str()), (1, ""));
    assert!(run.err.starts_with("error: there is no job 7\nhint: "), "{}", run.err);
    assert_eq!(place.atta(&["show", "--key", "k"]).code, 1);
    assert_eq!(place.atta(&["show"]).code, 2);
    assert_eq!(place.atta(&["show", "seven"]).code, 2);
}

#[tokio::test]
async fn watching_repeats_the_list_and_ends_quietly_when_the_pipe_is_closed() {
    let place = Place::with_jobs().await;
    let url = place.db.url();
    let mut child = command(&["jobs", "--watch=0.1", "-c", &url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("atta starts");
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut headings = 0;
    while headings < 2 {
        let mut line = String::new();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "it goes on by itself");
        headings += usize::from(line.contains("STATE"));
    }
    drop(out);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

/// Every write to it fails.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn data_that_can_not_be_written_are_an_error() {
    let place = Place::with_jobs().await;
    for words in [&["jobs"][..], &["jobs", "--json"], &["show", "1"], &["migrate", "--print"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = crate::command(words);
        let output = command.env("DATABASE_URL", place.db.url()).stdout(full).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {err}");
        assert!(err.contains("error: can't write to standard output: No space left"), "{words:?}: {err}");
    }
}
