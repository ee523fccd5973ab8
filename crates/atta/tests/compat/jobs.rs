//! Jobs of every shape that a revision knows, and what there is to know of all jobs, as lines that can be compared.

use tokio_postgres::Client;

/// A job to add, at the revisions that know its arguments. Numbers are quoted, since revision 13 wants a smallint where
/// all others want an integer.
struct Shape {
    since: i32,
    arguments: &'static str,
    /// What has become of it since.
    then: Option<&'static str>,
}

const fn shape(since: i32, arguments: &'static str) -> Shape {
    Shape { since, arguments, then: None }
}

const fn then(since: i32, arguments: &'static str, then: &'static str) -> Shape {
    Shape { since, arguments, then: Some(then) }
}

const SHAPES: [Shape; 19] = [
    shape(1, "identifier => 'queued', queue_name => 'serial'"),
    shape(1, r#"identifier => 'queued', queue_name => 'serial', payload => '{"n" : 2.50,  "n": 1e2}'"#),
    shape(1, r#"identifier => 'array', queue_name => 'Ä "b"', payload => '[1, 2 ,{"a":null}]'"#),
    shape(1, "identifier => 'json null', queue_name => 'c', payload => 'null'"),
    shape(1, "identifier => 'later', queue_name => 'd', run_at => '2100-01-02 03:04:05.678901+00'"),
    shape(1, "identifier => 'few attempts', queue_name => 'e', max_attempts => '1'"),
    then(1, "identifier => 'gone', queue_name => 'f'", "max_attempts = 7, attempts = 3"),
    then(
        1,
        "identifier => 'failed', queue_name => 'g'",
        "attempts = 2, last_error = E'Error: \"no\"\\n  at line 1', run_at = now() + interval '7 seconds'",
    ),
    then(
        1,
        "identifier => 'permanently failed', queue_name => 'serial', max_attempts => '4'",
        "attempts = 4, last_error = 'no more', created_at = '2020-02-02 02:02:02.020202+00'",
    ),
    shape(2, "identifier => 'keyed', queue_name => 'h', job_key => 'key 1'"),
    then(
        2,
        "identifier => 'keyed', queue_name => 'i', job_key => 'key 2'",
        "attempts = 25, last_error = 'no more'",
    ),
    then(
        2,
        "identifier => 'left locked', queue_name => 'j'",
        "attempts = 1, locked_at = now() - interval '5 hours', locked_by = 'long gone'",
    ),
    shape(3, "identifier => 'plain'"),
    shape(4, "identifier => 'urgent', priority => '-10'"),
    shape(
        4,
        "identifier => 'all at once', payload => '{}', queue_name => 'k', run_at => '1999-12-31 00:00:00+00',
              max_attempts => '32767', job_key => 'key 3', priority => '32767'",
    ),
    shape(5, "identifier => 'flagged', flags => array['a', 'b']"),
    shape(5, "identifier => 'changed', job_key => 'key 4', payload => '[1]'"),
    shape(5, "identifier => 'changed', job_key => 'key 4', payload => '[2]'"),
    shape(7, "identifier => 'changed', job_key => 'key 4', job_key_mode => 'preserve_run_at'"),
];

/// Adds a job of every shape, through the schema's own `add_job`, and a row of the crontab's memory.
pub(crate) async fn add_every_shape(client: &Client, revision: i32) {
    let prefix = prefix(revision);
    for Shape { arguments, then, .. } in SHAPES.iter().filter(|shape| shape.since <= revision) {
        let added = format!("select (graphile_worker.add_job({arguments})).id");
        let id: i64 = client.query_one(&added, &[]).await.expect(arguments).get(0);
        if let Some(then) = then {
            let change = format!("update graphile_worker.{prefix}jobs set {then} where id = $1");
            client.execute(&change, &[&id]).await.expect(then);
        }
    }
    // Ids have gaps, once jobs are done.
    let done = format!("delete from graphile_worker.{prefix}jobs where max_attempts = 7");
    assert_eq!(client.execute(&done, &[]).await.expect("a job is done"), 1);
    if revision >= 8 {
        let known = format!(
            "insert into graphile_worker.{prefix}known_crontabs (identifier, known_since, last_execution)
             values ('daily', '2021-01-01 01:01:01.010101+00', '2022-02-02 02:02:00+00'), ('new', now(), null)"
        );
        client.batch_execute(&known).await.expect("the crontab's memory is written");
    }
}

/// A line for each job and each known crontab, with all that must survive an upgrade.
///
/// A job's lock is part of it from revision 11 on. Before, it is four hours old at least and goes.
pub(crate) async fn snapshot(client: &Client, revision: i32) -> Vec<String> {
    let jobs = match revision {
        ..=10 => include_str!("jobs_before_11.sql").to_owned(),
        _ => include_str!("jobs_since_11.sql").replace("{prefix}", prefix(revision)),
    };
    let mut lines = read(client, &jobs).await;
    if revision >= 8 {
        let sql = format!(
            "select to_jsonb(known)::text from graphile_worker.{}known_crontabs as known order by identifier",
            prefix(revision)
        );
        lines.extend(read(client, &sql).await);
    }
    lines
}

/// Fails at the first line that is not what it was.
pub(crate) fn assert_unchanged(before: &[String], after: &[String], what: &str) {
    for (before, after) in before.iter().zip(after) {
        assert_eq!(before, after, "{what}");
    }
    assert_eq!(before.len(), after.len(), "{what}: {after:#?}");
}

/// What the names of the tables begin with.
pub(crate) fn prefix(revision: i32) -> &'static str {
    if revision < 16 { "" } else { "_private_" }
}

async fn read(client: &Client, sql: &str) -> Vec<String> {
    let rows = client.query(sql, &[]).await.expect("the jobs can be read");
    rows.iter().map(|row| row.get(0)).collect()
}
