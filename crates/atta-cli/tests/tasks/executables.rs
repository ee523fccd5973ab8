//! Tasks that are programs.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use atta_tasks::TasksFolder;
use testkit::wait_for;

use crate::log;
use crate::support::{Folder, add, count_jobs, database, last_error, options, run_once, run_once_with};

#[tokio::test]
async fn a_shell_script_gets_the_job_and_the_payload() {
    let (db, client) = database().await;
    let folder = Folder::new();
    let note = folder.note("seen");
    let script = format!(
        "#!/bin/sh\n{{ env | grep ^GRAPHILE_WORKER_ | sort; pwd; cat; }} > {}\necho printed by greet\n",
        note.display()
    );
    let folder = folder.program("mail/greet.sh", &script);
    client
        .execute(
            "select graphile_worker.add_job('mail/greet', '{ \"to\" : \"Zoë \\\"Z\\\"\",\n \"n\": [1, 2] }',
               job_key => 'k', max_attempts => 3, priority => 7, run_at => '2026-01-02 03:04:05.678901Z')",
            &[],
        )
        .await
        .unwrap();
    run_once(&db, &folder).await;
    assert_eq!(count_jobs(&client).await, 0);
    let seen = fs::read_to_string(note).unwrap();
    let here = std::env::current_dir().unwrap();
    let wanted = format!(
        "GRAPHILE_WORKER_JOB_ATTEMPTS=1\n\
         GRAPHILE_WORKER_JOB_ID=1\n\
         GRAPHILE_WORKER_JOB_KEY=k\n\
         GRAPHILE_WORKER_JOB_MAX_ATTEMPTS=3\n\
         GRAPHILE_WORKER_JOB_PRIORITY=7\n\
         GRAPHILE_WORKER_JOB_RUN_AT=2026-01-02T03:04:05.678Z\n\
         GRAPHILE_WORKER_PAYLOAD_FORMAT=json\n\
         GRAPHILE_WORKER_TASK_IDENTIFIER=mail/greet\n\
         {}\n\
         {{\"payload\":{{\"to\":\"Zoë \\\"Z\\\"\",\"n\":[1,2]}}}}",
        here.display()
    );
    assert_eq!(seen, wanted);
    let printed = &log::lines_with("printed by greet")[0];
    assert_eq!((printed.job, printed.task.as_deref()), (Some(1), Some("mail/greet")));
    assert_eq!(printed.level, "INFO");
}

#[tokio::test]
async fn a_compiled_program_and_one_without_first_line_are_tasks_too() {
    let (db, client) = database().await;
    let folder = Folder::new();
    let note = folder.note("seen");
    let plain = format!("cat > {}\n", note.display());
    let folder = folder.program("plain", &plain);
    fs::copy("/bin/true", folder.path().join("compiled")).expect("a small program can be copied");
    add(&client, "compiled", "{}").await;
    add(&client, "plain", "[1]").await;
    run_once(&db, &folder).await;
    assert_eq!(count_jobs(&client).await, 0);
    assert_eq!(fs::read_to_string(note).unwrap(), r#"{"payload":[1]}"#);
}

#[tokio::test]
async fn a_failure_has_the_exit_code_and_the_end_of_stderr() {
    let (db, client) = database().await;
    let script = "#!/bin/sh\necho fine\nfor n in $(seq 100); do echo line $n >&2; done\nexit 3\n";
    let folder = Folder::new().program("fails.sh", script);
    add(&client, "fails", "{}").await;
    run_once(&db, &folder).await;
    let error = last_error(&client).await;
    assert!(error.starts_with("exit code 3\nstderr:\nline 81\n"), "{error}");
    assert!(error.ends_with("\nline 100"), "{error}");
    let line = &log::lines_with("line 57")[0];
    assert_eq!((line.level.as_str(), line.task.as_deref()), ("ERROR", Some("fails")));
}

#[tokio::test]
async fn a_signal_is_reported_by_its_name() {
    let (db, client) = database().await;
    let folder = Folder::new().program("crash", "#!/bin/sh\nkill -SEGV $$\n");
    add(&client, "crash", "{}").await;
    run_once(&db, &folder).await;
    assert_eq!(last_error(&client).await, "killed by SIGSEGV (signal 11)");
}

#[tokio::test]
async fn a_program_that_can_not_be_started_fails_its_job() {
    let (db, client) = database().await;
    let folder = Folder::new().program("bad", "#!/no/such/program\n");
    add(&client, "bad", "{}").await;
    run_once(&db, &folder).await;
    let error = last_error(&client).await;
    assert!(error.starts_with("can't start ") && error.contains("No such file"), "{error}");
}

#[tokio::test]
async fn a_payload_of_a_megabyte_works_whether_it_is_read_or_not() {
    let (db, client) = database().await;
    let folder = Folder::new();
    let note = folder.note("seen");
    let folder = folder
        .program("reads.sh", &format!("#!/bin/sh\ncat > {}\n", note.display()))
        .program("never.sh", "#!/bin/sh\nsleep 0.2\n")
        .program("closes.sh", "#!/bin/sh\nexec <&-\nsleep 0.2\n");
    let text = "é\"\\\n\u{1f41c}".repeat(120_000);
    let payload = serde_json::json!({ "text": text }).to_string();
    assert!(payload.len() > 1_000_000);
    for task in ["reads", "never", "closes"] {
        add(&client, task, &payload).await;
    }
    run_once(&db, &folder).await;
    assert_eq!(count_jobs(&client).await, 0);
    let seen: serde_json::Value = serde_json::from_str(&fs::read_to_string(note).unwrap()).unwrap();
    assert_eq!(seen["payload"]["text"], text);
}

#[tokio::test]
async fn a_task_that_exceeds_its_time_limit_is_ended_with_all_its_processes() {
    let (db, client) = database().await;
    let folder = Folder::new();
    let note = folder.note("pids");
    let script = format!(
        "#!/bin/sh\ntrap '' TERM\nsleep 600 & echo $! > {0}\necho $$ >> {0}\nwait; wait; sleep 600\n",
        note.display()
    );
    let folder = folder.program("hangs.sh", &script).program("quick.sh", "#!/bin/sh\n");
    let mut settings = folder.settings(&db);
    settings.time_limits.insert("hangs".into(), Duration::from_millis(500));
    settings.kill_after = Duration::from_millis(300);
    add(&client, "hangs", "{}").await;
    add(&client, "quick", "{}").await;
    run_once_with(&db, settings).await;
    let error = last_error(&client).await;
    assert_eq!(error, "the time limit of 500ms was exceeded: killed by SIGKILL (signal 9)");
    for pid in fs::read_to_string(note).unwrap().lines() {
        wait_for_end(pid).await;
    }
}

#[tokio::test]
async fn processes_that_a_task_leaves_are_ended_with_it() {
    let (db, client) = database().await;
    let folder = Folder::new();
    let note = folder.note("pid");
    let script = format!("#!/bin/sh\nsleep 600 &\necho $! > {}\n", note.display());
    let folder = folder.program("forks.sh", &script);
    add(&client, "forks", "{}").await;
    let start = Instant::now();
    run_once(&db, &folder).await;
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(count_jobs(&client).await, 0);
    wait_for_end(fs::read_to_string(note).unwrap().trim()).await;
    assert!(!log::lines_with("killed processes that the task had left running").is_empty());
}

#[tokio::test]
async fn a_shutdown_signals_the_group_and_restores_the_attempt() {
    let (db, client) = database().await;
    let folder = Folder::new();
    let (note, told) = (folder.note("pid"), folder.note("told"));
    let script = format!(
        "#!/bin/bash\ntrap 'echo told > {}; exit 1' TERM\nsleep 600 & echo $! > {}\nwait\n",
        told.display(),
        note.display()
    );
    let folder = folder.program("waits.sh", &script);
    add(&client, "waits", "{}").await;
    let tasks = TasksFolder::open(folder.settings(&db)).await.unwrap();
    let worker =
        tasks.define(options(&db)).shutdown_grace_period(Duration::from_millis(100)).init().await.unwrap();
    let handle = worker.handle();
    let running = tokio::spawn(async move { worker.run().await });
    let pid = wait_for("the task to run", || async {
        fs::read_to_string(&note).ok().filter(|text| text.ends_with('\n'))
    })
    .await;
    handle.request_shutdown();
    tokio::time::timeout(testkit::DEADLINE, running).await.unwrap().unwrap().unwrap();
    tasks.close().await;
    assert_eq!(fs::read_to_string(told).unwrap(), "told\n");
    wait_for_end(pid.trim()).await;
    let sql = "select attempts, locked_at is null from graphile_worker.jobs";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!((row.get::<_, i16>(0), row.get::<_, bool>(1)), (0, true));
}

/// Waits until a process has ended, or is defunct because nobody has waited for it yet.
pub(crate) async fn wait_for_end(pid: &str) {
    wait_for("a process to end", || async {
        let state = Command::new("ps").args(["-o", "stat=", "-p", pid]).output().unwrap().stdout;
        let state = String::from_utf8(state).unwrap();
        (state.trim().is_empty() || state.starts_with('Z')).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_program_that_can_not_be_started_fails_with_the_likely_reason() {
    let (db, client) = database().await;
    let folder = Folder::new()
        .program("elsewhere.sh", "#!/no/such/shell -e\nexit 0\n")
        .program("from_windows.sh", "#!/bin/sh\r\nexit 0\r\n")
        .program("by_a_folder.sh", "#!/tmp\nexit 0\n");
    for (task, reason) in [
        ("elsewhere", "(does the program in its first line exist? #!/no/such/shell -e)"),
        ("from_windows", "(its first line ends with CR LF; it must end with LF: #!/bin/sh)"),
        ("by_a_folder", "(is it executable for this user? chmod +x)"),
    ] {
        add(&client, task, "{}").await;
        run_once(&db, &folder).await;
        let error = last_error(&client).await;
        assert!(error.starts_with("can't start /") && error.ends_with(reason), "{error}");
        client.batch_execute("truncate graphile_worker._private_jobs").await.unwrap();
    }
}
