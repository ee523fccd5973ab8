//! The rows of the matrix with tasks in hosts: a part that is stuck delays only itself. `cargo xtask matrix` runs them;
//! the columns are in `testkit::matrix`.
//!
//! The worker is a process of this test and not the binary, so that its clock can be moved.
#![allow(missing_docs)]

use std::fs;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use atta::WorkerOptions;
use atta_tasks::{TasksFolder, TasksSettings};
use testkit::matrix::{self, Child, NORMAL, Row, Rows, SLOTS, World};

const SYNC_PYTHON: &str = "a hung sync Python task";
const ASYNC_PYTHON: &str = "a hung async Python task";
const ENDLESS_JS: &str = "a JS task in an endless loop";
const NO_HOST: &str = "a host that cannot start";
const SLOW_HOST: &str = "a host that loads for 20 s";

/// How many jobs of the task hang.
const STUCK: usize = 3;

/// Records its start in the file of the worker process, and ends.
const PYTHON: &str = "
def note(text):
    with open('NOTES', 'a') as notes:
        notes.write(text + '\\n')
";
const JAVASCRIPT: &str = "const note = (text) => require('node:fs').appendFileSync('NOTES', text + '\\n');\n";

fn main() -> ExitCode {
    atta_tasks::run_guard_if_requested();
    matrix::main::<Hosted>()
}

struct Hosted;

/// Closed when the worker has ended.
static FOLDER: Mutex<Option<TasksFolder>> = Mutex::new(None);

impl Rows for Hosted {
    const ROWS: &'static [Row] = &[
        Row::new(SYNC_PYTHON),
        Row::new(ASYNC_PYTHON),
        Row::new(ENDLESS_JS),
        Row::new(NO_HOST),
        Row::new(SLOW_HOST),
    ];

    /// The host of tasks `….broken` ends at once.
    const ENVIRONMENT: &'static [(&'static str, &'static str)] = &[("ATTA_HOST_BROKEN", "/bin/false")];

    async fn options(child: &Child, options: WorkerOptions) -> WorkerOptions {
        write_tasks(child);
        let mut settings = TasksSettings::new(child.folder.join("tasks"));
        settings.kill_after = Duration::from_millis(500);
        settings.connection = child.url.clone();
        settings.concurrency = SLOTS;
        settings.allows_broken = true;
        let folder = TasksFolder::open(settings).await.expect("the folder opens");
        let options = folder.define(options);
        *FOLDER.lock().expect("nothing panics with it") = Some(folder);
        options
    }

    async fn ended() {
        let folder = FOLDER.lock().expect("nothing panics with it").take();
        folder.expect("it was opened").close().await;
    }

    async fn set(row: &Row, world: &mut World) {
        let count = match row.name {
            NORMAL => 0,
            SYNC_PYTHON | ASYNC_PYTHON => STUCK,
            _ => 1,
        };
        for number in 1..=count {
            world.add("hang", &format!("hang {number}"), "").await;
        }
        match row.name {
            NORMAL => {}
            NO_HOST => world.settle().await,
            SLOW_HOST => world.noted("loading").await,
            _ => {
                for number in 1..=count {
                    world.noted(&format!("started hang {number}")).await;
                }
            }
        }
    }

    /// A job in the host of the other language; and where tasks can run at the same time, one in the same host.
    fn others(row: &Row) -> Vec<(&'static str, &'static str)> {
        match row.name {
            SYNC_PYTHON | ASYNC_PYTHON => {
                vec![("node", "in node"), ("python", "in python"), ("later", "in python later")]
            }
            ENDLESS_JS => vec![("python", "in python")],
            SLOW_HOST => vec![("node", "in node")],
            _ => vec![("node", "in node"), ("python", "in python")],
        }
    }
}

/// The folder of tasks of a row.
fn write_tasks(child: &Child) {
    let folder = child.folder.join("tasks");
    fs::create_dir_all(&folder).expect("a folder is made");
    let notes = child.notes().display().to_string();
    let write = |name: &str, text: String| {
        fs::write(folder.join(name), text.replace("NOTES", &notes)).expect("a task is written");
    };
    let quick = "    note('started ' + payload['name'])\n";
    let node = "module.exports = (payload) => note('started ' + payload.name);\n";
    if child.row != SLOW_HOST {
        write("python.py", format!("{PYTHON}\ndef task(payload, helpers):\n{quick}"));
        write("later.py", format!("{PYTHON}\nasync def task(payload, helpers):\n{quick}"));
    }
    write("node.js", format!("{JAVASCRIPT}{node}"));
    match child.row.as_str() {
        SYNC_PYTHON => write(
            "hang.py",
            format!("import time\n{PYTHON}\ndef task(payload, helpers):\n{quick}    time.sleep(600)\n"),
        ),
        ASYNC_PYTHON => write(
            "hang.py",
            format!(
                "import asyncio\n{PYTHON}\nasync def task(payload, helpers):\n{quick}    await asyncio.sleep(600)\n"
            ),
        ),
        ENDLESS_JS => write(
            "hang.js",
            format!(
                "{JAVASCRIPT}module.exports = (payload) => {{ note('started ' + payload.name); for (;;) {{}} }};\n"
            ),
        ),
        SLOW_HOST => write(
            "hang.py",
            format!(
                "import time\n{PYTHON}\nnote('loading')\ntime.sleep(20)\ndef task(payload, helpers):\n{quick}"
            ),
        ),
        // Its host is a program that ends at once: see `ENVIRONMENT`.
        NO_HOST => write("hang.broken", String::new()),
        _ => {}
    }
}
