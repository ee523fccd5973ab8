//! The same folder with Graphile Worker's own command and with atta: a task can't see a difference.

use std::fs;
use std::process::{Command, Stdio};

use testkit::{Database, Process};

use crate::rough::atta;
use crate::support::{Folder, database, node, node_folder};

const SEEN: &str = "#!/bin/sh\n{ env | grep -v '^_=' | sort; pwd; echo \"$0 $#\"; } > \"seen-$GRAPHILE_WORKER_JOB_ID\"\n\
                    cat > \"input-$GRAPHILE_WORKER_JOB_ID\"\n";

const JOBS: &str = r#"
select graphile_worker.add_job('deep/seen', '{ "a": [1, "zwei \"drei\" \\ \n vier", null], "ü": {"x": 1.5} }',
  job_key => 'a key', max_attempts => 4, priority => 3, run_at => '2026-01-02 03:04:05.678901Z');
select graphile_worker.add_job('deep/seen', run_at => '1999-12-31 23:59:59.9999Z');
select graphile_worker.add_job('deep/seen', '[]', queue_name => 'q', run_at => '2026-01-02 03:04:05Z');
select graphile_worker.add_job('deep/seen', '"text"', run_at => '2026-01-02 03:04:05Z');
"#;

#[tokio::test]
async fn a_task_sees_the_same_environment_and_input() {
    let (db, client) = database().await;
    client.batch_execute(JOBS).await.unwrap();
    // One folder for both, so that even the paths are the same.
    let project = Folder::new().program("tasks/deep/seen.sh", SEEN).file("tasks/other.txt", "no task");

    let mut ours = atta(project.path(), &db.url(), &["4", "--once"]);
    assert!(Process::start(&mut ours).ended().await.success());
    let by_us = take_notes(&project, &db);

    let db = Database::migrated().await;
    db.client().await.batch_execute(JOBS).await.unwrap();
    let cli = node_folder().canonicalize().unwrap().join("node_modules/graphile-worker-0.18.0/dist/cli.js");
    let mut theirs = Command::new(node());
    theirs
        .arg(cli)
        .arg("--once")
        .current_dir(project.path())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", project.path())
        .env("DATABASE_URL", db.url())
        .stderr(Stdio::inherit());
    assert!(Process::start(&mut theirs).ended().await.success());
    let by_node = take_notes(&project, &db);

    assert_eq!(by_us, by_node);
    assert_eq!(by_us.len(), 8);
}

/// What the tasks wrote, by name; there are two databases.
fn take_notes(project: &Folder, db: &Database) -> Vec<(String, String)> {
    let mut notes = Vec::new();
    for entry in fs::read_dir(project.path()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("seen-") || name.starts_with("input-") {
            notes.push((name, fs::read_to_string(&path).unwrap().replace(db.name(), "database")));
            fs::remove_file(path).unwrap();
        }
    }
    notes.sort();
    notes
}
