//! Options and arguments, and the errors for invalid ones.

use testkit::Database;

use crate::Folder;

#[test]
fn the_help_page_has_all_options_of_graphile_worker_and_ours() {
    let folder = Folder::new();
    for words in [&["--help"][..], &["run", "--help"]] {
        let help = folder.atta(words);
        assert_eq!((help.code, help.err.as_str()), (0, ""));
        for option in [
            "-c, --connection",
            "-s, --schema",
            "--schema-only",
            "--once",
            "-w, --watch",
            "--crontab",
            "-j, --jobs",
            "-m, --max-pool-size",
            "--poll-interval",
            "--no-prepared-statements",
            "--cleanup",
            "-C, --config",
            "--help",
            "--tasks",
            "--forbidden-flag",
            "--claims",
            "--log-format",
        ] {
            assert!(help.out.contains(option), "{option} is missing from {words:?}: {}", help.out);
        }
    }
    assert_eq!(folder.atta(&["--version"]).out, format!("atta {}\n", env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn a_script_for_graphile_worker_runs_as_it_is() {
    let db = Database::empty().await;
    let folder = Folder::with_hello();
    let url = db.url();
    for words in [
        &["-c", &url, "--once", "-j", "4", "-m", "20", "--poll-interval", "500", "--no-prepared-statements"]
            [..],
        &["--connection", &url, "--once", "--jobs=4", "--maxPoolSize", "1", "--pollInterval=500"],
        &["-c", &url, "-s", "my_jobs", "--schemaOnly"],
        &["-c", &url, "--cleanup", "GC_TASK_IDENTIFIERS,GC_JOB_QUEUES,DELETE_PERMAFAILED_JOBS"],
    ] {
        let run = folder.atta(words);
        assert_eq!((run.code, run.out.as_str()), (0, ""), "{words:?}: {}", run.err);
    }
    let client = db.client().await;
    client.execute("select my_jobs.add_job('hello')", &[]).await.unwrap();
}

#[tokio::test]
async fn connection_and_schema_go_before_and_after_any_command() {
    let db = Database::empty().await;
    let folder = Folder::with_hello();
    let url = db.url();
    for words in [
        &["-c", &url, "-s", "mine", "migrate"][..],
        &["migrate", "-c", &url, "-s", "mine"],
        &["-s", "mine", "migrate", "-c", &url],
        &["-c", &url, "-s", "mine", "run", "--once"],
        &["--once", "-s", "mine", "run", "-c", &url],
    ] {
        let run = folder.atta(words);
        assert_eq!(run.code, 0, "{words:?}: {}", run.err);
    }
    let schemas = "select nspname from pg_namespace where nspname in ('mine', 'graphile_worker')";
    let names: Vec<String> =
        db.client().await.query(schemas, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(names, ["mine"]);
}

#[test]
fn invalid_arguments_are_errors_and_not_ignored() {
    let folder = Folder::with_hello();
    for (words, said) in [
        (&["-j", "2", "migrate"][..], "--jobs is an option of the worker, and can't be given with 'migrate'"),
        (&["--once", "migrate", "--print"], "--once is an option of the worker"),
        (&["--once", "--schema-only"], "cannot be used with"),
        (&["--jobs", "0"], "must be at least 1"),
        (&["--jobs", "many"], "is not a whole number"),
        (&["--poll-interval", "soon"], "expected a duration"),
        (&["--cleanup", "EVERYTHING"], "GC_TASK_IDENTIFIERS"),
        (&["--claims", "firm"], "held, durable"),
        (&["--nonsense"], "unexpected argument"),
        (&["dance"], "unrecognized subcommand"),
        (&["delete", "7"], "a similar subcommand exists: 'remove'"),
        (&["list"], "a similar subcommand exists: 'jobs'"),
        (&["dev", "-c", "postgres://somewhere/db"], "uses its own database"),
        (&["show", "seven"], "is not a whole number"),
        (&["complete", "99999999999999999999"], "is out of range"),
        (&["add", "hello", "--priority", "high"], "is not a whole number"),
        (
            &["add", "hello", "@nowhere.json"],
            "can't read nowhere.json: No such file or directory (os error 2)\nhint: ",
        ),
        (&["add", "hello", "-"], "the payload on standard input is empty\nhint: "),
        (&["jobs"], "error: no database given\nhint: use -c postgres://"),
        (
            &["-c", "postgres://somewhere/db", "--crontab", "nowhere"],
            "can't read the crontab nowhere: No such file or directory (os error 2)\nhint: ",
        ),
    ] {
        let run = folder.atta(words);
        assert_eq!(run.code, 2, "{words:?}: {}", run.err);
        assert!(run.err.contains(said), "{words:?}: {}", run.err);
    }
}

#[tokio::test]
async fn missing_settings_are_reported_with_a_hint() {
    let folder = Folder::with_hello();
    let nowhere = folder.atta(&["run"]);
    assert_eq!(nowhere.code, 2);
    assert!(nowhere.err.contains("error: no database given\nhint: "), "{}", nowhere.err);

    let closed = folder.atta(&["--once", "-c", "postgres://someone:secret@127.0.0.1:1/app"]);
    assert_eq!(closed.code, 2);
    assert!(closed.err.contains("127.0.0.1:1") && !closed.err.contains("secret"), "{}", closed.err);

    let db = Database::migrated().await;
    let no_such = folder.atta(&["-c", &db.url().replace(db.name(), "no_such_database")]);
    assert_eq!(no_such.code, 2);
    assert!(no_such.err.contains("\"no_such_database\" does not exist"), "{}", no_such.err);

    let schema = folder.atta(&["-c", &db.url(), "-s", "pg_jobs"]);
    assert_eq!(schema.code, 2);
    assert!(schema.err.contains("invalid schema name \"pg_jobs\""), "{}", schema.err);

    let no_tasks = folder.atta(&["-c", &db.url(), "--tasks", "elsewhere"]);
    assert_eq!(no_tasks.code, 2);
    assert!(
        no_tasks.err.contains("no folder of tasks: elsewhere\nhint: run `atta init`"),
        "{}",
        no_tasks.err
    );

    let no_crontab = folder.atta(&["-c", &db.url(), "--crontab", "elsewhere"]);
    assert_eq!(no_crontab.code, 2);
    assert!(no_crontab.err.contains("can't read the crontab elsewhere"), "{}", no_crontab.err);

    folder.write("crontab", "* * * * * hello\n* * * * hello\n");
    let wrong = folder.atta(&["-c", &db.url()]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("the crontab crontab is invalid: line 2, column "), "{}", wrong.err);

    let empty = Folder::new();
    let nothing = empty.atta(&["-c", &db.url()]);
    assert_eq!(nothing.code, 2);
    assert!(nothing.err.contains("no tasks in the folder tasks\nhint: "), "{}", nothing.err);
}
