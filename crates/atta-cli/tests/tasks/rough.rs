//! Tasks that behave badly, and a worker that is killed: with the worker in a process of its own.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use atta::WorkerOptions;
use testkit::{Process, wait_for};

use crate::executables::wait_for_end;
use crate::support::{Folder, add, database, node};
use crate::tasks::{TasksFolder, TasksSettings};

/// What the worker may have of memory, at the most.
const MEMORY: u64 = 60 << 20;

/// A worker on the folder `tasks` of a project: this test binary once more, to run [`worker_process`] alone.
pub(crate) fn worker_command(project: &Path, url: &str) -> Command {
    let binary = std::env::current_exe().expect("this process knows its binary");
    let mut command = Command::new(binary);
    command.args(["--exact", "rough::worker_process", "--ignored", "--nocapture", "--test-threads=1"]);
    command
        .current_dir(project)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", project)
        .env("DATABASE_URL", url);
    command
}

#[tokio::test]
#[ignore = "a process of other tests"]
async fn worker_process() {
    let url = std::env::var("DATABASE_URL").expect("the test says where");
    let settings = TasksSettings {
        folder: PathBuf::from("tasks"),
        time_limit: None,
        time_limits: HashMap::from([("hangs".to_owned(), Duration::from_millis(500))]),
        kill_after: Duration::from_millis(500),
        connection: url.clone(),
        schema: "graphile_worker".into(),
        concurrency: 4,
    };
    let folder = TasksFolder::open(settings).await.expect("the folder opens");
    let options = WorkerOptions::default().database_url(url).concurrency(4);
    let worker = folder.define(options).init().await.expect("the worker starts");
    if Path::new("stays").exists() {
        worker.run().await.expect("the worker ends well");
    } else {
        worker.run_once().await.expect("the worker ends well");
    }
    folder.close().await;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    fs::write("memory", most.trim().trim_end_matches(" kB")).expect("a note can be written");
}

#[tokio::test]
async fn whatever_tasks_do_the_worker_stays_up_and_small() {
    let (db, client) = database().await;
    let project = Folder::new()
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
    let start = || {
        let mut command = worker_command(project.path(), &db.url());
        Process::start(command.stderr(Stdio::inherit()))
    };
    assert!(start().ended().await.success());
    let kilobytes: u64 = fs::read_to_string(project.path().join("memory")).unwrap().parse().unwrap();
    assert!(kilobytes * 1024 < MEMORY, "the worker took {kilobytes} kB");
    // Apart, since whatever runs in a host dies with it.
    add(&client, "dies", "{}").await;
    add(&client, "dies_too", "{}").await;
    assert!(start().ended().await.success());
    let sql =
        "select task_identifier, split_part(last_error, E'\\n', 1) from graphile_worker.jobs order by 1";
    let rows = client.query(sql, &[]).await.unwrap();
    let left: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let wanted = [
        ("crashes", "killed by SIGKILL (signal 9)"),
        ("dies", "the node host that ran the task has died: killed by SIGKILL (signal 9)"),
        ("dies_too", "the python host that ran the task has died: exit code 7"),
        ("hangs", "the time limit of 500ms is over: killed by SIGKILL (signal 9)"),
    ];
    assert_eq!(left, wanted.map(|(task, error)| (task.to_owned(), error.to_owned())));
}

#[tokio::test]
async fn a_killed_worker_leaves_no_process_behind() {
    let (db, client) = database().await;
    let project = Folder::new()
        .file("stays", "")
        .program("tasks/waits.sh", "#!/bin/sh\nsleep 600 &\necho $! $$ > waits\nwait\n")
        .file("tasks/hosted.js", "module.exports = () => { require('fs').writeFileSync('hosted', process.pid + '\\n'); for (;;) {} };")
        .file("tasks/snake.py", "import os, time\ndef task(payload, helpers):\n    open('snake', 'w').write(f'{os.getpid()}\\n')\n    time.sleep(600)\n");
    let names = ["waits", "hosted", "snake"];
    for name in names {
        add(&client, name, "{}").await;
    }
    let mut command = worker_command(project.path(), &db.url());
    let mut worker = Process::start(command.stderr(Stdio::inherit()));
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
    let mut command = worker_command(project.path(), &db.url());
    let mut worker = Process::start(command.env("ATTA_NODE", node()).stderr(Stdio::inherit()));
    assert!(worker.ended().await.success());
    let rows = client.query("select last_error from graphile_worker.jobs", &[]).await.unwrap();
    let errors: Vec<Option<String>> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(errors, []);
}

/// A host in another language, by the words in docs/hosts.md: all it can do is count.
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
    let mut command = worker_command(project.path(), &db.url());
    let mut worker = Process::start(command.env("ATTA_HOST_PL", "perl host.pl").stderr(Stdio::inherit()));
    assert!(worker.ended().await.success());
    let error = crate::support::last_error(&client).await;
    assert_eq!(error, "the payload of counts is not one");
}
