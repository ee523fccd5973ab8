//! The log of a worker: the line of its start, and lines about jobs as JSON.

use serde_json::{Value, json};
use testkit::Database;

use crate::{Folder, add};

fn lines(log: &str) -> Vec<Value> {
    log.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[tokio::test]
async fn the_start_line_names_the_database_and_what_the_worker_does() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    folder.script("other", "true");
    add(&db, "hello", "").await;
    let url = db.url();
    let once = folder.atta(&["-c", &url, "--once", "-j", "3", "--log-format", "json"]);
    assert_eq!(once.code, 0, "{}", once.err);
    let lines = lines(&once.err);
    let starts: Vec<&Value> = lines.iter().filter(|line| line["message"] == "worker started").collect();
    let [start] = starts[..] else { panic!("one start: {}", once.err) };
    let place = url.split('@').nth(1).expect("a URL with a user");
    let expected =
        json!({ "database": place, "schema": "graphile_worker", "slots": 3, "tasks": 2, "cron_items": 0 });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&start[field], value, "{field}: {start}");
    }
    assert_eq!(start["level"], "info");
    assert!(start["worker"].as_str().unwrap().starts_with("atta-"), "{start}");
    let text = folder.atta(&["-c", &url, "--once"]).err;
    let line = text.lines().find(|line| line.contains("worker started")).expect("a start line");
    for part in [format!("database={place} "), "schema=graphile_worker ".into(), " worker=atta-".into()] {
        assert!(line.contains(&part), "{part}: {line}");
    }
}

#[tokio::test]
async fn the_start_line_has_no_password() {
    let (db, folder) = (Database::migrated().await, Folder::with_hello());
    let url = db.url().replace("postgres@", "postgres:open-sesame@");
    assert!(url.contains("open-sesame"), "{url}");
    let once = folder.atta(&["-c", &url, "--once"]);
    assert_eq!(once.code, 0, "{}", once.err);
    assert!(once.err.contains("worker started") && !once.err.contains("open-sesame"), "{}", once.err);
}

/// Whether the task is a program, JavaScript or Python, and whether the claims are held or durable.
#[tokio::test]
async fn each_line_about_a_job_names_worker_job_task_and_attempt() {
    let folder = Folder::new();
    folder.script("shell", "echo out of the shell; echo err of the shell >&2");
    folder.script("fail", "exit 3");
    let javascript = "module.exports = (payload, { logger }) => {
      logger.info('from javascript', { customer: 4711, tags: ['a', 'b'] });
      console.log('printed by javascript');
    };";
    folder.write("tasks/javascript.js", javascript);
    let python = "def task(payload, helpers):
    helpers.logger.info('from python', {'customer': 4711})
    print('printed by python')
";
    folder.write("tasks/python.py", python);
    for claims in ["held", "durable"] {
        let db = Database::migrated().await;
        for task in ["shell", "fail", "javascript", "python"] {
            add(&db, task, "").await;
        }
        let words = ["-c", &db.url(), "--once", "--log-format", "json", "--claims", claims];
        let once = folder.atta(&words);
        assert_eq!(once.code, 0, "{}", once.err);
        let lines = lines(&once.err);
        let about_jobs: Vec<&Value> = lines.iter().filter(|line| line.get("job").is_some()).collect();
        for line in &about_jobs {
            assert!(line["worker"].as_str().is_some_and(|id| id.starts_with("atta-")), "{line}");
            assert!(line["job"].is_i64() && line["attempt"] == 1 && line["task"].is_string(), "{line}");
        }
        let of = |text: &str| {
            let found =
                about_jobs.iter().find(|line| line["message"].as_str().is_some_and(|it| it.contains(text)));
            found.unwrap_or_else(|| panic!("{text}: {}", once.err))
        };
        for (text, task) in [
            ("out of the shell", "shell"),
            ("err of the shell", "shell"),
            ("from javascript", "javascript"),
            ("printed by javascript", "javascript"),
            ("from python", "python"),
            ("printed by python", "python"),
            ("job failed", "fail"),
        ] {
            assert_eq!(of(text)["task"], task, "{text}");
        }
        assert_eq!(of("from javascript")["meta"], json!({ "customer": 4711, "tags": ["a", "b"] }));
        assert_eq!(of("from python")["meta"], json!({ "customer": 4711 }));
        assert!(of("job completed")["duration_ms"].as_f64().is_some_and(|duration| duration >= 0.0));
        assert!(of("job failed")["duration_ms"].is_number() && of("job failed")["of"] == 25);
    }
}
