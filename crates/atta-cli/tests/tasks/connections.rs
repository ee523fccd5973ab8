//! `helpers.query` and `helpers.withPgClient`, with the project's own `pg` from npm and `psycopg` from PyPI.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use testkit::Cluster;
use tokio_postgres::Client;

use crate::rough::atta;
use crate::support::{Folder, add, count_jobs, database, last_error, node, node_folder};

/// A version that supports all usual versions of Python.
const PSYCOPG: &str = "psycopg[binary]==3.2.13";

/// The folder that `pip install --target` has filled, once for all test runs.
fn python_packages() -> &'static Path {
    static PACKAGES: OnceLock<PathBuf> = OnceLock::new();
    PACKAGES.get_or_init(|| {
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-psycopg-3.2.13");
        if !made.exists() {
            let making = made.with_extension(std::process::id().to_string());
            let mut pip = Command::new("python3");
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PSYCOPG, "--target"]);
            let installed = pip.arg(&making).status();
            assert!(installed.expect("python3 is installed").success(), "pip install {PSYCOPG}");
            // Another process may have been faster; then its folder stays.
            let _ = fs::rename(&making, &made);
        }
        made
    })
}

/// A project whose `node_modules` contains `pg`, as after `npm install pg`.
fn with_pg(project: Folder) -> Folder {
    node();
    let packages = node_folder().canonicalize().unwrap().join("node_modules");
    symlink(packages, project.path().join("node_modules")).unwrap();
    project
}

/// Runs the worker until nothing is due, and returns its log.
fn run_once(command: &mut Command) -> String {
    let Output { status, stderr, .. } =
        command.env("PYTHONPATH", python_packages()).stderr(Stdio::piped()).output().expect("atta runs");
    let log = String::from_utf8_lossy(&stderr).into_owned();
    assert!(status.success(), "{log}");
    log
}

async fn make_notes(client: &Client) {
    client.batch_execute("create table notes (id serial primary key, what text not null)").await.unwrap();
}

/// All notes, in the order of their texts.
async fn notes(client: &Client) -> Vec<String> {
    let rows = client.query("select what from notes order by what collate \"C\"", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// The first lines of the errors of failed jobs.
async fn errors(client: &Client) -> Vec<String> {
    let sql = "select task_identifier || ': ' || split_part(last_error, E'\\n', 1) from graphile_worker.jobs
               where last_error is not null order by 1";
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Runs jobs one after the other on few connections: a task would find the state that the previous one left.
async fn add_in_order(client: &Client, tasks: &[&str]) {
    for task in tasks {
        let sql = "select graphile_worker.add_job($1, queue_name => 'one by one', max_attempts => 1)";
        client.execute(sql, &[task]).await.unwrap();
    }
}

const TASKS: [&str; 8] = ["asks", "throws", "asks", "breaks", "asks", "forgets", "asks", "commits"];

#[tokio::test]
async fn javascript_tasks_have_connections_of_the_project_s_own_pg() {
    let (db, client) = database().await;
    make_notes(&client).await;
    let begin = "await c.query('begin'); await c.query(\"insert into notes (what) values ('of WHO')\");";
    let task = |who: &str, rest: &str| {
        let body = begin.replace("WHO", who) + rest;
        format!("module.exports = (payload, helpers) => helpers.withPgClient(async (c) => {{ {body} }});")
    };
    let asks = "module.exports = async (payload, { query, job }) => {
      const { rows } = await query('select $1::int + 1 as sum, now() as now', [41]);
      if (rows[0].sum !== 42 || !(rows[0].now instanceof Date)) throw new Error(JSON.stringify(rows));
      await query('insert into notes (what) values ($1)', [`asked ${job.id}`]);
    };";
    let project = with_pg(Folder::new())
        .file("tasks/asks.js", asks)
        .file("tasks/throws.js", &task("throws", "throw new Error('thrown within a transaction');"))
        .file("tasks/breaks.js", &task("breaks", "await c.query('select 1 / 0');"))
        .file("tasks/forgets.js", &task("forgets", ""))
        .file("tasks/commits.js", &task("commits", "await c.query('commit');"));
    add_in_order(&client, &TASKS).await;
    let log = run_once(&mut atta(project.path(), &db.url(), &["1", "--once"]));
    let failed = ["breaks: division by zero", "throws: thrown within a transaction"];
    assert_eq!(errors(&client).await, failed, "{log}");
    assert_eq!(notes(&client).await, ["asked 1", "asked 3", "asked 5", "asked 7", "of commits"]);
    assert!(log.contains("left a transaction open, which was rolled back"), "{log}");
}

#[tokio::test]
async fn python_tasks_have_connections_of_the_project_s_own_psycopg() {
    let (db, client) = database().await;
    make_notes(&client).await;
    let asks = "def task(payload, helpers):
    rows = helpers.query('select %s::int + 1 as sum, now() as now', [41])
    assert rows[0].sum == 42 and rows[0]['now'].tzinfo, rows
    assert helpers.query('insert into notes (what) values (%s)', [f'asked {helpers.job.id}']) == []
";
    let plain = |who: &str, rest: &str| {
        format!(
            "def work(connection):
    connection.execute('begin')
    connection.execute(\"insert into notes (what) values ('of {who}')\")
    {rest}
def task(payload, helpers):
    helpers.with_pg_client(work)
"
        )
    };
    // The same with coroutines, and with psycopg's own context managers.
    let later = "async def work(connection):
    async with connection.transaction():
        await connection.execute(\"insert into notes (what) values ('of WHO')\")
        REST
async def task(payload, helpers):
    rows = await helpers.query('select 1 as one')
    assert rows == [{'one': 1}], rows
    await helpers.with_pg_client(work)
    await helpers.with_pg_client(lambda connection: connection.execute('select 1'))
";
    let later = |who: &str, rest: &str| later.replace("WHO", who).replace("REST", rest);
    let project = Folder::new()
        .file("tasks/asks.py", asks)
        .file("tasks/throws.py", &plain("throws", "raise KeyError('thrown within a transaction')"))
        .file("tasks/breaks.py", &plain("breaks", "connection.execute('select 1 / 0')"))
        .file("tasks/forgets.py", &plain("forgets", "pass"))
        .file("tasks/commits.py", &plain("commits", "connection.execute('commit')"))
        .file("tasks/later_throws.py", &later("later_throws", "raise KeyError('thrown later')"))
        .file("tasks/later_commits.py", &later("later_commits", "pass"))
        .file(
            "tasks/mixes.py",
            &later("mixes", "pass").replace("async def task", "def task").replace("await helpers", "helpers"),
        );
    add_in_order(&client, &TASKS).await;
    add_in_order(&client, &["later_throws", "later_commits", "mixes"]).await;
    let log = run_once(&mut atta(project.path(), &db.url(), &["1", "--once"]));
    let failed = [
        "breaks: DivisionByZero: division by zero",
        "later_throws: KeyError: 'thrown later'",
        "mixes: TypeError: a coroutine as callback needs a coroutine as task: async def task(payload, helpers)",
        "throws: KeyError: 'thrown within a transaction'",
    ];
    assert_eq!(errors(&client).await, failed, "{log}");
    let committed = ["asked 1", "asked 3", "asked 5", "asked 7", "of commits", "of later_commits"];
    assert_eq!(notes(&client).await, committed);
    assert!(log.contains("left a transaction open, which was rolled back"), "{log}");
}

#[tokio::test]
async fn many_tasks_use_connections_at_a_time() {
    let (db, client) = database().await;
    make_notes(&client).await;
    // Each task waits until three tasks of its language have run at the same time.
    let together = "select count(*) from (
          select from pg_stat_activity where datname = current_database() and query like '%together LANGUAGE'
          union all select from notes where what = 'LANGUAGE') as seen";
    let of = |language: &str| together.replace("LANGUAGE", language);
    let javascript = format!(
        "module.exports = (payload, {{ withPgClient, job }}) => withPgClient(async (client) => {{
      for (;;) {{
        await client.query('select pg_sleep(0.05) -- together js');
        const {{ rows }} = await client.query(`{} -- together js`);
        if (Number(rows[0].count) >= 3) break;
      }}
      await client.query('insert into notes (what) select $1 from generate_series(1, 3)', ['js']);
    }});",
        of("js")
    );
    let python = format!(
        "def work(connection):
    while True:
        connection.execute('select pg_sleep(0.05) -- together py')
        if connection.execute(\"\"\"{} -- together py\"\"\").fetchone()[0] >= 3:
            break
    connection.execute(\"insert into notes (what) select 'py' from generate_series(1, 3)\")
def task(payload, helpers):
    helpers.with_pg_client(work)
",
        of("py")
    );
    let later = "async def task(payload, helpers):
    for _ in range(5):
        await helpers.query('select pg_sleep(0.05) -- together later')
    await helpers.query('insert into notes (what) select %s from generate_series(1, 3)', ['later'])
";
    let project = with_pg(Folder::new())
        .file("tasks/javascript.js", &javascript)
        .file("tasks/python.py", &python)
        .file("tasks/later.py", later);
    for _ in 0..20 {
        for task in ["javascript", "python", "later"] {
            add(&client, task, "{}").await;
        }
    }
    let log = run_once(&mut atta(project.path(), &db.url(), &["12", "--once"]));
    assert_eq!(errors(&client).await, Vec::<String>::new(), "{log}");
    let notes = notes(&client).await;
    for who in ["js", "py", "later"] {
        assert_eq!(notes.iter().filter(|note| *note == who).count(), 60, "{who}: {log}");
    }
}

/// Which users may log in, and how.
const HBA: &str = "
local     all  postgres                   trust
local     all  all                        scram-sha-256
host      all  postgres     127.0.0.1/32  trust
hostssl   all  tls_only     127.0.0.1/32  scram-sha-256
hostnossl all  plain_only   127.0.0.1/32  scram-sha-256
";

/// A password with as many special characters as possible, also in a URL and in key=value pairs.
const PASSWORD: &str = r"it's a \ p@ss/w:rd? %41#";
const IN_URL: &str = "it's%20a%20%5C%20p%40ss%2Fw%3Ard%3F%20%2541%23";
const IN_PAIRS: &str = r"'it\'s a \\ p@ss/w:rd? %41#'";

#[tokio::test]
async fn tasks_connect_with_all_settings_of_the_worker() {
    let key = rcgen::generate_simple_self_signed(vec!["db.example".into()]).unwrap();
    let files = [
        ("pg_hba.conf", HBA),
        ("server.crt", &key.cert.pem()),
        ("server.key", &key.signing_key.serialize_pem()),
    ];
    let settings = ["ssl=on", "shared_buffers=16MB", "password_encryption=scram-sha-256"];
    let cluster = Cluster::temporary_with(&testkit::binaries(), &settings, &files).unwrap();
    let (mut client, connection) =
        tokio_postgres::connect(&cluster.url("postgres"), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    atta::migrate(&mut client, &atta::Schema::default()).await.unwrap();
    make_notes(&client).await;
    for role in ["tls_only", "plain_only"] {
        let password = PASSWORD.replace('\'', "''");
        client
            .batch_execute(&format!("create role {role} superuser login password '{password}'"))
            .await
            .unwrap();
    }

    let says = "select 'LANGUAGE ' || current_user || ' ' || current_setting('work_mem') || ' '
        || current_setting('application_name') || case when inet_server_addr() is null then ' socket' else '' end
        || case when (select ssl from pg_stat_ssl where pid = pg_backend_pid()) then ' tls' else '' end as said";
    let javascript = format!(
        "module.exports = async (payload, {{ query }}) => {{
      const {{ rows }} = await query(`{}`);
      await query('insert into notes (what) values ($1)', [rows[0].said]);
    }};",
        says.replace("LANGUAGE", "js")
    );
    let python = format!(
        "def task(payload, helpers):
    said = helpers.query('''{}''')[0].said
    helpers.query('insert into notes (what) values (%s)', [said])
",
        says.replace("LANGUAGE", "py")
    );
    let project =
        with_pg(Folder::new()).file("tasks/javascript.js", &javascript).file("tasks/python.py", &python);
    let escaped = PASSWORD.replace('\\', "\\\\").replace(':', "\\:");
    let project = project.program("passfile", &format!("127.0.0.1:*:postgres:plain_only:{escaped}\n"));
    let passfile = project.path().join("passfile");
    fs::set_permissions(&passfile, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();

    let (port, sockets) = (cluster.port().to_string(), cluster.folder().display().to_string());
    let options = "options=-c%20work_mem%3D5MB&application_name=mine";
    let ways = [
        (
            format!("postgres://tls_only:{IN_URL}@127.0.0.1:{port}/postgres?sslmode=require&{options}"),
            "tls_only 5MB mine tls",
        ),
        (
            format!("postgres://tls_only:{IN_URL}@127.0.0.1:{port}/postgres?ssl=true&{options}"),
            "tls_only 5MB mine tls",
        ),
        (
            format!("postgres://tls_only:{IN_URL}@localhost:{port}/postgres?sslmode=no-verify&{options}"),
            "tls_only 5MB mine tls",
        ),
        // Prefers TLS, and connects without it.
        (
            format!("postgres://plain_only:{IN_URL}@127.0.0.1:{port}/postgres?{options}"),
            "plain_only 5MB mine",
        ),
        (
            format!(
                "host={sockets} port={port} user=tls_only password={IN_PAIRS} dbname=postgres options='-c work_mem=6MB' application_name='it\\'s'"
            ),
            "tls_only 6MB it's socket",
        ),
        // The first of the servers is not reachable.
        (
            format!(
                "postgres://tls_only:{IN_URL}@127.0.0.1:1,127.0.0.1:{port}/postgres?target_session_attrs=read-write&{options}"
            ),
            "tls_only 5MB mine tls",
        ),
        (String::new(), "plain_only 7MB from the environment"),
    ];
    for (text, said) in ways {
        for task in ["javascript", "python"] {
            add(&client, task, "{}").await;
        }
        let mut command = atta(project.path(), &text, &["2", "--once"]);
        if text.is_empty() {
            command.env_remove("DATABASE_URL").envs([
                ("PGHOST", "127.0.0.1"),
                ("PGPORT", &port),
                ("PGUSER", "plain_only"),
                ("PGDATABASE", "postgres"),
                ("PGOPTIONS", "-c work_mem=7MB"),
                ("PGAPPNAME", "from the environment"),
                ("PGPASSFILE", passfile.to_str().unwrap()),
            ]);
        }
        let log = run_once(&mut command);
        assert_eq!(errors(&client).await, Vec::<String>::new(), "{text}: {log}");
        assert_eq!(notes(&client).await, [format!("js {said}"), format!("py {said}")], "{text}: {log}");
        assert!(!log.contains("p@ss") && !log.contains("p%40ss"), "{log}");
        client.batch_execute("truncate notes").await.unwrap();
    }
    cluster.stop().unwrap();
}

#[tokio::test]
async fn connections_of_hosted_tasks_have_the_worker_s_id_as_their_name() {
    let (db, client) = database().await;
    make_notes(&client).await;
    let says = "insert into notes (what) select current_setting('application_name')";
    let project = with_pg(Folder::new())
        .file("tasks/javascript.js", &format!("module.exports = (payload, {{ query }}) => query(`{says}`);"))
        .file("tasks/python.py", &format!("def task(payload, helpers):\n    helpers.query(\"{says}\")\n"))
        .file(
            "tasks/later.py",
            &format!("async def task(payload, helpers):\n    await helpers.query(\"{says}\")\n"),
        );
    for task in ["javascript", "python", "later"] {
        add(&client, task, "{}").await;
    }
    let log = run_once(&mut atta(project.path(), &db.url(), &["1", "--once"]));
    let (_, rest) = log.split_once(" worker=").expect("the start line names the worker");
    let id = rest.split_whitespace().next().expect("an id");
    assert_eq!(notes(&client).await, [id, id, id], "{log}");
}

#[tokio::test]
async fn a_missing_driver_is_reported_with_a_hint() {
    let (db, client) = database().await;
    let project = Folder::new()
        .file("tasks/asks.js", "module.exports = (payload, { query }) => query('select 1');")
        .file("tasks/asks_too.py", "def task(payload, helpers):\n    helpers.query('select 1')\n")
        .file(
            "tasks/asks_later.py",
            "async def task(payload, helpers):\n    await helpers.query('select 1')\n",
        )
        // Without the packages that this machine may have.
        .program("python", "#!/bin/sh\nexec python3 -I -S \"$@\"\n");
    let run = |task: &'static str| {
        let (db, client, project) = (&db, &client, &project);
        async move {
            add(client, task, "{}").await;
            run_once(atta(project.path(), &db.url(), &["1", "--once"]).env("ATTA_PYTHON", "./python"));
            let error = last_error(client).await;
            client.batch_execute("truncate graphile_worker._private_jobs").await.unwrap();
            error
        }
    };
    let error = run("asks").await;
    assert!(error.contains("need the package pg: run npm install pg in your project"), "{error}");
    for task in ["asks_too", "asks_later"] {
        let error = run(task).await;
        assert!(error.contains("need psycopg: run /"), "{error}");
        assert!(error.contains(" -m pip install 'psycopg[binary]'"), "{error}");
    }
    // The likeliest reason: it is installed in a virtual environment that is not active.
    let project = &project.path().join(".venv/bin");
    fs::create_dir_all(project).unwrap();
    fs::write(project.join("python"), "").unwrap();
    let error = run("asks_too").await;
    assert!(
        error.contains("activate .venv, or set ATTA_PYTHON=") && error.contains(".venv/bin/python"),
        "{error}"
    );
    assert_eq!(count_jobs(&client).await, 0);
}
