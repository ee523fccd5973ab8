//! Tasks in Python.

use crate::log;
use crate::support::{Folder, add, count_jobs, database, last_error, run_once};

#[tokio::test]
async fn functions_and_coroutines_are_tasks() {
    let (db, client) = database().await;
    let folder = Folder::new()
        .file(
            "plain.py",
            "def task(payload, helpers):\n    helpers.logger.info('python says ' + payload['word'])\n    print('printed', helpers.job.id)\n",
        )
        .file(
            "later.py",
            "import asyncio\nasync def task(payload, helpers):\n    await asyncio.sleep(0)\n    print('printed later')\n    helpers.logger.debug('quiet')\n",
        )
        .file("alone.py", "def task(payload):\n    assert payload == [None]\n");
    let first = add(&client, "plain", r#"{"word":"schön\n\"quoted\""}"#).await;
    let second = add(&client, "later", "{}").await;
    add(&client, "alone", "[null]").await;
    run_once(&db, &folder).await;
    assert_eq!(count_jobs(&client).await, 0);
    assert_eq!(log::lines_with("python says schön").len(), 1);
    let printed = &log::lines_with(&format!("printed {first}"))[0];
    assert_eq!((printed.job, printed.task.as_deref()), (Some(first), Some("plain")));
    let printed = &log::lines_with("printed later")[0];
    assert_eq!((printed.job, printed.task.as_deref()), (Some(second), Some("later")));
}

#[tokio::test]
async fn an_exception_comes_with_its_message_first_and_its_place() {
    let (db, client) = database().await;
    let folder = Folder::new().file("fails.py", "def task(payload, helpers):\n    raise KeyError('who')\n");
    add(&client, "fails", "{}").await;
    run_once(&db, &folder).await;
    let error = last_error(&client).await;
    assert!(error.starts_with("KeyError: 'who'\nTraceback (most recent call last):\n"), "{error}");
    assert!(error.contains("fails.py\", line 2, in task"), "{error}");
}

#[tokio::test]
async fn helpers_know_the_job_and_add_others() {
    let (db, client) = database().await;
    let body = r#"
    job = helpers.job
    assert job.task_identifier == "NAME" and job["payload"] == payload
    assert job.run_at.isoformat() == "2026-01-02T03:04:05.678901+00:00", job.run_at
    assert job.flags == {"red": True} and job.key is None and job.attempts == 1
    added = AWAIT helpers.add_job("second", {"text": "é\n\"\\"}, queue_name="q", run_at=datetime(2030, 1, 1, tzinfo=timezone.utc))
    assert added.payload == {"text": "é\n\"\\"} and added.task_identifier == "second"
    again = AWAIT helpers.addJobs([{"identifier": "second", "maxAttempts": 3}, {"identifier": "second"}])
    assert len(again) == 2
    try:
        AWAIT helpers.add_job("x" * 200)
    except RuntimeError as error:
        assert "128" in str(error)
    else:
        assert False
    assert not helpers.abort_signal.is_set() and not helpers.abortSignal.wait(0)
    helpers.logger.scope({"step": 2}).warning("scoped words of NAME", {"more": 1})
"#;
    let import = "from datetime import datetime, timezone\n";
    let of = |name: &str, start: &str, wait: &str| {
        format!(
            "{import}{start}def task(payload, helpers):{}",
            body.replace("NAME", name).replace("AWAIT", wait)
        )
    };
    let folder = Folder::new()
        .file("sync.py", &of("sync", "", ""))
        .file("coroutine.py", &of("coroutine", "async ", "await"));
    for task in ["sync", "coroutine"] {
        let sql = format!(
            "select graphile_worker.add_job('{task}', '{{\"a\":1}}', flags => array['red'],
               run_at => '2026-01-02 03:04:05.678901Z')"
        );
        client.execute(&sql, &[]).await.unwrap();
    }
    run_once(&db, &folder).await;
    let sql = "select coalesce(last_error, task_identifier) from graphile_worker.jobs";
    let left: Vec<String> = client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(left, vec!["second"; 6]);
    for task in ["sync", "coroutine"] {
        let scoped = &log::lines_with(&format!("scoped words of {task}"))[0];
        assert_eq!(scoped.meta.as_deref(), Some(r#"{"step": 2, "more": 1}"#));
    }
}

#[tokio::test]
async fn only_the_items_of_a_batch_that_failed_are_left() {
    let (db, client) = database().await;
    let folder = Folder::new()
        .file(
            "plain.py",
            "def task(items, helpers):\n    return [ValueError('odd') if item % 2 else None for item in items]\n",
        )
        .file(
            "later.py",
            "async def one(item):\n    if item % 2:\n        raise ValueError('odd')\nasync def task(items, helpers):\n    return [one(item) for item in items]\n",
        );
    add(&client, "plain", "[1, 2, 3]").await;
    add(&client, "later", "[1, 2, 3]").await;
    run_once(&db, &folder).await;
    let sql = "select last_error, payload::text from graphile_worker._private_jobs";
    let rows = client.query(sql, &[]).await.unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!(row.get::<_, String>(0), "Batch failures:\nValueError: odd\nValueError: odd");
        assert_eq!(row.get::<_, String>(1), "[1,3]");
    }
}

#[tokio::test]
async fn an_error_of_a_helper_has_the_lines_of_the_task_its_class_and_its_code() {
    let (db, client) = database().await;
    let body = r#"
    if payload.get("pays"):
        error = ValueError("the card was refused")
        error.code = "E_CARD"
        raise error
    added = AWAIT helpers.add_job("later", run_at="2030-01-01T00:00:00Z")
    assert added.locked_by is None and added.locked_at is None, added
    assert helpers.job.locked_by.startswith("atta-")
    try:
        AWAIT helpers.add_job("x" * 200)
    except RuntimeError as error:
        assert error.code == "GWBID"
    print("no end of", helpers.job.task_identifier, end="")
    AWAIT helpers.add_job("x" * 200)
"#;
    let of = |start: &str, wait: &str| {
        format!("{start}def task(payload, helpers):{}", body.replace("AWAIT ", wait))
    };
    let folder =
        Folder::new().file("helped_sync.py", &of("", "")).file("helped_later.py", &of("async ", "await "));
    for task in ["helped_sync", "helped_later"] {
        add(&client, task, "{}").await;
        add(&client, task, r#"{"pays":true}"#).await;
    }
    run_once(&db, &folder).await;
    let sql = "select task_identifier, last_error from graphile_worker.jobs
        where last_error is not null order by id";
    let rows = client.query(sql, &[]).await.unwrap();
    assert_eq!(rows.len(), 4);
    for (index, row) in rows.iter().enumerate() {
        let (task, error): (String, String) = (row.get(0), row.get(1));
        let (line, code) = if index % 2 == 0 { (14, "GWBID") } else { (5, "E_CARD") };
        assert!(error.contains(&format!("{task}.py\", line {line}, in task")), "{error}");
        assert!(error.contains(&format!("code: {code}")), "{error}");
        assert!(error.contains("Error: "), "{error}");
        assert_eq!(log::lines_with(&format!("no end of {task}")).len(), 1);
    }
}
