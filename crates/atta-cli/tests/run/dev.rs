//! `atta init` and `atta dev`: from an empty folder to a running worker, and all the ways in which it can end.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use testkit::Signal;
use tokio_postgres::{Client, NoTls};

use crate::{Folder, Worker, run, wait_for_file};

#[test]
fn init_writes_tasks_of_three_kinds_and_never_over_others() {
    let folder = Folder::new();
    folder.write("crontab", "# mine\n");
    let init = folder.atta(&["init"]);
    assert_eq!(init.code, 0, "{}", init.err);
    assert!(
        init.out.contains("wrote  ./tasks/hello.js\n") && init.out.contains("kept   ./crontab\n"),
        "{}",
        init.out
    );
    assert!(init.out.contains("atta dev"));
    assert_eq!(folder.read("crontab"), "# mine\n");
    for (name, is_program) in [("disk_space.sh", true), ("hello.js", false), ("count_words.py", false)] {
        let mode = fs::metadata(folder.path.join("tasks").join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o100 != 0, is_program, "{name}");
    }
    let again = folder.atta(&["init", "new/place"]);
    assert!(
        again.out.contains("wrote  new/place/crontab\n") && again.out.contains("cd new/place\n"),
        "{}",
        again.out
    );
    atta::parse_crontab(&folder.read("new/place/crontab")).unwrap();
}

async fn connect(folder: &Folder) -> Client {
    let url = folder.read(".atta/connection");
    let (client, connection) = tokio_postgres::connect(url.trim(), NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

async fn dev(folder: &Folder, log: &str, words: &[&str]) -> Worker {
    let worker = folder.start(log, &mut folder.command(&[&["dev"], words].concat()));
    worker.says("worker started").await;
    worker
}

async fn end(mut worker: Worker) -> String {
    worker.process.signal(Signal::Terminate);
    assert_eq!(worker.code().await, Some(0), "{}", worker.log());
    worker.log()
}

#[tokio::test]
async fn two_of_them_share_a_server_that_stops_with_the_last() {
    let folder = Folder::with_hello();
    let first = dev(&folder, "log.1", &[]).await;
    let url = folder.read(".atta/connection").trim().to_owned();
    assert!(
        first
            .log()
            .contains(&format!("PostgreSQL is up, with its data in .atta. Connect to it with\n\n  {url}\n"))
    );
    assert_eq!(folder.read(".atta/.gitignore"), "*\n");
    let mode = fs::metadata(folder.path.join(".atta/connection")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the connection string has a password in it");
    assert!(tokio_postgres::connect(&url.replace("postgres:", "postgres:not-"), NoTls).await.is_err());
    let client = connect(&folder).await;
    client.execute("select graphile_worker.add_job('hello')", &[]).await.unwrap();
    first.says("hello from job 1").await;
    // Commands in this folder find the server; a database that is given explicitly has precedence.
    assert_eq!(folder.atta(&["migrate"]).out, "schema \"graphile_worker\" is up to date\n");
    let elsewhere = run(folder.command(&["migrate"]).env("DATABASE_URL", "postgres://me@127.0.0.1:1/x"));
    assert!(elsewhere.err.contains("127.0.0.1:1"), "{}", elsewhere.err);

    let second = dev(&folder, "log.2", &["-j", "2"]).await;
    assert!(second.log().contains("PostgreSQL was already running"), "{}", second.log());
    let used = folder.atta(&["dev", "--reset", "--yes"]);
    assert!(
        used.code == 2 && used.err.contains("another `atta dev` is running in this folder"),
        "{}",
        used.err
    );
    assert!(end(first).await.contains("PostgreSQL keeps running for the other"));
    client.execute("select graphile_worker.add_job('hello')", &[]).await.unwrap();
    second.says("hello from job 2").await;
    end(second).await;
    assert!(!folder.has(".atta/connection"));
    assert!(tokio_postgres::connect(&url, NoTls).await.is_err());
    let gone = folder.atta(&["migrate"]);
    assert!(gone.err.contains("no database given"), "{}", gone.err);
}

#[tokio::test]
async fn tasks_of_a_language_that_is_not_here_are_left_out_and_the_others_run() {
    let folder = Folder::with_hello();
    folder.write("tasks/other.js", "module.exports = () => {};");
    let nowhere = ("ATTA_NODE", "/nowhere/node");
    let strict = run(folder.command(&["run", "-c", "postgres://me@127.0.0.1:1/x"]).envs([nowhere]));
    assert!(
        strict.code == 2 && strict.err.contains("is not the path of an executable program"),
        "{}",
        strict.err
    );
    assert!(strict.err.contains("hint: set it to the path of node, or unset it"), "{}", strict.err);
    let worker = folder.start("log", folder.command(&["dev"]).envs([nowhere]));
    worker.says("worker started").await;
    assert!(worker.log().contains(" tasks=1"), "{}", worker.log());
    assert!(worker.log().contains("their jobs are not claimed"), "{}", worker.log());
    end(worker).await;
}

#[tokio::test]
async fn nothing_is_left_behind_by_a_kill_and_data_stay_until_a_reset() {
    let folder = Folder::with_hello();
    let mut killed = dev(&folder, "log.1", &[]).await;
    let url = folder.read(".atta/connection");
    let client = connect(&folder).await;
    client
        .execute("select graphile_worker.add_job('hello', run_at := now() + interval '1 day')", &[])
        .await
        .unwrap();
    drop(client);
    killed.process.kill();
    // Its guard stops the server.
    wait_for_file(&folder.path.join(".atta/connection"), false).await;
    // After a power failure, the file contains the number of a process that belongs to another program by now.
    let stale = format!("{}\n/somewhere\n1700000000\n54321\n", std::process::id());
    wait_for_file(&folder.path.join(".atta/postgres/data/postmaster.pid"), false).await;
    folder.write(".atta/postgres/data/postmaster.pid", &stale);

    let again = dev(&folder, "log.2", &[]).await;
    assert_eq!(folder.read(".atta/connection"), url, "the connection string can be written down");
    let jobs = "select count(*) from graphile_worker.jobs";
    assert_eq!(connect(&folder).await.query_one(jobs, &[]).await.unwrap().get::<_, i64>(0), 1);
    end(again).await;

    let unsure = folder.atta(&["dev", "--reset"]);
    assert!(
        unsure.code == 2 && unsure.err.contains("hint: there is no terminal to ask on; use --yes"),
        "{}",
        unsure.err
    );
    let afresh = dev(&folder, "log.3", &["--reset", "--yes"]).await;
    assert_eq!(connect(&folder).await.query_one(jobs, &[]).await.unwrap().get::<_, i64>(0), 0);
    end(afresh).await;
}

#[test]
fn missing_binaries_are_reported_with_a_hint() {
    let folder = Folder::with_hello();
    let tasks = folder.atta(&["dev", "--tasks", "elsewhere"]);
    assert!(tasks.code == 2 && tasks.err.contains("hint: run `atta init`"), "{}", tasks.err);
    let binaries = run(folder.command(&["dev"]).env("ATTA_POSTGRES_BIN", "/nonexistent"));
    assert!(binaries.code == 2, "{}", binaries.err);
    assert!(
        binaries.err.contains("no initdb, pg_ctl and postgres in /nonexistent\nhint: "),
        "{}",
        binaries.err
    );
}

/// The server of the folder, wherever its files are.
fn cluster_of(folder: &Folder) -> testkit::Cluster {
    let place = fs::canonicalize(folder.path.join(".atta/postgres")).expect("it was made");
    let binaries = testkit::Binaries::find().expect("PostgreSQL is installed");
    let running = testkit::Cluster::running(&binaries, &place, None).expect("it can be read");
    running.expect("a server runs")
}

#[tokio::test]
async fn a_server_that_dies_is_started_again() {
    let folder = Folder::with_hello();
    let worker = dev(&folder, "log", &[]).await;
    let url = folder.read(".atta/connection");
    let server = cluster_of(&folder);
    server.kill().unwrap();
    worker.says("PostgreSQL stopped unexpectedly and was started again").await;
    assert_eq!(folder.read(".atta/connection"), url);
    let client = connect(&folder).await;
    client.execute("select graphile_worker.add_job('hello')", &[]).await.unwrap();
    worker.says("hello from job 1").await;
    end(worker).await;
    assert!(!folder.has(".atta/connection"), "it stops with the last");
}

#[tokio::test]
async fn a_server_that_can_not_be_started_again_ends_the_worker() {
    let folder = Folder::with_hello();
    let mut worker = dev(&folder, "log", &[]).await;
    let server = cluster_of(&folder);
    fs::remove_file(server.folder().join("data/global/pg_control")).unwrap();
    server.kill().unwrap();
    assert_eq!(worker.code().await, Some(2), "{}", worker.log());
    assert!(
        worker.log().contains("PostgreSQL stopped unexpectedly and can't be started again"),
        "{}",
        worker.log()
    );
}
