//! A table full of odd rows, looked at.

use serde_json::value::RawValue;

use crate::support::Place;

/// Every kind of time, number, name and payload that SQL lets in, and a few that only a hand can make.
const ODD_ROWS: &str = r#"
    select graphile_worker.add_job('odd', payload::json) from unnest(array[
        'null', '1e400', '"\u0000"', '"\ud800"', repeat('9', 5001), repeat('[', 1000) || repeat(']', 1000), E'{\n"a" : 1}'
    ]) as payload;
    select graphile_worker.add_job('odd', run_at := run_at::timestamptz)
    from unnest(array['-infinity', 'infinity', '4714-11-24 00:00:00Z BC', '1800-01-01', '294276-12-31']) as run_at;
    select graphile_worker.add_job(name, queue_name := name, job_key := 'key ' || name, flags := array[name])
    from unnest(array['', E'\x1b[2J\n\t\x01', repeat('ä', 128), U&'\202e', '--json']) as name;
    select graphile_worker.add_job('odd', max_attempts := 32767, priority := -32768);
    update graphile_worker._private_jobs set
        attempts = -32768, created_at = 'infinity', updated_at = '-infinity', flags = '[1]', revision = 2147483647,
        last_error = E'\x1b[2J' || repeat('e', 100000), locked_at = '0044-03-15 BC', locked_by = E'\x1b[2J'
    where max_attempts = 32767;
"#;

#[tokio::test]
async fn odd_rows_are_shown_and_control_no_terminal() {
    let place = Place::new().await;
    let zone = format!("alter database {} set timezone = 'America/New_York'", place.db.name());
    place.client.batch_execute(&zone).await.expect("the zone is set");
    place.client.batch_execute(ODD_ROWS).await.expect("SQL lets them in");
    let ids = place.ids().await;
    let first = ids.split(' ').next().expect("there are jobs");
    let last = ids.rsplit(' ').next().expect("there are jobs");
    for words in [
        vec!["jobs"],
        vec!["jobs", "--state", "ready,running", "--limit", "100000"],
        vec!["show", last],
        vec!["show", first],
        vec!["show", "--key", "key \u{202e}"],
        vec!["queues"],
        vec!["tasks"],
        vec!["workers"],
        vec!["stats"],
    ] {
        let run = place.atta(&words);
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{words:?}");
        assert!(!run.out.contains(['\u{1b}', '\u{1}']), "{words:?}: {:?}", run.out);
        let json = place.atta(&[words.as_slice(), &["--json"]].concat());
        assert_eq!((json.code, json.err.as_str()), (0, ""), "{words:?}");
        serde_json::from_str::<&RawValue>(&json.out).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    }
    let run = place.atta(&["jobs", "--json"]);
    let jobs: Vec<&RawValue> = serde_json::from_str(&run.out).expect("a list");
    assert_eq!(jobs.len(), ids.split(' ').count());
}

#[tokio::test]
async fn numbers_and_times_beyond_every_limit_are_refused_in_words() {
    let place = Place::with_jobs().await;
    for (words, told) in [
        (vec!["show", "99999999999999999999"], "99999999999999999999"),
        (vec!["add", "t", "--priority", "40000"], "40000"),
        (vec!["add", "t", "--run-at", "+262142-12-31T23:59:59Z"], "run-at"),
        (vec!["add", "t", "--payload", "{\"a\":"], "payload"),
        (vec!["reschedule", "1", "--max-attempts", "0", "--yes"], "max"),
        (vec!["jobs", "--limit=-1"], "limit"),
        (vec!["jobs", "--after", "1e3"], "after"),
    ] {
        let run = place.atta(&words);
        assert_eq!(run.code, 2, "{words:?}: {}{}", run.out, run.err);
        assert!(run.err.starts_with("error:") && run.err.contains(told), "{words:?}: {}", run.err);
        assert!(!run.err.contains("panicked"), "{words:?}: {}", run.err);
    }
}

/// Rows whose text is not valid in the encoding of the database, beside rows whose text is.
const BAD_TEXT: &str = r#"
    create function pg_temp.bad() returns text language sql
      as $$ select convert_from('\x628161ff'::bytea, getdatabaseencoding()) $$;
    select id from graphile_worker.add_job('good', queue_name := 'good');
    select id from graphile_worker.add_job(
        'name ' || pg_temp.bad(), queue_name := 'queue ' || pg_temp.bad(), job_key := 'key ' || pg_temp.bad(),
        payload := json_build_object('text', pg_temp.bad()), flags := array[pg_temp.bad()]
    );
    update graphile_worker._private_jobs set last_error = pg_temp.bad(), attempts = 1 where id = 2;
    update graphile_worker._private_jobs set locked_by = pg_temp.bad(), locked_at = now() where id = 2;
    insert into graphile_worker._private_known_crontabs values (pg_temp.bad(), now(), null);
    select graphile_worker.add_job('good', payload := json_build_object('text', 'é'), job_key := 'é');
"#;

/// Every command that reads shows the rows whose text is not valid, with replacement characters, and the other rows.
async fn bad_text_is_replaced(encoding: &str) {
    let place = Place::encoded(encoding).await;
    place.client.batch_execute(BAD_TEXT).await.expect("the database takes them");
    for (words, good) in [
        (&["jobs"][..], "good"),
        (&["jobs", "--newest"], "good"),
        (&["jobs", "--state", "running"], ""),
        (&["show", "2"], ""),
        (&["queues"], "good"),
        (&["tasks"], "good"),
        (&["workers"], ""),
        (&["stats"], "good"),
        (&["cron", "list"], ""),
    ] {
        for run in [place.atta(words), place.atta(&[words, &["--json"]].concat())] {
            assert_eq!((run.code, run.err.as_str()), (0, ""), "{encoding}, {words:?}: {}", run.out);
            assert!(
                run.out.contains("b\u{fffd}a\u{fffd}") && run.out.contains(good),
                "{words:?}: {}",
                run.out
            );
        }
        let json = place.atta(&[words, &["--json"]].concat());
        serde_json::from_str::<&RawValue>(&json.out).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    }
    let jobs = place.json(&["jobs", "--json"]);
    let (texts, ids) = (|n: usize| &jobs[n]["payload"]["text"], |n: usize| &jobs[n]["id"]);
    assert_eq!((ids(0), ids(1), ids(2)), (&1.into(), &2.into(), &3.into()));
    assert_eq!((texts(1).as_str(), texts(2).as_str()), (Some("b\u{fffd}a\u{fffd}"), Some("é")), "{encoding}");
    let found = place.json(&["show", "--key", "é", "--json"]);
    assert_eq!(found["id"], 3, "{encoding}");
    let changed = place.atta(&["unlock", "2", "--yes"]);
    assert_eq!(changed.code, 0, "{encoding}: {}", changed.err);
}

#[tokio::test]
async fn text_that_is_not_valid_utf8_hides_no_other_row() {
    bad_text_is_replaced("SQL_ASCII").await;
}

#[tokio::test]
async fn text_without_an_equivalent_in_utf8_hides_no_other_row() {
    bad_text_is_replaced("WIN1252").await;
}

#[tokio::test]
async fn a_character_that_the_database_lacks_matches_nothing_and_is_replaced_in_a_reason() {
    let place = Place::encoded("LATIN1").await;
    place.client.batch_execute("select graphile_worker.add_job('t')").await.expect("a job is added");
    for words in [
        &["jobs", "--count", "--task", "€"][..],
        &["jobs", "--count", "--queue", "€"],
        &["jobs", "--count", "--error", "€"],
    ] {
        let run = place.atta(words);
        assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (0, "0\n", ""), "{words:?}");
    }
    for words in [&["jobs", "--key", "€", "--json"][..], &["jobs", "--task", "€", "--json"]] {
        assert_eq!(place.json(words), serde_json::json!([]), "{words:?}");
    }
    let run = place.atta(&["remove", "--task", "€", "--yes"]);
    assert!(!run.err.contains("22P05"), "{}", run.err);
    let run = place.atta(&["fail", "1", "--reason", "kaputt €", "--yes"]);
    assert_eq!(run.code, 0, "{}", run.err);
    let stored = place.value("select last_error from graphile_worker._private_jobs").await;
    assert_eq!(stored, "kaputt ?");
}
