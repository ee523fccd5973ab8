//! Tasks that behave badly, and a worker that is killed: with the real binary.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use testkit::{Process, wait_for};

use crate::executables::wait_for_end;
use crate::support::{Folder, add, count_jobs, database, node};

/// The largest memory that the worker may use.
const MEMORY: u64 = 60 << 20;

/// The command on the folder `tasks` of a project, with these arguments, and without the variables of our environment
/// that it reads.
pub(crate) fn atta(project: &Path, url: &str, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atta"));
    command
        .args(["run", "--jobs"])
        .args(words)
        .current_dir(project)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", project)
        .env("DATABASE_URL", url)
        .stderr(Stdio::null());
    command
}

/// Runs the command to its end. Returns the largest memory that was observed, in bytes.
async fn run_watched(command: &mut Command) -> u64 {
    let mut process = Process::start(command);
    let mut most = 0;
    wait_for("the worker to end", || {
        most = most.max(process.memory().unwrap_or(0));
        let has_ended = process.has_ended();
        async move { has_ended.then_some(()) }
    })
    .await;
    assert!(process.ended().await.success());
    most
}

#[tokio::test]
async fn the_worker_survives_rough_tasks_with_little_memory() {
    let (db, client) = database().await;
    let project = Folder::new()
        .file("atta.toml", "kill_after = \"500ms\"\n[time_limits]\nhangs = \"500ms\"\n")
        .program("tasks/floods.sh", "#!/bin/sh\nyes 'a line of no great length, but there are many' | head -c 50000000\n")
        .program("tasks/floods_without_end.sh", "#!/bin/sh\nhead -c 50000000 /dev/zero >&2\n")
        .program("tasks/floods_binary.sh", "#!/bin/sh\nhead -c 10000000 /dev/urandom\n")
        .program("tasks/crashes.sh", "#!/bin/sh\nkill -9 $$\n")
        .program("tasks/hangs.sh", "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n")
        .program("tasks/forks.sh", "#!/bin/sh\nsleep 600 &\n")
        .program("tasks/never_reads.sh", "#!/bin/sh\nexit 0\n")
        .file("tasks/floods_too.js", "module.exports = () => { const x = 'x'.repeat(1000); for (let n = 0; n < 100000; n++) console.log(x); };")
        .file("tasks/dies.js", "module.exports = () => process.kill(process.pid, 'SIGKILL');")
        .file("tasks/dies_too.py", "import os\ndef task(payload, helpers):\n    os._exit(7)\n");
    let big = serde_json::json!({ "text": "x".repeat(1_000_000) }).to_string();
    for task in ["floods", "floods_without_end", "floods_binary", "crashes", "hangs", "forks", "floods_too"] {
        add(&client, task, "{}").await;
    }
    for _ in 0..5 {
        add(&client, "never_reads", &big).await;
    }
    let mut command = atta(project.path(), &db.url(), &["4", "--once"]);
    let most = run_watched(&mut command).await;
    assert!(most < MEMORY, "the worker took {} kB", most / 1024);
    // Separately, because everything that runs in a host ends with it.
    add(&client, "dies", "{}").await;
    add(&client, "dies_too", "{}").await;
    run_watched(&mut command).await;
    let sql =
        "select task_identifier, split_part(last_error, E'\\n', 1) from graphile_worker.jobs order by 1";
    let rows = client.query(sql, &[]).await.unwrap();
    let left: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let wanted = [
        ("crashes", "killed by SIGKILL (signal 9)"),
        ("dies", "the node host died while it ran the task: killed by SIGKILL (signal 9)"),
        ("dies_too", "the python host died while it ran the task: exit code 7"),
        ("hangs", "the time limit of 500ms was exceeded: killed by SIGKILL (signal 9)"),
    ];
    assert_eq!(left, wanted.map(|(task, error)| (task.to_owned(), error.to_owned())));
}

/// The payloads of all jobs are larger than `LARGE_MEMORY` together. They are of random text, because the server would
/// compress other text.
#[tokio::test]
async fn the_worker_sends_large_payloads_to_hosts_with_little_memory() {
    /// It has 16 MB of payloads that wait for a slot, and in each of eight slots a payload of 1 MB and its message to the
    /// host. This was 76 to 86 MB; with a `max_claim_bytes` of 1 GB and a local queue, it was 191 MB.
    const LARGE_MEMORY: u64 = 130 << 20;
    let project = Folder::new()
        .file(
            "tasks/node.js",
            "module.exports = (text) => { if (text.length !== 1048576) throw new Error(`${text.length}`); };",
        )
        .file(
            "tasks/python.py",
            "def task(payload, helpers):\n    assert len(payload) == 1048576, len(payload)\n",
        );
    for local_queue in ["0", "200"] {
        let (db, client) = database().await;
        let sql = "select graphile_worker.add_job(task.name, to_json(large.text))
                   from (values ('node'), ('python')) as task (name)
                   cross join generate_series(1, 75)
                   cross join (select string_agg(md5(random()::text), '') as text from generate_series(1, 32768)) as large";
        client.batch_execute(sql).await.unwrap();
        let mut command = atta(project.path(), &db.url(), &["8", "--once"]);
        command.env("ATTA_NODE", node()).env("ATTA_LOCAL_QUEUE_SIZE", local_queue);
        let most = run_watched(&mut command).await >> 20;
        println!("local queue of {local_queue}: the worker took {most} MB");
        assert_eq!(count_jobs(&client).await, 0, "every job had its whole payload");
        assert!(most < LARGE_MEMORY >> 20, "local queue of {local_queue}: the worker took {most} MB");
    }
}

#[tokio::test]
async fn a_killed_worker_leaves_no_process_behind() {
    let (db, client) = database().await;
    let project = Folder::new()
        .program("tasks/waits.sh", "#!/bin/sh\nsleep 600 &\necho $! $$ > waits\nwait\n")
        .file("tasks/hosted.js", "module.exports = () => { require('fs').writeFileSync('hosted', process.pid + '\\n'); for (;;) {} };")
        .file("tasks/snake.py", "import os, time\ndef task(payload, helpers):\n    open('snake', 'w').write(f'{os.getpid()}\\n')\n    time.sleep(600)\n");
    let names = ["waits", "hosted", "snake"];
    for name in names {
        add(&client, name, "{}").await;
    }
    let mut worker = Process::start(&mut atta(project.path(), &db.url(), &["4"]));
    let mut pids = Vec::new();
    for name in names {
        let note = project.path().join(name);
        let text = wait_for("a task to begin", || async {
            fs::read_to_string(&note).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        pids.extend(text.split_whitespace().map(str::to_owned));
    }
    assert_eq!(pids.len(), 4);
    worker.kill();
    for pid in pids {
        wait_for_end(&pid).await;
    }
}

#[tokio::test]
async fn typescript_runs_where_node_can() {
    let (db, client) = database().await;
    let task = "interface Payload { n: number }\nexport default async (payload: Payload): Promise<void> => {\n  \
                require_it(payload.n as number);\n};\nfunction require_it(n: number) { if (n !== 1) throw new Error(); }\n";
    let project = Folder::new().file("tasks/typed.ts", task).file("tasks/module.mts", task);
    add(&client, "typed", r#"{"n":1}"#).await;
    add(&client, "module", r#"{"n":1}"#).await;
    run_watched(atta(project.path(), &db.url(), &["4", "--once"]).env("ATTA_NODE", node())).await;
    let rows = client.query("select last_error from graphile_worker.jobs", &[]).await.unwrap();
    let errors: Vec<Option<String>> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(errors, []);
}

/// A host in another language, which follows docs/guides/hosts.md: all it can do is count.
const PERL_HOST: &str = r#"
use strict; use IO::Handle;
open(my $in, '<&=', 3) or die; open(my $out, '>&=', 3) or die; $out->autoflush(1);
while (my $line = <$in>) {
  if ($line =~ /^\{"hello":1,/) { print $out qq({"ready":"perl"}\n); }
  elsif ($line =~ /^\{"run":(\d+),"task":"(\w+)","payload":(.*),"job":/) {
    if ($3 eq '{"n":1}') { print $out qq({"done":[$1]}\n); }
    else { print $out qq({"failed":$1,"error":"the payload of $2 is not one"}\n); }
  }
}
"#;

#[tokio::test]
async fn anyone_can_bring_a_host() {
    let (db, client) = database().await;
    let project = Folder::new().file("host.pl", PERL_HOST).file("tasks/counts.pl", "");
    add(&client, "counts", r#"{"n":1}"#).await;
    add(&client, "counts", r#"{"n":2}"#).await;
    let mut command = atta(project.path(), &db.url(), &["4", "--once"]);
    run_watched(command.env("ATTA_HOST_PL", "perl host.pl")).await;
    let error = crate::support::last_error(&client).await;
    assert_eq!(error, "the payload of counts is not one");
}
