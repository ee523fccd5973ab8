//! `atta migrate --print-roles`, and the other commands as the roles that it creates.

use crate::support::Place;
use crate::{Run, atta};

/// A database with jobs and the roles, and a URL for each role.
struct Roles {
    place: Place,
}

impl Roles {
    async fn new() -> Roles {
        let place = Place::with_jobs().await;
        let prefix = place.db.name();
        let printed = atta(&["migrate", "--print-roles", "--role-prefix", prefix]);
        assert_eq!((printed.code, printed.err.as_str()), (0, ""));
        place.client.batch_execute(&printed.out).await.expect("the roles are made");
        for kind in ["producer", "worker", "reader"] {
            let make = format!("create role {prefix}_{kind}_login login in role {prefix}_{kind}");
            place.client.batch_execute(&make).await.expect("somebody to log in");
        }
        Roles { place }
    }

    fn atta(&self, kind: &str, words: &[&str]) -> Run {
        let login = format!("{}_{kind}_login@", self.place.db.name());
        let url = self.place.db.url().replace("postgres@", &login);
        atta(&[words, &["-c", url.as_str()]].concat())
    }
}

/// After a plain grant, row level security hides all rows: that must not look like an empty queue.
#[tokio::test]
async fn a_role_that_sees_no_rows_gets_an_error_and_not_zeros() {
    let roles = Roles::new().await;
    let login = format!("{}_producer_login", roles.place.db.name());
    let grant = format!(
        "grant usage on schema graphile_worker to {login};
         grant select on all tables in schema graphile_worker to {login}"
    );
    roles.place.client.batch_execute(&grant).await.expect("a plain grant");
    for words in [
        &["jobs"][..],
        &["jobs", "--json"],
        &["show", "1"],
        &["stats"],
        &["stats", "--json"],
        &["queues"],
        &["tasks"],
        &["workers"],
        &["cron", "list"],
    ] {
        let run = roles.atta("producer", words);
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{words:?}: {}", run.err);
        let is_explained = run.err.contains("row level security hides") && run.err.contains("--print-roles");
        assert!(is_explained, "{words:?}: {}", run.err);
    }
}

#[tokio::test]
async fn a_reader_can_use_every_command_that_reads() {
    let roles = Roles::new().await;
    for words in [
        &["jobs"][..],
        &["jobs", "--json"],
        &["show", "1"],
        &["show", "--key", "ready-key", "--json"],
        &["stats"],
        &["stats", "--json"],
        &["queues"],
        &["tasks"],
        &["workers"],
        &["cron", "list"],
        &["migrate", "--dry-run"],
        &["migrate"],
    ] {
        let run = roles.atta("reader", words);
        assert_eq!(run.code, 0, "{words:?}: {}", run.err);
        let same = roles.place.atta(words);
        assert_eq!(run.out.lines().count(), same.out.lines().count(), "{words:?}");
    }
    let before = roles.place.ids().await;
    for words in [
        &["add", "t"][..],
        &["complete", "1", "--yes"],
        &["fail", "1", "--yes"],
        &["reschedule", "1", "--priority", "1", "--yes"],
        &["retry", "6", "--yes"],
        &["remove", "--key", "ready-key", "--yes"],
        &["unlock", "5", "--yes"],
        &["cleanup"],
    ] {
        let run = roles.atta("reader", words);
        assert_eq!(run.code, 2, "{words:?}: {}", run.out);
        assert!(
            run.err.contains("permission denied") && run.err.contains("--print-roles"),
            "{words:?}: {}",
            run.err
        );
    }
    assert_eq!(roles.place.ids().await, before);
}

#[tokio::test]
async fn a_producer_adds_by_the_command_line() {
    let roles = Roles::new().await;
    let add_schema = format!("{}_add", roles.place.db.name());
    let file = crate::support::TextFile::new("producer.jsonl", &"{\"identifier\": \"many\"}\n".repeat(120));
    for words in
        [&["add", "email", "{\"to\": 1}", "--key", "k", "--queue", "q"][..], &["add", "--bulk", file.path()]]
    {
        let run = roles.atta("producer", &[words, &["-s", &add_schema]].concat());
        assert_eq!(run.code, 0, "{words:?}: {}", run.err);
    }
    let many = "select count(*) from graphile_worker.jobs where task_identifier = 'many'";
    assert_eq!(roles.place.value(many).await, "120");
    for words in [&["add", "email"][..], &["jobs"], &["show", "1"], &["run", "--once"]] {
        assert_eq!(roles.atta("producer", words).code, 2, "{words:?}");
    }
}

#[tokio::test]
async fn a_schema_that_does_not_have_what_a_command_needs_is_told_from_one_that_is_not_installed() {
    let roles = Roles::new().await;
    let add_schema = format!("{}_add", roles.place.db.name());
    for words in [&["jobs"][..], &["stats"], &["remove", "--key", "ready-key", "--yes"]] {
        let run = roles.place.atta(&[words, &["-s", &add_schema]].concat());
        assert_eq!(run.code, 2, "{words:?}: {}", run.out);
        let hint = format!(
            "hint: schema {add_schema:?} only has functions to add jobs; the jobs are in schema \"graphile_worker\": use -s \
             graphile_worker\n"
        );
        assert!(run.err.ends_with(&hint), "{words:?}: {}", run.err);
    }
    let file = crate::support::TextFile::new("hinted.jsonl", &"{\"identifier\": \"many\"}\n".repeat(120));
    for words in [&["add", "email"][..], &["add", "--bulk", file.path()], &["jobs"]] {
        let run = roles.atta("producer", words);
        assert_eq!(run.code, 2, "{words:?}: {}", run.out);
        let hint = format!("this role may add jobs: use atta add -s {add_schema}");
        assert!(run.err.contains(&hint), "{words:?}: {}", run.err);
    }
    // Without such a schema, the hint is the usual one.
    let none = roles.place.atta(&["jobs", "-s", "elsewhere"]);
    assert!(none.err.contains("schema \"elsewhere\" is not installed; run: atta migrate"), "{}", none.err);
}

#[test]
fn the_names_of_roles_can_be_chosen_and_are_checked() {
    let usual = atta(&["migrate", "--print-roles"]);
    assert!(
        usual.out.contains("\"graphile_worker_producer\"") && usual.out.ends_with("commit;\n"),
        "{}",
        usual.out
    );
    let chosen = atta(&["migrate", "--print-roles", "-s", "my \"jobs\"", "--role-prefix", "Shop"]);
    assert!(
        chosen.out.contains("to \"Shop_worker\"") && chosen.out.contains("\"my \"\"jobs\"\"\""),
        "{}",
        chosen.out
    );
    let long = atta(&["migrate", "--print-roles", "-s", &"x".repeat(60)]);
    assert_eq!(long.code, 2);
    assert!(long.err.contains("hint: choose another one: --role-prefix"), "{}", long.err);
    for words in [&["migrate", "--role-prefix", "x"][..], &["migrate", "--print-roles", "--print"]] {
        assert_eq!(atta(words).code, 2, "{words:?}");
    }
}
