//! Anybody may choose names and payloads of jobs: no part of them is executed, and none is visible in the list of
//! processes.

use std::fs;

use testkit::Database;

use crate::{Folder, jobs};

/// Texts with a meaning for a shell, a path or an option.
const NASTY: [&str; 9] = [
    "; touch pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "x\ntouch pwned\n",
    "' || touch pwned; '",
    "\" && touch pwned #",
    "../../pwned",
    "--version",
    "| tee pwned > pwned",
];

/// Records its own command line and its input.
const PROGRAM: &str = "tr '\\0' '\\n' < /proc/$$/cmdline > seen/args.$GRAPHILE_WORKER_JOB_ID
cat > seen/payload.$GRAPHILE_WORKER_JOB_ID
printf %s \"$GRAPHILE_WORKER_JOB_KEY\" > seen/key.$GRAPHILE_WORKER_JOB_ID";

const HOSTED: &str = "
def task(payload, helpers):
    n = helpers.job.id
    with open(f'seen/args.{n}', 'w') as out:
        out.write(open('/proc/self/cmdline').read().replace('\\0', '\\n'))
    with open(f'seen/payload.{n}', 'w') as out:
        out.write(payload)
";

async fn add(db: &Database, task: &str, payload: &str, key: Option<&str>, queue: Option<&str>) -> i64 {
    let payload = serde_json::Value::from(payload).to_string();
    let sql = "select (graphile_worker.add_job($1, $2::text::json, job_key := $3, queue_name := $4)).id";
    let row = db.client().await.query_one(sql, &[&task, &payload, &key, &queue]).await;
    row.expect("a job is added").get(0)
}

#[tokio::test]
async fn payloads_keys_and_queues_are_data_for_every_kind_of_task() {
    let (db, folder) = (Database::migrated().await, Folder::new());
    fs::create_dir(folder.path.join("seen")).unwrap();
    // Names that begin with a dash are allowed; programs get their full path.
    for task in ["plain", "-rf", "--help"] {
        folder.script(task, PROGRAM);
    }
    for task in ["snake.py", "-c.py"] {
        folder.write(&format!("tasks/{task}"), HOSTED);
    }
    let mut added = Vec::new();
    for task in ["plain", "-rf", "--help", "snake", "-c"] {
        for (n, nasty) in NASTY.iter().enumerate() {
            let key = format!("{task} {n} {nasty}");
            added.push((add(&db, task, nasty, Some(&key), Some(nasty)).await, task, *nasty, key));
        }
    }
    let run = folder.atta(&["run", "--once", "-j", "4", "-c", &db.url()]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert_eq!(jobs(&db, "true").await, 0, "{}", run.err);
    for (id, task, nasty, key) in added {
        let args = folder.read(&format!("seen/args.{id}"));
        assert!(!args.is_empty() && !args.contains("pwned") && !args.contains(nasty), "{task}: {args}");
        let payload = folder.read(&format!("seen/payload.{id}"));
        if ["snake", "-c"].contains(&task) {
            assert_eq!(payload, nasty, "{task}");
            continue;
        }
        assert_eq!(payload, serde_json::json!({ "payload": nasty }).to_string());
        assert_eq!(folder.read(&format!("seen/key.{id}")), key);
        let path = folder.path.join("tasks").join(task);
        assert_eq!(args, format!("/bin/sh\n{}\n", path.display()));
    }
    assert_nothing_was_made(&folder);
}

#[tokio::test]
async fn names_of_tasks_lead_nowhere_but_to_files_in_the_folder() {
    let (db, folder) = (Database::migrated().await, Folder::new());
    folder.script("hello", "exit 0");
    let outside = folder.path.join("outside");
    fs::copy(folder.path.join("tasks/hello"), &outside).unwrap();
    fs::write(&outside, "#!/bin/sh\ntouch pwned\n").unwrap();
    let absolute = outside.display().to_string();
    let names =
        ["../outside", "./hello", "hello/../../outside", "hello.sh", "/bin/touch", &absolute, "", "."];
    for name in names.iter().copied().chain(NASTY) {
        add(&db, name, "pwned", None, None).await;
        // Nor is a file with this name a task, if such a file can exist.
        if !name.contains('/') && !name.is_empty() && name != "." {
            fs::copy(&outside, folder.path.join("tasks").join(format!("{name}.x y"))).unwrap();
        }
    }
    let run = folder.atta(&["run", "--once", "-c", &db.url()]);
    assert_eq!(run.code, 0, "{}", run.err);
    let waiting = i64::try_from(names.len() + NASTY.len()).unwrap();
    assert_eq!(jobs(&db, "attempts = 0 and locked_at is null").await, waiting, "{}", run.err);
    assert_nothing_was_made(&folder);
}

fn assert_nothing_was_made(folder: &Folder) {
    for place in ["pwned", "tasks/pwned", "../pwned", "seen/pwned"] {
        assert!(!folder.has(place), "{place}");
    }
}

/// A shell interprets its arguments. It is used only for scripts without a `#!` line, with their path, as is customary.
/// And all places that start other processes are known.
#[test]
fn no_source_calls_a_shell() {
    let starts_processes = [
        "atta-cli/src/commands/bench/measure.rs", // itself
        "atta-cli/src/dev/guard.rs",              // itself
        "atta-tasks/src/executable.rs",           // a task, and the shell for a task without a first line
        "atta-tasks/src/guard.rs",                // itself
        "atta-tasks/src/host/process.rs",         // the interpreter of a language
    ];
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut seen = Vec::new();
    for source in
        ["atta/src", "atta-cli/src", "atta-tasks/src"].iter().flat_map(|folder| sources(&crates.join(folder)))
    {
        let text = fs::read_to_string(&source).unwrap();
        let name = source.strip_prefix(crates).unwrap().to_str().unwrap().to_owned();
        for shell in ["\"sh\"", "/sh\"", "\"bash\"", "/bash\"", "\"zsh\"", "\"cmd\"", "\"powershell\""] {
            let times = text.matches(shell).count();
            let allowed = usize::from(name == "atta-tasks/src/executable.rs" && shell == "/sh\"");
            assert_eq!(times, allowed, "{name} has {shell}");
        }
        // Python's option for a program in an argument; ours is a constant.
        let allowed = usize::from(name == "atta-tasks/src/runtime.rs");
        assert_eq!(text.matches("\"-c\"").count(), allowed, "{name} has \"-c\"");
        if text.replace("clap::Command::new", "").contains("Command::new") {
            seen.push(name);
        }
    }
    seen.sort();
    assert_eq!(seen, starts_processes);
}

fn sources(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("a file of sources").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}
