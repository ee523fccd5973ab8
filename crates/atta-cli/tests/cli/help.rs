//! Help pages, completions, manual pages; and errors that all commands have in common.
//!
//! The help pages are compared with the files in `help/`. After an intended change, write them again:
//! `ATTA_WRITE_HELP=1 cargo test -p atta-cli --test cli help`.

use std::process::Stdio;

use testkit::Database;

use crate::support::Place;
use crate::{atta, command};

const PAGES: [&str; 19] = [
    "add",
    "jobs",
    "show",
    "complete",
    "fail",
    "reschedule",
    "retry",
    "remove",
    "unlock",
    "queues",
    "tasks",
    "workers",
    "stats",
    "cleanup",
    "cron check",
    "cron next",
    "cron list",
    "completions",
    "man",
];

/// Commands that need a database, with arguments that make them connect.
const COMMANDS: [&[&str]; 13] = [
    &["add", "t"],
    &["jobs"],
    &["show", "1"],
    &["complete", "1", "--yes"],
    &["fail", "--all", "--yes"],
    &["reschedule", "1", "--priority", "1", "--yes"],
    &["retry", "--all", "--yes"],
    &["remove", "--key", "k", "--yes"],
    &["unlock", "--all", "--yes"],
    &["queues"],
    &["tasks"],
    &["stats"],
    &["cron", "list"],
];

#[test]
fn help_pages_match_the_stored_ones() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/help");
    for page in PAGES {
        let mut words: Vec<&str> = page.split(' ').collect();
        words.push("--help");
        let run = atta(&words);
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{page}");
        let file = format!("{folder}/{}.txt", page.replace(' ', "-"));
        if std::env::var_os("ATTA_WRITE_HELP").is_some() {
            std::fs::write(&file, &run.out).unwrap();
        }
        let kept = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(
            run.out, kept,
            "the help page of {page} has changed; if that is meant, see the head of this file"
        );
    }
}

#[test]
fn every_command_has_a_line_in_the_overview() {
    let overview = atta(&["--help"]).out;
    for page in PAGES {
        let name = page.split(' ').next().unwrap();
        let is_listed = overview.lines().any(|line| {
            line.strip_prefix("  ")
                .and_then(|line| line.strip_prefix(name))
                .is_some_and(|rest| rest.starts_with("  "))
        });
        assert!(is_listed, "{name}: {overview}");
    }
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = atta(&["completions", shell]);
        assert_eq!((run.code, run.err.as_str()), (0, ""));
        assert!(run.out.contains("reschedule") && run.out.contains("older-than"), "{shell}");
    }
    assert_eq!(atta(&["completions", "cmd"]).code, 2);
    let page = atta(&["man"]);
    assert_eq!(page.code, 0);
    assert!(page.out.contains(".TH atta 1") && page.out.contains("reschedule"), "{}", page.out);
    let folder = std::env::temp_dir().join(format!("atta-man-{}", std::process::id()));
    let written = atta(&["man", "--out", folder.to_str().unwrap()]);
    assert_eq!((written.code, written.out.as_str()), (0, ""), "{}", written.err);
    for page in ["atta.1", "atta-jobs.1", "atta-cron-next.1"] {
        assert!(folder.join(page).is_file(), "{page}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn the_error_for_a_missing_schema_names_the_command_that_installs_it() {
    let db = Database::empty().await;
    let url = db.url();
    for words in COMMANDS {
        let run = atta(&[words, &["-c", url.as_str()][..]].concat());
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{words:?}");
        assert!(
            run.err.contains("hint: schema \"graphile_worker\" is not installed; run: atta migrate"),
            "{words:?}: {}",
            run.err
        );
    }
    let other = Place::with_jobs().await;
    let run = other.atta(&["jobs", "-s", "somewhere else"]);
    assert!(run.err.contains("schema \"somewhere else\" is not installed"), "{}", run.err);
}

#[test]
fn the_error_for_an_unreachable_database_has_a_hint() {
    for words in COMMANDS {
        let nowhere = atta(words);
        assert_eq!(nowhere.code, 2, "{words:?}");
        assert!(nowhere.err.starts_with("error: no database given\nhint: "), "{words:?}: {}", nowhere.err);
    }
    let closed = atta(&["jobs", "-c", "postgres://someone:secret@127.0.0.1:1/app"]);
    assert_eq!(closed.code, 2);
    assert!(closed.err.contains("can't connect") && closed.err.contains("\nhint: "), "{}", closed.err);
    assert!(!closed.err.contains("secret"), "{}", closed.err);
}

#[tokio::test]
async fn the_error_for_missing_privileges_names_the_role_that_has_them() {
    let place = Place::with_jobs().await;
    let role = format!("guest_of_{}", place.db.name());
    place.client.batch_execute(&format!("create role {role} login")).await.unwrap();
    let url = place.db.url().replace("postgres@", &format!("{role}@"));
    for words in COMMANDS {
        let run = atta(&[words, &["-c", url.as_str()][..]].concat());
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{words:?}");
        assert!(
            run.err.contains("permission denied") && run.err.contains("hint: connect as the role that owns"),
            "{words:?}: {}",
            run.err
        );
    }
    place.client.batch_execute(&format!("drop role {role}")).await.unwrap();
}

#[tokio::test]
async fn a_reader_that_has_gone_away_is_no_error() {
    let place = Place::new().await;
    let fill = "insert into graphile_worker._private_tasks (identifier) values ('many');
      insert into graphile_worker._private_jobs (task_id) select 1 from generate_series(1, 5000)";
    place.client.batch_execute(fill).await.unwrap();
    let url = place.db.url();
    for words in [
        &["jobs", "--limit", "5000", "-c", &url][..],
        &["jobs", "--json", "--limit", "5000", "-c", &url],
        &["completions", "zsh"],
        &["jobs", "--help"],
    ] {
        let mut child = command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), told.as_str()), (Some(0), ""), "{words:?}");
    }
}

#[test]
fn a_misspelt_command_or_option_gets_a_suggestion() {
    let command = atta(&["jbos"]);
    assert_eq!(command.code, 2);
    assert!(command.err.contains("jobs"), "{}", command.err);
    let option = atta(&["jobs", "--tsak", "x"]);
    assert_eq!(option.code, 2);
    assert!(option.err.contains("--task"), "{}", option.err);
}
