//! Every interleaving of our SQL: each pair, and some triples, of our statements and functions, step by step in every
//! order, on a real PostgreSQL; the invariants are checked after each case.
//!
//! A test run takes a sample by a fixed seed. `ATTA_INTERLEAVINGS=all` runs all cases, and
//! `ATTA_INTERLEAVINGS='all sweep'` those in which the actor `sweep` takes part. A finding prints a line that
//! replays it: `ATTA_INTERLEAVINGS='mixed claim_all add_replace_free ABAB'`. Without the last word, all orders of these
//! actors run. `^` before a name pauses the actor's first statement between its snapshot and its first row; `!` behind it
//! rolls back its last transaction.
//!
//! `actors` has what the sessions do, `groups` which of them meet, `world` the rows and sessions, `case` what is known of
//! a case. `run` takes the steps. `check` and `transitions` judge, without a database. `self_test` breaks statements and
//! expects findings.
#![allow(missing_docs, clippy::unwrap_used)]

mod actors;
mod groups;
mod statements;
mod world;
mod case;
mod run;
mod check;
mod transitions;
mod self_test;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::case::{Group, Outcome, Ran, Reported};
use crate::groups::{Met, Wanted};
use crate::run::run;
use crate::world::{Lane, Rows};

/// Databases in which cases run side by side. A case mostly waits for replies, so there are more than cores.
const LANES: usize = 5;
/// A lane ends after this number of findings.
const ENOUGH: usize = 12;

/// The number of cases that ran, and what was found.
#[derive(Default)]
struct Tally {
    cases: usize,
    variants: usize,
    findings: Vec<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_interleaving_keeps_the_invariants() {
    let start = Instant::now();
    let wanted = Wanted::of_this_run();
    let groups = Arc::new(wanted.groups());
    let next = Arc::new(AtomicUsize::new(0));
    let lanes: Vec<_> = (0..LANES.min(groups.len()))
        .map(|_| tokio::spawn(run_groups(wanted.clone(), groups.clone(), next.clone())))
        .collect();
    let mut tally = Tally::default();
    for lane in lanes {
        let of_lane = lane.await.unwrap();
        tally.cases += of_lane.cases;
        tally.variants += of_lane.variants;
        tally.findings.extend(of_lane.findings);
    }
    let took = start.elapsed().as_secs();
    println!("{} cases of {} groups in {took} s", tally.cases, groups.len() + tally.variants);
    assert!(tally.findings.is_empty(), "{} findings, printed above", tally.findings.len());
}

async fn run_groups(wanted: Wanted, groups: Arc<Vec<Group>>, next: Arc<AtomicUsize>) -> Tally {
    let mut lane = Lane::open().await;
    let mut tally = Tally::default();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some(group) = groups.get(number) else { break };
        if number > 0 && number.is_multiple_of(200) {
            println!("{number} of {} groups", groups.len());
        }
        let known = tally.findings.len();
        let met = run_group(&mut lane, &wanted, group, &mut tally).await;
        if matches!(wanted, Wanted::All(_)) {
            for variant in groups::variants(group, &met) {
                run_group(&mut lane, &wanted, &variant, &mut tally).await;
                tally.variants += 1;
            }
        }
        for finding in &tally.findings[known..] {
            println!("{finding}\n");
        }
        if tally.findings.len() >= ENOUGH {
            break;
        }
    }
    tally
}

/// Runs the orders of a group that are wanted: all of them, one after the other, or some at random.
async fn run_group(lane: &mut Lane, wanted: &Wanted, group: &Group, tally: &mut Tally) -> Met {
    let mut random = wanted.random(group);
    let mut prefix = wanted.order();
    let mut met = Met::default();
    loop {
        let mut choose = |step: usize, ready: &[usize]| match (prefix.get(step), &mut random) {
            (Some(chosen), _) if ready.contains(chosen) => *chosen,
            (_, Some(random)) => ready[random.usize(..ready.len())],
            _ => ready[0],
        };
        let ran = run(lane, group, &mut choose).await;
        tally.cases += 1;
        let findings = judge(lane, group, &ran).await;
        if !findings.is_empty() {
            tally.findings.push(report(group, &ran, &findings));
            return met;
        }
        note(lane, &ran, &mut met);
        let is_single = random.is_some() || matches!(wanted, Wanted::One(_, Some(_)));
        let is_last = is_single || !advance(&ran, &mut prefix);
        if is_last {
            return met;
        }
    }
}

fn note(lane: &Lane, ran: &Ran, met: &mut Met) {
    for event in &ran.events {
        match &event.outcome {
            Outcome::Waits(others) => met.awaited.extend(others),
            Outcome::Failed(..) => met.has_failed = true,
            _ => {}
        }
    }
    for change in &ran.after.log {
        let part = lane.sessions.iter().position(|session| session.pid == change.pid);
        let row = change.new.as_ref().or(change.old.as_ref());
        if let (Some(part), Some(row)) = (part, row) {
            met.changed.entry(part).or_default().insert((change.is_job, row.id));
        }
    }
}

/// The next order in a walk through all of them: the last step at which a later actor could have been chosen.
fn advance(ran: &Ran, prefix: &mut Vec<usize>) -> bool {
    let chosen: Vec<usize> = ran.order.iter().map(|(chosen, _)| *chosen).collect();
    for (step, (chosen_here, ready)) in ran.order.iter().enumerate().rev() {
        if let Some(later) = ready.iter().find(|number| *number > chosen_here) {
            *prefix = chosen[..step].to_vec();
            prefix.push(*later);
            return true;
        }
    }
    false
}

/// Checks the invariants. If a statement skipped locked rows, it is repeated before the last check, as a worker does.
async fn judge(lane: &Lane, group: &Group, ran: &Ran) -> Vec<String> {
    let pids: Vec<i32> = lane.sessions.iter().map(|session| session.pid).collect();
    let mut findings = check::check(group, ran, &pids);
    if findings.is_empty() && !check::queues_locked_for_no_job(&ran.after).is_empty() {
        let rows = repeat_what_was_skipped(lane, group, ran).await;
        findings.extend(check::queues_locked_for_no_job(&rows));
    }
    findings
}

async fn repeat_what_was_skipped(lane: &Lane, group: &Group, ran: &Ran) -> Rows {
    let client = &lane.sessions[0].client;
    for event in &ran.events {
        let Outcome::Rows(rows) = &event.outcome else { continue };
        if rows.iter().any(|row| !row.is_written) {
            let call = event.text.rsplit_once("execute ").map_or("", |(_, call)| call);
            client.simple_query(&format!("execute {call}")).await.unwrap();
        }
    }
    // A resumed worker releases the jobs that it had claimed before it was declared dead.
    if group.parts.iter().any(|part| part.actor.name == "register_dead") {
        let release = format!(
            "execute complete_claimed_queued('w0', '{{8,10}}', '{{{0},{0}}}', '{{3,null}}')",
            lane.claimed_at
        );
        client.simple_query(&release).await.unwrap();
    }
    client.simple_query("execute recover_workers(3, 1000, true, 0)").await.unwrap();
    client.simple_query("execute sweep_stale_locks").await.unwrap();
    lane.rows().await
}

/// All that is needed to understand and to replay a case.
fn report(group: &Group, ran: &Ran, findings: &[String]) -> String {
    let mut lines: Vec<String> = findings.iter().map(|finding| format!("FINDING {finding}")).collect();
    let order: Vec<usize> = ran.order.iter().map(|(chosen, _)| *chosen).collect();
    lines.push(format!("  replay: ATTA_INTERLEAVINGS='{} {}'", groups::name(group), groups::letters(&order)));
    for event in &ran.events {
        let letter = groups::letters(&[event.part]);
        let outcome = match &event.outcome {
            Outcome::Rows(rows) => {
                let row =
                    |row: &Reported| format!("{:?}{}", row.id, if row.is_written { "" } else { " skipped" });
                format!("{} rows: {}", rows.len(), rows.iter().map(row).collect::<Vec<_>>().join(", "))
            }
            Outcome::Failed(code, message) => format!("failed: {code} {message}"),
            Outcome::Waits(others) => format!("waits for {}", groups::letters(others)),
            Outcome::Paused => "pauses after its snapshot".into(),
        };
        lines.push(format!("  {letter} {}\n      -> {outcome}", event.text));
    }
    for (when, rows) in [("before", &ran.before), ("after", &ran.after)] {
        lines.push(format!("  {when}:"));
        lines.extend(rows.jobs.iter().map(|job| format!("    job {}", row_in_words(job))));
        lines.extend(rows.queues.iter().map(|queue| format!("    queue {}", row_in_words(queue))));
    }
    lines.join("\n")
}

fn row_in_words(row: &world::Row) -> String {
    format!(
        "{}: queue {:?} {:?}, key {:?}, attempts {} of {}, locked by {:?} at {:?}, revision {}",
        row.id,
        row.job_queue_id,
        row.queue_name,
        row.key,
        row.attempts,
        row.max_attempts,
        row.locked_by,
        row.locked_at,
        row.revision
    )
}
