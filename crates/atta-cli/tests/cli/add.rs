//! `atta add`.

use serde_json::{Value, json};
use testkit::SetClock;

use crate::command;
use crate::support::{Interrupted, Place, TextFile, run_with_input};

const STORED: &str = "select jsonb_build_object('payload', job.payload::text, 'queue', queue.queue_name, 'priority', job.priority,
    'max', job.max_attempts, 'key', job.key, 'flags', job.flags, 'seconds', round(extract(epoch from job.run_at - now())))
  from graphile_worker._private_jobs as job left join graphile_worker._private_job_queues as queue on queue.id = job.job_queue_id";

#[tokio::test]
async fn a_job_gets_every_field_and_its_payload_to_the_letter() {
    let place = Place::new().await;
    let payload = "{\"n\": 1.0,  \"big\": 123456789012345678901234567890}";
    let run = place.atta(&[
        "add",
        "email",
        payload,
        "--queue",
        "q",
        "--run-at",
        "5m",
        "--max-attempts",
        "3",
        "--key",
        "k",
        "--key-mode",
        "preserve_run_at",
        "--priority",
        "-5",
        "--flag",
        "a",
        "--flag",
        "b",
    ]);
    assert_eq!((run.code, run.out.as_str()), (0, "added job 1 (email, due in 5 min)\n"), "{}", run.err);
    let stored: Value = serde_json::from_str(&place.value(STORED).await).unwrap();
    let seconds = stored["seconds"].as_f64().unwrap();
    assert!((280.0..=300.0).contains(&seconds), "{stored}");
    let expected = json!({ "payload": payload, "queue": "q", "priority": -5, "max": 3, "key": "k",
        "flags": { "a": true, "b": true }, "seconds": stored["seconds"] });
    assert_eq!(stored, expected);
    // The task is known by now, so there is no warning; and the key finds the job.
    let again = place.atta(&["add", "email", "--key", "k"]);
    assert_eq!((again.out.as_str(), again.err.as_str()), ("changed job 1 (email)\n", ""));
}

#[tokio::test]
async fn a_payload_comes_from_the_command_line_a_file_or_standard_input() {
    let place = Place::new().await;
    let file = TextFile::new("payload.json", "{\"from\": \"a file\"}\n");
    let at_file = format!("@{}", file.path());
    place
        .client
        .batch_execute("insert into graphile_worker._private_tasks (identifier) values ('t')")
        .await
        .unwrap();
    for (argument, input, stored) in [
        (None, "", json!({})),
        (Some("[1, \"ü'\\\"\"]"), "", json!([1, "ü'\""])),
        (Some("-7"), "", json!(-7)),
        (Some(at_file.as_str()), "", json!({ "from": "a file" })),
        (Some("-"), "{\"from\":\n \"input\"}", json!({ "from": "input" })),
    ] {
        let mut words = vec!["add", "t", "--json"];
        words.extend(argument);
        let run = place.atta_with_input(&words, input);
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{argument:?}");
        let job: Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!((&job["payload"], &job["task_identifier"]), (&stored, &json!("t")));
        assert!(job["id"].is_i64() && job["run_at"].as_str().unwrap().ends_with('Z'), "{job}");
    }
}

#[tokio::test]
async fn an_unknown_task_is_added_with_a_warning() {
    let place = Place::new().await;
    let run = place.atta(&["add", "emial"]);
    assert_eq!((run.code, run.out.as_str()), (0, "added job 1 (emial)\n"));
    assert!(
        run.err.starts_with("warning: task \"emial\" is unknown") && run.err.contains("\nhint: "),
        "{}",
        run.err
    );
}

#[test]
fn an_invalid_payload_is_shown_with_a_caret() {
    let run = run_with_input(&["add", "t", "{\"to\": nobody}"], "");
    assert_eq!(run.code, 2);
    let expected = "error: the payload is not valid JSON: line 1, column 9: expected ident\n  {\"to\": nobody}\n          ^\nhint: in a shell";
    assert!(run.err.starts_with(expected), "{}", run.err);
    let run = run_with_input(&["add", "t", "-"], "{\n  \"a\": 1,\n}\n");
    assert!(
        run.err.contains(
            "on standard input is not valid JSON: line 3, column 1: key must be a string\n  }\n  ^"
        ),
        "{}",
        run.err
    );
    let run = run_with_input(&["add", "t", "@/nowhere/at all"], "");
    assert!(run.err.starts_with("error: can't read /nowhere/at all: No such file"), "{}", run.err);
}

#[test]
fn invalid_options_are_rejected_with_the_allowed_values() {
    for (words, said) in [
        (vec!["add"], "TASK"),
        (vec!["add", "t", "--run-at", "tomorrow"], "expected a time with its zone"),
        (vec!["add", "t", "--max-attempts", "0"], "1..=32767"),
        (vec!["add", "t", "--key-mode", "replace"], "--key"),
        (vec!["add", "t", "--key", "k", "--key-mode", "merge"], "preserve_run_at"),
        (vec!["add", "--bulk", "f", "--priority", "1"], "cannot be used with"),
    ] {
        let run = run_with_input(&words, "");
        assert_eq!(run.code, 2, "{words:?}");
        assert!(run.err.contains(said), "{words:?}: {}", run.err);
    }
}

#[tokio::test]
async fn errors_of_the_database_are_shown_with_their_hint() {
    let place = Place::new().await;
    let run = place.atta(&["add", &"x".repeat(129)]);
    assert_eq!(run.code, 2);
    assert!(run.err.contains("GWBID") && run.err.contains("hint: At most 128 characters"), "{}", run.err);
}

#[tokio::test]
async fn a_file_of_jobs_is_added_in_its_order_and_in_every_mode() {
    let place = Place::new().await;
    let mut lines = String::from("\u{feff}{\"identifier\": \"a\", \"payload\": {\"n\": 1.0}}\r\n\n");
    lines += "{\"task\": \"b\", \"queue_name\": \"q\", \"runAt\": \"2h\", \"max_attempts\": 2, \"priority\": 7, \"flags\": [\"f\"]}\n";
    lines += "{\"identifier\": \"c\", \"jobKey\": \"k\", \"runAt\": \"2030-01-01T00:00:00Z\"}\n";
    lines += "{\"identifier\": \"d\", \"job_key\": \"k\", \"jobKeyMode\": \"preserve_run_at\", \"payload\": null}\n";
    lines += "{\"identifier\": \"e\", \"key\": \"k\", \"jobKeyMode\": \"unsafe_dedupe\"}\n";
    lines += "{\"payload\": [1]}";
    let file = TextFile::new("jobs.jsonl", &lines);
    let run = place.atta(&["add", "rest", "--bulk", file.path()]);
    assert_eq!((run.code, run.out.as_str()), (0, "added 6 jobs\n"), "{}", run.err);
    let stored = place.value("select string_agg(concat_ws(',', task.identifier, job.payload, job.key, job.priority, job.max_attempts), ' ' order by job.id)
        from graphile_worker._private_jobs as job join graphile_worker._private_tasks as task on task.id = job.task_id").await;
    assert_eq!(stored, "a,{\"n\": 1.0},0,25 b,{},7,2 d,{},k,0,25 rest,[1],0,25");
    let year = place.value("select extract(year from run_at at time zone 'UTC') from graphile_worker._private_jobs where key = 'k'").await;
    assert_eq!(year, "2030");
}

#[tokio::test]
async fn an_invalid_line_in_a_file_adds_nothing_and_in_a_stream_reports_the_number_of_added_jobs() {
    let place = Place::new().await;
    let lines = "{\"identifier\": \"a\"}\n\n{\"identifier\": \"a\", \"prio\": 1}\n";
    let file = TextFile::new("wrong.jsonl", lines);
    let run = place.atta(&["add", "--bulk", file.path()]);
    assert_eq!(run.code, 2);
    let said = format!("error: {}, line 3, column 26: unknown field `prio`", file.path());
    assert!(run.err.starts_with(&said), "{}", run.err);
    assert_eq!(place.ids().await, "");

    let run = place.atta_with_input(&["add", "--bulk", "-"], lines);
    assert_eq!(run.code, 2);
    assert!(run.err.contains("standard input, line 3, column 26: "), "{}", run.err);
    assert!(run.err.contains("\nbefore that, 1 job was added\nhint: "), "{}", run.err);
    assert_eq!(place.ids().await, "1");

    let refused = "{\"identifier\": \"a\"}\n{\"identifier\": \"a\", \"maxAttempts\": 0}\n";
    let run = place.atta_with_input(&["add", "--bulk", "-"], refused);
    assert_eq!(run.code, 2);
    assert!(
        run.err.contains("error: standard input, line 2: invalid job: invalid max_attempts: 0\nbefore that, 1 job was added\n"),
        "{}",
        run.err
    );
    assert!(run.err.contains("atta add --bulk - --from-line 2"), "{}", run.err);
    assert_eq!(place.ids().await, "1 2");

    let nameless = place.atta_with_input(&["add", "--bulk", "-"], "{}\n");
    assert!(
        nameless.err.contains("line 1: the task is missing") && nameless.err.contains("hint: "),
        "{}",
        nameless.err
    );
}

/// The mistake is in the third batch: it must be found before the first one is added.
#[tokio::test]
async fn a_line_that_the_database_would_refuse_is_found_before_any_job_is_added() {
    let place = Place::new().await;
    let long =
        |field: &str, length: usize| format!("\"identifier\":\"a\",\"{field}\":\"{}\"", "é".repeat(length));
    for (mistake, said) in [
        ("\"identifier\":\"a\",\"maxAttempts\":0".to_owned(), "invalid max_attempts: 0\n"),
        (format!("\"identifier\":\"{}\"", "é".repeat(129)), "identifier is too long: 129 characters (\"é"),
        (long("queueName", 129), "queue_name is too long: 129 characters (\"é"),
        (long("jobKey", 513), "job_key is too long: 513 characters (\"é"),
        ("\"identifier\":\"a\",\"jobKey\":\"\"".to_owned(), "job_key is empty\n"),
        ("\"identifier\":\"a\\u0000\"".to_owned(), "identifier contains a NUL character"),
        ("\"identifier\":\"a\",\"runAt\":\"0000-01-01T00:00:00Z\"".to_owned(), "invalid run_at: 0000-"),
        (format!("\"identifier\":\"a\",\"flags\":[\"{}\"]", "x".repeat(70_000)), "the flags are too long"),
    ] {
        let file = TextFile::new("limits.jsonl", &(many_lines(11_002) + "{" + &mistake + "}\n"));
        let run = place.atta(&["add", "--bulk", file.path()]);
        assert_eq!(run.code, 2, "{said}");
        let start = format!("error: {}, line 11003: invalid job: {said}", file.path());
        assert!(run.err.starts_with(&start) && run.err.contains("\nhint: "), "{said}: {}", run.err);
        assert_eq!(place.value(COUNT).await, "0", "{said}");
    }
    let longest = format!(
        "{{\"identifier\":\"{0}\",\"queueName\":\"{0}\",\"jobKey\":\"{1}\",\"maxAttempts\":32767}}\n",
        "é".repeat(128),
        "é".repeat(512)
    );
    let run = place.atta_with_input(&["add", "--bulk", "-"], &longest);
    assert_eq!(run.code, 0, "{}", run.err);
}

#[tokio::test]
async fn a_later_line_with_the_same_key_changes_the_job_of_the_earlier_one() {
    let place = Place::new().await;
    let lines = "{\"identifier\":\"a\",\"jobKey\":\"k\"}\n{\"identifier\":\"b\"}\n{\"identifier\":\"c\",\"jobKey\":\"k\"}\n";
    let file = TextFile::new("keys.jsonl", &(many_lines(5_500) + lines));
    let run = place.atta(&["add", "--bulk", file.path()]);
    assert_eq!((run.code, run.out.as_str()), (0, "added 5503 jobs\n"), "{}", run.err);
    let stored =
        "select string_agg(task_identifier, ' ' order by task_identifier) || max(revision) from graphile_worker.jobs
        where task_identifier <> 'many'";
    assert_eq!(place.value(stored).await, "b c1");
}

#[tokio::test]
async fn a_batch_that_the_database_refuses_names_the_line_to_continue_from() {
    let place = Place::new().await;
    let refuse = "create function refuse() returns trigger language plpgsql as $$ begin raise 'no seventh thousand'; end $$;
        create trigger refuse before insert on graphile_worker._private_jobs for each row
        when (new.payload->>'n' = '6000') execute function refuse()";
    place.client.batch_execute(refuse).await.expect("a trigger is made");
    let file = TextFile::new("refused.jsonl", &many_lines(7_000));
    let run = place.atta(&["add", "--bulk", file.path()]);
    assert_eq!(run.code, 2, "{}", run.err);
    assert!(
        run.err.contains("none of lines 5001 to 7000 was added\nbefore that, 5000 jobs were added\n"),
        "{}",
        run.err
    );
    let again = format!(
        "hint: to continue after the last job that was added, run: atta add --bulk {} --from-line 5001\n",
        file.path()
    );
    assert!(run.err.ends_with(&again), "{}", run.err);
}

#[tokio::test]
async fn very_many_lines_are_added_in_batches() {
    let place = Place::new().await;
    let lines: String =
        (0..12_345).map(|n| format!("{{\"identifier\":\"many\",\"payload\":{{\"n\":{n}}}}}\n")).collect();
    let run = place.atta_with_input(&["add", "--bulk", "-", "--json"], &lines);
    assert_eq!(serde_json::from_str::<Value>(&run.out).unwrap(), json!({ "added": 12_345 }), "{}", run.err);
    assert_eq!(run.err.matches("warning").count(), 1, "{}", run.err);
    let in_order =
        "select count(*) from graphile_worker._private_jobs where (payload ->> 'n')::bigint = id - 1";
    assert_eq!(place.value(in_order).await, "12345");
}

/// This machine's clock is two hours ahead.
#[tokio::test]
async fn a_span_counts_from_the_time_of_the_database() {
    let place = Place::new().await;
    let clock = SetClock::new(std::env::temp_dir().join(format!("{}-clock", place.db.name())));
    clock.set(7200);
    let (url, file) =
        (place.db.url(), TextFile::new("runat.jsonl", "{\"task\": \"t\", \"runAt\": \"5m\"}\n"));
    for words in [
        &["add", "t", "--run-at", "5m"][..],
        &["add", "--bulk", file.path()],
        &["reschedule", "--task", "t", "--run-at", "5m", "--yes"],
    ] {
        let mut command = command(&[words, &["-c", &url]].concat());
        clock.give_to(&mut command);
        let output = command.output().expect("atta runs");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        let sql = "select string_agg(round(extract(epoch from run_at - now()))::text, ',')
                   from graphile_worker._private_jobs";
        let seconds = place.value(sql).await;
        let is_right = |seconds: &str| seconds.parse().is_ok_and(|seconds| (240..=300).contains(&seconds));
        assert!(seconds.split(',').all(is_right), "{words:?}: in {seconds} seconds");
        if words[0] != "reschedule" {
            place
                .client
                .batch_execute("update graphile_worker._private_jobs set run_at = now() + interval '5m'")
                .await
                .unwrap();
        }
    }
}

fn many_lines(count: usize) -> String {
    (0..count).map(|n| format!("{{\"identifier\":\"many\",\"payload\":{{\"n\":{n}}}}}\n")).collect()
}

const COUNT: &str = "select count(*) from graphile_worker._private_jobs";

#[tokio::test]
async fn a_bulk_add_that_ends_without_the_reply_does_not_say_that_it_can_be_repeated() {
    let place = Place::new().await;
    let (file, url) = (TextFile::new("twice.jsonl", &many_lines(3)), place.db.url());
    place
        .client
        .batch_execute("begin; lock table graphile_worker._private_jobs in exclusive mode")
        .await
        .unwrap();
    let mut running = Interrupted::start(&["add", "--bulk", file.path(), "-c", &url]);
    let observer = place.db.client().await;
    let waits =
        "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let is_waiting = || async { observer.query_opt(waits, &[]).await.unwrap().map(drop) };
    testkit::wait_for("the add to wait for the lock", is_waiting).await;
    // A signal that follows quickly counts as a repetition of the first, so more than two are sent.
    while !running.has_ended() {
        running.send("INT");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let run = running.end().await;
    assert_eq!(run.code, 130, "{}", run.err);
    assert!(
        run.err.contains("no job was added\nlines 1 to 3 may have been added, or will be"),
        "{}",
        run.err
    );
    assert!(run.err.contains("check with atta jobs --newest"), "{}", run.err);
    assert!(run.err.contains("--from-line 1, or: ") && run.err.contains("--from-line 4"), "{}", run.err);
}

/// The command still connects: the server accepts the connection and does not answer.
#[tokio::test]
async fn a_bulk_add_that_is_interrupted_before_its_first_batch_says_so() {
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://nobody@{}/none", server.local_addr().unwrap());
    let file = TextFile::new("early.jsonl", &many_lines(3));
    let running = Interrupted::start(&["add", "--bulk", file.path(), "-c", &url]);
    let _connection = server.accept().await.unwrap();
    let run = running.signal("INT").await;
    assert_eq!((run.code, run.err.as_str()), (130, "error: interrupted by SIGINT: no job was added\n"));
}

#[tokio::test]
async fn an_interrupted_bulk_add_reports_what_was_added_and_can_be_continued() {
    let place = Place::new().await;
    let lines = many_lines(7_000);
    let url = place.db.url();
    let mut running = Interrupted::start(&["add", "--bulk", "-", "--json", "-c", &url]);
    // The first batch is full, the second is not. The command waits for more input.
    running.write(&lines);
    testkit::wait_for("the first batch", || async { (place.value(COUNT).await == "5000").then_some(()) })
        .await;
    let run = running.signal("INT").await;
    assert_eq!(run.code, 130, "{}", run.err);
    let said = "error: interrupted by SIGINT: 5000 jobs were added, up to line 5000\nhint: to continue with the same input, run: \
                atta add --bulk - --from-line 5001\n";
    assert!(run.err.ends_with(said), "{}", run.err);
    assert_eq!(serde_json::from_str::<Value>(&run.out).unwrap(), json!({ "added": 5000, "next_line": 5001 }));

    let file = TextFile::new("go-on.jsonl", &lines);
    let run = place.atta(&["add", "--bulk", file.path(), "--from-line", "5001"]);
    assert_eq!((run.code, run.out.as_str()), (0, "added 2000 jobs\n"), "{}", run.err);
    let distinct =
        "select count(distinct payload ->> 'n') || ' of ' || count(*) from graphile_worker._private_jobs";
    assert_eq!(place.value(distinct).await, "7000 of 7000");
}

#[tokio::test]
async fn a_bulk_add_from_a_line_beyond_the_end_is_an_error() {
    let place = Place::new().await;
    let file = TextFile::new("short.jsonl", &many_lines(3));
    let from = |line| place.atta(&["add", "--bulk", file.path(), "--from-line", line]);
    let run = from("5");
    assert_eq!(run.code, 2, "{}", run.out);
    assert!(run.err.starts_with("error: line 5 does not exist in "), "{}", run.err);
    assert!(run.err.contains("which has 3 lines\nhint: "), "{}", run.err);
    // An interrupted command that has added the last line names the next one.
    assert_eq!((from("4").code, place.value(COUNT).await.as_str()), (0, "0"));
}

#[tokio::test]
async fn a_bulk_add_from_a_closed_standard_input_is_an_error() {
    let place = Place::new().await;
    let url = place.db.url();
    let binary = env!("CARGO_BIN_EXE_atta");
    let run = |redirection: &str| {
        let script = format!("exec {binary} add --bulk - -c '{url}' {redirection}");
        std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap()
    };
    let closed = run("<&-");
    let said = String::from_utf8_lossy(&closed.stderr).into_owned();
    assert_eq!((closed.status.code(), said.as_str()), (Some(2), "error: standard input is closed\n"));
    // An empty input is not an error: its writer had nothing to add.
    assert_eq!(run("</dev/null").status.code(), Some(0));
}

#[tokio::test]
async fn lines_whose_commit_has_no_reply_may_have_been_added() {
    let place = Place::new().await;
    let (proxy, url) = testkit::Proxy::before(&place.db.url());
    let file = TextFile::new("many.jsonl", &"{\"identifier\": \"a\"}\n".repeat(100));
    proxy.lose_answer_with("COMMIT");
    let run = run_with_input(&["add", "--bulk", file.path(), "-c", &url], "");
    assert_eq!((run.code, proxy.lost_answers()), (2, 1), "{}", run.err);
    // The command does not wait for a commit whose reply can't arrive.
    testkit::wait_for("the commit", || async { (place.value(COUNT).await == "100").then_some(()) }).await;
    assert!(
        run.err.contains("lines 1 to 100 may have been added, all or none: the reply was lost"),
        "{}",
        run.err
    );
    assert!(run.err.contains("--from-line 1 or --from-line 101"), "{}", run.err);
}

/// A statement that waits for a lock.
const WAITING: &str =
    "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";

#[tokio::test]
async fn an_interrupted_add_is_cancelled_on_the_server() {
    let place = Place::new().await;
    let lock = "begin; lock table graphile_worker._private_jobs in exclusive mode";
    place.client.batch_execute(lock).await.unwrap();
    let url = place.db.url();
    let observer = place.db.client().await;
    for signal in ["INT", "TERM"] {
        let running = Interrupted::start(&["add", "t", "-c", &url]);
        let is_waiting = || async { observer.query_opt(WAITING, &[]).await.unwrap().map(drop) };
        testkit::wait_for("the add to wait for the lock", is_waiting).await;
        let run = running.signal(signal).await;
        assert_eq!((run.code, run.out.as_str()), (130, ""), "{}", run.err);
        let told = format!("error: interrupted by SIG{signal}: no job was added\n");
        assert!(run.err.ends_with(&told), "{}", run.err);
        assert!(observer.query_opt(WAITING, &[]).await.unwrap().is_none(), "the statement has ended");
    }
    place.client.batch_execute("rollback").await.unwrap();
    assert_eq!(place.value(COUNT).await, "0");
}

/// The command still connects: the server accepts the connection and does not answer.
#[tokio::test]
async fn an_add_that_is_interrupted_before_it_is_sent_reports_that_nothing_was_added() {
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://nobody@{}/none", server.local_addr().unwrap());
    let running = Interrupted::start(&["add", "t", "-c", &url]);
    let _connection = server.accept().await.unwrap();
    let run = running.signal("TERM").await;
    assert_eq!((run.code, run.err.as_str()), (130, "error: interrupted by SIGTERM: no job was added\n"));
}

/// An add that waits for a lock, with a proxy before the server.
async fn waiting_add(place: &Place) -> (testkit::Proxy, Interrupted) {
    let (proxy, url) = testkit::Proxy::before(&place.db.url());
    let lock = "begin; lock table graphile_worker._private_jobs in exclusive mode";
    place.client.batch_execute(lock).await.expect("the table is locked");
    let running = Interrupted::start(&["add", "t", "-c", &url]);
    let observer = place.db.client().await;
    let is_waiting =
        || async { observer.query_opt(WAITING, &[]).await.expect("the activity is read").map(drop) };
    testkit::wait_for("the add to wait for the lock", is_waiting).await;
    (proxy, running)
}

#[tokio::test]
async fn an_interrupted_add_without_an_answer_may_have_been_added() {
    let place = Place::new().await;
    let (proxy, running) = waiting_add(&place).await;
    proxy.mute_all();
    let run = running.signal("INT").await;
    assert_eq!((run.code, run.out.as_str()), (130, ""), "{}", run.err);
    assert!(run.err.contains("error: interrupted by SIGINT: the job may have been added"), "{}", run.err);
    assert!(run.err.contains("\nhint: check with atta jobs --newest"), "{}", run.err);
}

#[tokio::test]
async fn an_add_whose_connection_was_lost_may_have_been_added() {
    let place = Place::new().await;
    let (proxy, running) = waiting_add(&place).await;
    proxy.cut_all();
    let run = running.end().await;
    assert_eq!((run.code, run.out.as_str()), (2, ""), "{}", run.err);
    assert!(run.err.contains("\nthe job may have been added: the reply was lost\n"), "{}", run.err);
    assert!(run.err.contains("\nhint: check with atta jobs --newest"), "{}", run.err);
}

/// Reading this number of lines takes several seconds.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_bulk_add_that_is_interrupted_while_it_checks_its_file_says_so() {
    let file = TextFile::new("checked.jsonl", &"\n".repeat(50_000_000));
    let running =
        Interrupted::start(&["add", "--bulk", file.path(), "-c", "postgres://nobody@127.0.0.1:1/none"]);
    running.handles_sigterm().await;
    let run = running.signal("TERM").await;
    assert_eq!((run.code, run.err.as_str()), (130, "error: interrupted by SIGTERM: no job was added\n"));
}
