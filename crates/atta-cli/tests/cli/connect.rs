//! Where the database is: `-c`, `DATABASE_URL`, the environment and files.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use testkit::Database;

use crate::{Run, command};

/// `atta migrate` with these arguments and variables.
fn migrate(words: &[&str], variables: &[(&str, &str)]) -> Run {
    let output = command(&[&["migrate"], words].concat()).envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// The port of the test's server.
fn port(db: &Database) -> String {
    let url = db.url();
    let (server, _) = url.rsplit_once('/').unwrap();
    server.rsplit_once(':').unwrap().1.to_owned()
}

/// A folder that is removed with the test.
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Home {
        let folder = std::env::temp_dir().join(format!("atta-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Home(folder)
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn a_database_can_be_named_in_every_way() {
    let db = Database::empty().await;
    let (port, name) = (port(&db), db.name().to_owned());
    let server = [("PGHOST", "127.0.0.1"), ("PGPORT", port.as_str()), ("PGUSER", "postgres")];
    let by_name = migrate(&["-c", &name], &server);
    assert_eq!((by_name.code, by_name.err.as_str()), (0, ""));
    assert!(by_name.out.contains("installed"), "{}", by_name.out);

    let home = Home::new("service");
    let service = format!("[here]\nhost=127.0.0.1\nport={port}\nuser=postgres\ndbname={name}\n");
    home.write(".pg_service.conf", &service, 0o644);
    let pairs = format!("host=127.0.0.1 port={port} user=postgres dbname={name}");
    let url = db.url();
    for (words, variables) in [
        (&["-c", pairs.as_str()][..], &[][..]),
        (&["-c", "service=here"], &[("HOME", home.path())]),
        (&[], &[("HOME", home.path()), ("PGSERVICE", "here")]),
        (&[], &[("DATABASE_URL", url.as_str())]),
        (&[], &[server[0], server[1], server[2], ("PGDATABASE", name.as_str())]),
    ] {
        let run = migrate(words, variables);
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{words:?} {variables:?}");
        assert!(run.out.ends_with("is up to date\n"), "{}", run.out);
    }
}

#[tokio::test]
async fn a_passfile_that_others_may_read_causes_a_warning() {
    let db = Database::empty().await;
    let home = Home::new("passfile");
    home.write(".pgpass", "*:*:*:*:hunter2\n", 0o644);
    let run = migrate(&["-c", &db.url()], &[("HOME", home.path())]);
    assert_eq!(run.code, 0, "{}", run.err);
    let wanted = format!("warning: the passfile {}/.pgpass is ignored: other users may read it", home.path());
    assert!(run.err.starts_with(&wanted) && !run.err.contains("hunter2"), "{}", run.err);
}

#[tokio::test]
async fn errors_have_a_hint() {
    let db = Database::empty().await;
    for (text, says) in [
        (format!("{}?schema=public", db.url()), "error: unknown connection option schema\nhint: "),
        (format!("{}?sslmode=require", db.url()), "server does not support TLS\nhint: sslmode is require"),
        (db.url() + "_gone", "does not exist (SQLSTATE 3D000)\nhint: create it: createdb "),
        (
            db.url().replace("postgres@", "nobody_at_all@"),
            "does not exist (SQLSTATE 28000)\nhint: check that role nobody_at_all exists and may log in; to use another \
             role: -c postgres://USER@HOST/DATABASE, or PGUSER\n",
        ),
        (
            db.url().replace("postgres@", "postgres:hun/ter2@"),
            "error: invalid connection string: there is an @",
        ),
        (
            format!("{}?sslrootcert=/nowhere/root.crt", db.url()),
            "error: sslrootcert: can't read /nowhere/root.crt",
        ),
    ] {
        let run = migrate(&["-c", &text], &[]);
        assert_eq!(run.code, 2, "{text}");
        assert!(run.err.contains(says) && !run.err.contains("ter2"), "{text}: {}", run.err);
    }
}

#[tokio::test]
async fn an_empty_variable_for_the_schema_counts_as_unset() {
    let db = Database::empty().await;
    let run = migrate(&["-c", &db.url()], &[("GRAPHILE_WORKER_SCHEMA", "")]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    assert!(run.out.contains("graphile_worker"), "{}", run.out);
    let given = migrate(&["-c", &db.url(), "-s", ""], &[]);
    assert!(given.code == 2 && given.err.contains("invalid schema name"), "{}", given.err);
}
