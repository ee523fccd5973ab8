//! `--watch`: changes are loaded without a restart.

use testkit::{Database, Signal};

use crate::{Folder, add, wait_for_file};

#[tokio::test]
async fn new_tasks_are_loaded_while_old_ones_finish() {
    let (db, folder) = (Database::migrated().await, Folder::new());
    folder.script("wait", "touch begun\nuntil [ -e go ]; do sleep 0.02; done\necho the old one is done");
    let mut worker = folder.start("log", &mut folder.command(&["-c", &db.url(), "--watch"]));
    worker.says("worker started").await;
    add(&db, "wait", "").await;
    wait_for_file(&folder.path.join("begun"), true).await;
    folder.script("wait", "echo the new one runs");
    worker.says_times("worker started", 2).await;
    add(&db, "wait", "").await;
    worker.says("the new one runs").await;
    assert!(!worker.log().contains("the old one is done"));
    folder.write("go", "");
    worker.says("the old one is done").await;
    worker.says_times("worker stopped", 1).await;
    // The task is removed and then created again: the worker waits, and does not end.
    std::fs::remove_file(folder.path.join("tasks/wait")).unwrap();
    worker.says("no tasks in the folder tasks yet").await;
    folder.script("wait", "echo and the newest");
    worker.says_times("worker started", 3).await;
    add(&db, "wait", "").await;
    worker.says("and the newest").await;
    worker.process.signal(Signal::Terminate);
    assert_eq!(worker.code().await, Some(0), "{}", worker.log());
}

#[tokio::test]
async fn an_invalid_crontab_is_reported_and_the_old_one_stays() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    let mut worker = folder.start("log", &mut folder.command(&["-c", &db.url(), "-w"]));
    worker.says("worker started").await;
    folder.write("crontab", "* * * * hello\n");
    worker.says("the crontab was not reloaded").await;
    worker.says("line 1, column ").await;
    let known = "insert into graphile_worker._private_known_crontabs (identifier, known_since)
        values ('hello', now() - interval '90 seconds')";
    db.client().await.execute(known, &[]).await.unwrap();
    folder.write("crontab", "* * * * * hello ?fill=2m\n");
    worker.says("hello from job").await;
    worker.process.signal(Signal::Terminate);
    assert_eq!(worker.code().await, Some(0), "{}", worker.log());
}

#[test]
fn without_a_folder_there_is_nothing_to_watch() {
    let folder = Folder::new();
    let run = folder.atta(&["--watch", "--tasks", "elsewhere", "-c", "postgres://nobody@127.0.0.1:1/app"]);
    assert!(run.code == 2 && run.err.contains("no folder of tasks: elsewhere"), "{}", run.err);
}
