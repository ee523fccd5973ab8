//! Every invariant can fail: each test breaks one statement, and expects the finding that names the broken rule.

use crate::groups;
use crate::run::run;
use tokio_postgres::SimpleQueryMessage;

use crate::actors::DECLARE_DEAD;
use crate::statements::{execute, prepare};
use crate::world::{Lane, World};
use crate::{Tally, check, run_group};

/// A statement, a part of its text, what takes its place, the actors that then break a rule, and the finding.
const BREAKS: [(&str, &str, &str, &str, &str); 13] = [
    ("claim_by_job", "for update skip locked", "for update", "plain claim_all claim_all", "waits for a row"),
    (
        "claim_level",
        "job.locked_at is null",
        "true",
        "plain claim_level heartbeat",
        "only free jobs are claimed",
    ),
    (
        "claim_by_queue",
        "set locked_by = $1::text, locked_at = coalesce($4::timestamptz, pg_catalog.now())",
        "set locked_by = queue.locked_by",
        "mixed claim_queued heartbeat",
        "its queue by None",
    ),
    (
        "claim_by_queue",
        "attempts = job.attempts + 1",
        "attempts = job.attempts + 2",
        "plain claim_one heartbeat",
        "a claim counts one attempt",
    ),
    ("pick_jobs", "for update skip locked", "", "plain pick_complete pick_complete", "held by two actors"),
    (
        "complete_claimed",
        "and ((job.id, job.locked_at) not in (select claim.id, claim.locked_at from claim)) is false",
        "",
        "plain complete_unclaimed heartbeat",
        "a release completes only jobs whose claims are valid",
    ),
    (
        "complete_claimed_queued",
        "set locked_by = null, locked_at = null",
        "set locked_by = queue.locked_by",
        "mixed complete_queued heartbeat",
        "may not change a queue like this",
    ),
    (
        "complete_claimed_queued",
        "where own_queue.id not in (select blocked.id from blocked)",
        "where false",
        "mixed complete_queued heartbeat",
        "for no job",
    ),
    (
        "return_claimed",
        "greatest(0, job.attempts - 1)",
        "job.attempts - 2",
        "mixed return_claimed heartbeat",
        "has -1 attempts",
    ),
    ("add_job", "'id', job.id,", "'id', job.id + 1,", "plain add_plain heartbeat", "replied"),
    (
        "delete_unused_tasks",
        "not exists",
        "exists",
        "plain clean_tasks heartbeat",
        "the task of job 3 is gone",
    ),
    (
        "delete_unused_job_queues",
        "and not exists",
        "and exists",
        "mixed clean_queues heartbeat",
        "the queue of job 1 is gone",
    ),
    (
        "heartbeat",
        "$1::text",
        "(1 / pg_catalog.length(substr($1, 9)))::text",
        "plain claim_all heartbeat",
        "failed: 22012",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_broken_statement_is_found() {
    let mut lane = Lane::open().await;
    for (statement, from, to, actors, expected) in BREAKS {
        let break_it = |sql: String| {
            assert!(sql.contains(from), "{statement} does not contain {from}");
            sql.replace(from, to)
        };
        prepare_again(&lane, statement, break_it).await;
        let wanted = groups::parse(actors);
        let mut tally = Tally::default();
        for group in wanted.groups() {
            run_group(&mut lane, &wanted, &group, &mut tally).await;
        }
        prepare_again(&lane, statement, |sql| sql).await;
        let findings = tally.findings.join("\n");
        let is_found = findings.lines().any(|line| line.starts_with("FINDING") && line.contains(expected));
        assert!(is_found, "{statement}, {to}: expected {expected:?}, found {findings}");
    }
}

async fn prepare_again(lane: &Lane, statement: &str, change: impl Fn(String) -> String) {
    for session in &lane.sessions {
        session.client.batch_execute(&format!("deallocate {statement}")).await.unwrap();
        prepare(&session.client, statement, &change).await;
    }
}

#[tokio::test]
async fn a_row_that_disappears_without_a_logged_change_is_reported() {
    let mut lane = Lane::open().await;
    let wanted = groups::parse("plain add_plain heartbeat");
    let group = wanted.groups().remove(0);
    let mut ran = run(&mut lane, &group, &mut |_, ready| ready[0]).await;
    let pids: Vec<i32> = lane.sessions.iter().map(|session| session.pid).collect();
    assert_eq!(check::check(&group, &ran, &pids), Vec::<String>::new());
    ran.after.jobs.retain(|job| job.id != 101);
    assert_eq!(check::check(&group, &ran, &pids), ["the rows are not what the log says"]);
}

/// Cases that were findings once.
const FIXED: [&str; 3] = [
    "mixed add_replace_stale sweep ABAB",
    "mixed clean_queues add_unused_ser ABABAB",
    "plain clean_tasks add_batch_back_rr ABBAAB",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cases_that_once_failed_pass() {
    let mut lane = Lane::open().await;
    let mut tally = Tally::default();
    for words in FIXED {
        let wanted = groups::parse(words);
        for group in wanted.groups() {
            run_group(&mut lane, &wanted, &group, &mut tally).await;
        }
    }
    assert!(tally.findings.is_empty(), "{}", tally.findings.join("\n\n"));
}

/// If it declared nobody dead, its interleavings would show nothing.
#[tokio::test]
async fn the_actor_that_declares_workers_dead_finds_the_stale_one() {
    let mut lane = Lane::open().await;
    let (name, arguments) = DECLARE_DEAD;
    // Until the server has run for longer than the threshold, nobody is stale.
    for _ in 0..100 {
        lane.reset(World::Mixed).await;
        let rows = lane.sessions[0].client.simple_query(&execute(name, arguments)).await.unwrap();
        let ids: Vec<&str> = rows
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            })
            .collect();
        if ids == ["ws"] {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("nobody was declared dead");
}
