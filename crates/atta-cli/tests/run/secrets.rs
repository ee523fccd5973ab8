//! Passwords are shown nowhere: not in the log at its most verbose, not in an error, not by a command that shows
//! settings.
//!
//! Uses a separate server that requires a password.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use testkit::{Cluster, Signal};
use tokio_postgres::{Client, NoTls};

use crate::{Folder, Run, run};

/// Part of every password here, right or wrong, also in a URL.
const SECRET: &str = "s3cr3t";
const PASSWORD: &str = "s3cr3t @/?:'x";
const IN_URL: &str = "s3cr3t%20%40%2F%3F%3A%27x";

const HBA: &str = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";

struct Server {
    cluster: Cluster,
    admin: Client,
}

impl Server {
    async fn start() -> Server {
        let settings = ["shared_buffers=16MB", "password_encryption=scram-sha-256"];
        let cluster = Cluster::temporary_with(&testkit::binaries(), &settings, &[("pg_hba.conf", HBA)]);
        let cluster = cluster.expect("a server that asks for passwords");
        let socket = format!(
            "host={} port={} user=postgres dbname=postgres",
            cluster.folder().display(),
            cluster.port()
        );
        let (admin, connection) =
            tokio_postgres::connect(&socket, NoTls).await.expect("the socket is open to all");
        tokio::spawn(connection);
        let server = Server { cluster, admin };
        server.run("create role me login superuser").await;
        server.set_password(PASSWORD).await;
        server
    }

    async fn run(&self, sql: &str) {
        self.admin.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    async fn set_password(&self, password: &str) {
        self.run(&format!("alter role me password '{}'", password.replace('\'', "''"))).await;
    }

    fn url(&self, login: &str) -> String {
        format!("postgres://{login}@127.0.0.1:{}/postgres", self.cluster.port())
    }
}

/// A connection string, variables of the environment, and whether the password is right.
type Way<'a> = (String, &'a [(&'a str, &'a str)], bool);

fn assert_kept(run: &Run, what: &str) {
    let told = format!("{}{}", run.out, run.err);
    assert!(!told.contains(SECRET), "{what}: {told}");
    assert!(!told.contains("panicked"), "{what}: {told}");
}

/// With all possible log messages.
fn verbose(mut command: Command) -> Command {
    command.env("ATTA_LOG", "trace,atta=trace").env("RUST_BACKTRACE", "full");
    command
}

#[tokio::test]
async fn the_log_never_contains_passwords() {
    let server = Server::start().await;
    let folder = Folder::with_hello();
    folder.script("fails", "echo wrong >&2; exit 1");
    let url = server.url(&format!("me:{IN_URL}"));
    let mut worker = folder.start("log", &mut verbose(folder.command(&["run", "-c", &url])));
    worker.says("worker started").await;
    server.run("select graphile_worker.add_job('hello'); select graphile_worker.add_job('fails')").await;
    worker.says("hello from job").await;
    worker.says("exit code 1").await;
    server.set_password("another s3cr3t").await;
    server.run("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'me'").await;
    worker.says("password authentication failed").await;
    server.set_password(PASSWORD).await;
    worker.says_times("hello from job", 1).await;
    worker.process.signal(Signal::Terminate);
    assert!(worker.code().await.is_some());
    let log = worker.log();
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "{log}");
    assert!(!log.contains(SECRET), "{log}");
}

#[tokio::test]
async fn no_command_prints_passwords_wherever_they_come_from() {
    let server = Server::start().await;
    let folder = Folder::with_hello();
    let port = server.cluster.port();
    let pass = |name: &str, password: &str| {
        let escaped = password.replace('\\', "\\\\").replace(':', "\\:");
        folder.write(name, &format!("*:*:*:*:{escaped}\n"));
        let path = folder.path.join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    };
    let (right, wrong) = (pass("right", PASSWORD), pass("wrong", "wrong s3cr3t"));
    let pair = |password: &str| {
        let quoted = password.replace('\'', "\\'");
        format!("host=127.0.0.1 port={port} user=me dbname=postgres password='{quoted}'")
    };
    let plain = server.url("me");
    let ways: [Way<'_>; 8] = [
        (server.url(&format!("me:{IN_URL}")), &[], true),
        (pair(PASSWORD), &[], true),
        (plain.clone(), &[("PGPASSWORD", PASSWORD)], true),
        (plain.clone(), &[("PGPASSFILE", &right)], true),
        (server.url("me:wrong-s3cr3t"), &[], false),
        (pair("wrong s3cr3t"), &[], false),
        (plain.clone(), &[("PGPASSWORD", "wrong s3cr3t")], false),
        (plain.clone(), &[("PGPASSFILE", &wrong)], false),
    ];
    for (connection, variables, is_right) in &ways {
        for words in [
            &["migrate"][..],
            &["config"],
            &["config", "--json"],
            &["run", "--once"],
            &["add", "hello", "--json"],
            &["workers"],
            &["workers", "--json"],
            &["stats", "--json"],
        ] {
            let mut command = verbose(folder.command(words));
            command.env("ATTA_LOG_FORMAT", "json");
            let ran = run(command.env("DATABASE_URL", connection).envs(variables.iter().copied()));
            let is_config = words[0] == "config";
            let wanted = if *is_right || is_config { 0 } else { 2 };
            assert_eq!(ran.code, wanted, "{words:?} {variables:?}: {}", ran.err);
            if wanted == 2 {
                assert!(ran.err.contains("password authentication failed"), "{words:?}: {}", ran.err);
            }
            assert_kept(&ran, &format!("{words:?}"));
        }
    }
}

#[test]
fn errors_for_invalid_connection_strings_contain_no_passwords() {
    let folder = Folder::with_hello();
    for connection in [
        "postgres://me:s3cr3t@127.0.0.1:1/app",
        "postgres://me:s3cr3t@nobody.invalid/app",
        "postgres://me:s3cr3t@127.0.0.1:port/app",
        "postgres://me:s3/cr3t s3cr3t@127.0.0.1/app",
        "postgres://me:s3cr3t?x@127.0.0.1/app",
        "postgres://me:s3cr3t%zz@127.0.0.1/app",
        "postgres://me:s3cr3t@[::1/app",
        "postgres://127.0.0.1:1/app?password=s3cr3t&user=me",
        "postgres://127.0.0.1:1/app?sslpassword=s3cr3t",
        "postgres://127.0.0.1:1/app?user=me&password=s3cr3t&nonsense=1",
        "postgres:/me:s3cr3t@127.0.0.1/app",
        "me:s3cr3t@127.0.0.1:5432/app",
        "mysql://me:s3cr3t@127.0.0.1/app",
        "host=127.0.0.1 port=1 user=me password=s3cr3t",
        "host=127.0.0.1 port=1 user=me password='s3cr3t",
        "host=127.0.0.1 port=1 user=me password=my s3cr3t",
        "host=127.0.0.1 sslpassword=s3cr3t",
    ] {
        for words in [&["migrate"][..], &["run", "--once"], &["jobs", "--json"]] {
            let by_flag = run(&mut verbose(folder.command(&[words, &["-c", connection]].concat())));
            assert_eq!(by_flag.code, 2, "{words:?} {connection}");
            assert_kept(&by_flag, connection);
            let by_variable = run(verbose(folder.command(words)).env("DATABASE_URL", connection));
            assert_kept(&by_variable, connection);
        }
        for words in [&["config"][..], &["config", "--json"]] {
            assert_kept(&folder.atta(&[words, &["-c", connection]].concat()), connection);
        }
        // In the wrong place on the command line, where clap quotes what it does not accept.
        for words in
            [&[connection][..], &["migrate", connection], &["--jobs", connection], &["show", connection]]
        {
            let stray = folder.atta(words);
            assert_eq!(stray.code, 2, "{words:?}");
            assert_kept(&stray, connection);
        }
        let attached = folder.atta(&["migrate", &format!("--nonsense={connection}")]);
        assert_kept(&attached, connection);
        // In a settings file, alone and in a line with an error.
        folder.write("atta.toml", &format!("connection = {}\n", serde_json::Value::from(connection)));
        assert_kept(&folder.atta(&["config"]), connection);
        for broken in [format!("connection = \"{connection}\n"), format!("jobs = \"{connection}\"\n")] {
            folder.write("atta.toml", &broken);
            let wrong = folder.atta(&["config"]);
            assert_eq!(wrong.code, 2, "{broken}");
            assert!(wrong.err.contains("line 1"), "{}", wrong.err);
            assert_kept(&wrong, &broken);
        }
        fs::remove_file(folder.path.join("atta.toml")).unwrap();
    }
}
