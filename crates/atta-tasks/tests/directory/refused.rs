//! Folders with which no worker starts.

use std::time::Duration;

use atta::WorkerOptions;
use atta_tasks::{TaskDirectory, WorkerOptionsExt};
use testkit::Database;

use crate::Seen;
use crate::support::Folder;

const SOUND: &str = "module.exports = () => {};";

fn options(db: &Database, folder: &Folder) -> TaskDirectory {
    WorkerOptions::default()
        .database_url(db.url())
        .define_job::<Seen>()
        .task_directory(folder.path().join("tasks"))
}

async fn has_schema(db: &Database) -> bool {
    let sql = "select to_regnamespace('graphile_worker') is not null";
    db.client().await.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_broken_task_changes_nothing_unless_it_is_allowed() {
    let db = Database::empty().await;
    let folder = Folder::new().file("tasks/sound.js", SOUND).file("tasks/broken.js", "module.exports = (;");
    let error = match options(&db, &folder).init().await {
        Err(error) => {
            assert!(!has_schema(&db).await);
            error
        }
        // On a slow machine, the host takes longer than 5 s.
        Ok(worker) => worker.run().await.unwrap_err(),
    };
    assert!(error.is_config(), "{error}");
    let text = error.to_string();
    for part in ["some tasks can't be loaded:\nbroken: ", "broken.js:1", "allow_broken_tasks"] {
        assert!(text.contains(part), "{text}");
    }
    let worker = options(&db, &folder).allow_broken_tasks(true).init().await.unwrap();
    assert!(has_schema(&db).await);
    worker.close().await;
}

#[tokio::test]
async fn a_time_limit_of_zero_is_an_error() {
    let db = Database::empty().await;
    let folder = Folder::new().file("tasks/sound.js", SOUND);
    let all = options(&db, &folder).time_limit(Duration::ZERO);
    let one = options(&db, &folder).time_limit_of("sound", Duration::ZERO);
    for options in [all, one] {
        let error = options.init().await.unwrap_err();
        assert!(error.is_config() && error.message().contains("time limit is 0"), "{error}");
    }
    assert!(!has_schema(&db).await);
}

#[tokio::test]
async fn a_task_may_not_be_defined_in_rust_and_by_a_file() {
    let db = Database::empty().await;
    let folder = Folder::new().file("tasks/seen.js", SOUND);
    let error = options(&db, &folder).init().await.unwrap_err();
    let expected = format!(
        "task seen is defined twice: in Rust, and by the file {}",
        folder.path().join("tasks/seen.js").display()
    );
    assert_eq!((error.is_config(), error.message()), (true, expected.as_str()));
}

#[tokio::test]
async fn a_folder_that_is_missing_or_has_no_tasks_is_an_error() {
    let db = Database::empty().await;
    let missing = options(&db, &Folder::new()).init().await.unwrap_err();
    assert!(
        missing.is_config() && missing.message().starts_with("can't read the tasks folder "),
        "{missing}"
    );
    let empty = options(&db, &Folder::new().file("tasks/readme.md", "")).init().await.unwrap_err();
    assert!(empty.is_config() && empty.message().starts_with("no tasks in the folder "), "{empty}");
    assert!(!has_schema(&db).await);
}
