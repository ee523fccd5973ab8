//! The invariants, checked after each case from the rows before and after, the log of changes, and the replies.
//!
//! - Each row's changes follow from one another, and lead from the first state to the last one: nothing is lost.
//! - Each change is one that its statement may make (`transitions.rs`): a job is claimed only while it is free, a release
//!   changes only jobs whose claim is still valid, attempts are counted as documented, a key does what its mode promises.
//! - A statement reports exactly the jobs that it changed: an add that was acknowledged is there.
//! - A queue that has a locked job is locked by the same worker, and at most one job of a queue is locked.
//! - No job refers to a missing task or queue.
//! - Claims, releases and recovery never wait for a row and never fail; others fail only so that the caller can repeat.

use std::collections::{BTreeMap, BTreeSet};

use crate::actors::{Isolation, Waits};
use crate::case::{Group, Outcome, Ran};
use crate::statements::parse;
use crate::transitions;
use crate::world::{Change, Row, Rows};

/// All that is wrong, in words.
pub(crate) fn check(group: &Group, ran: &Ran, pids: &[i32]) -> Vec<String> {
    let mut findings = ran.faults.clone();
    findings.extend(chain(&ran.before, &ran.after));
    for change in &ran.after.log {
        if let Err(why) = transitions::check(change) {
            findings.push(format!("{why}: {}", in_words(change)));
        }
    }
    findings.extend(replies(group, ran, pids));
    findings.extend(waits_and_failures(group, ran));
    findings.extend(state(&ran.after));
    findings
}

fn in_words(change: &Change) -> String {
    format!("{}\n      from {:?}\n      to   {:?}", change.query, change.old, change.new)
}

/// Follows each row through its changes.
fn chain(before: &Rows, after: &Rows) -> Vec<String> {
    let mut findings = Vec::new();
    for is_job in [true, false] {
        let rows = |rows: &Rows| -> BTreeMap<i64, Row> {
            let of = if is_job { &rows.jobs } else { &rows.queues };
            of.iter().map(|row| (row.id, row.clone())).collect()
        };
        let mut current = rows(before);
        for change in after.log.iter().filter(|change| change.is_job == is_job) {
            let id = change.new.as_ref().or(change.old.as_ref()).map_or(0, |row| row.id);
            if current.get(&id) != change.old.as_ref() {
                findings
                    .push(format!("a change does not follow from the one before it: {}", in_words(change)));
            }
            match &change.new {
                Some(new) => current.insert(id, new.clone()),
                None => current.remove(&id),
            };
        }
        if current != rows(after) {
            findings.push("the rows are not what the log says".into());
        }
    }
    findings
}

/// The transactions that were committed: for each actor and each of its events, whether it counts.
fn is_committed(ran: &Ran, event: usize) -> bool {
    let part = ran.events[event].part;
    let end = ran.events[event..].iter().find(|later| {
        later.part == part
            && (matches!(later.outcome, Outcome::Failed(..))
                || later.text == "commit"
                || later.text == "rollback")
            && !matches!(later.outcome, Outcome::Waits(_))
    });
    end.is_some_and(|end| end.text == "commit" && matches!(end.outcome, Outcome::Rows(_)))
}

/// Compares what statements replied with what they changed.
fn replies(group: &Group, ran: &Ran, pids: &[i32]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut picked: BTreeMap<usize, BTreeSet<i64>> = BTreeMap::new();
    for (number, event) in ran.events.iter().enumerate() {
        let (Outcome::Rows(rows), Some((name, arguments))) = (&event.outcome, parse(&event.text)) else {
            continue;
        };
        let replied: BTreeSet<i64> = rows
            .iter()
            .filter(|row| {
                row.is_written && (name != "promote_untouched" || row.values.contains_key("locked_at"))
            })
            .filter_map(|row| row.id)
            .collect();
        if name.starts_with("pick_") || name == "find_claimable" {
            picked.insert(event.part, replied);
            continue;
        }
        if !is_committed(ran, number) {
            continue;
        }
        let changed: BTreeSet<i64> = ran
            .after
            .log
            .iter()
            .filter(|change| change.is_job && change.pid == pids[event.part] && change.query == event.text)
            .filter_map(|change| change.new.as_ref().or(change.old.as_ref()).map(|row| row.id))
            .collect();
        let who = &group.parts[event.part].actor.name;
        let is_right = match name {
            "add_job" | "add_job_deduped" | "add_jobs" => {
                let wanted = transitions::specs(name, &arguments).len();
                replied.len() == wanted && rows.len() == wanted && replied.is_subset(&changed)
            }
            "complete_held" | "fail_held" | "postpone_held" => Some(&changed) == picked.get(&event.part),
            "schedule_cron_jobs" => rows.is_empty() == changed.is_empty(),
            "refresh_locks" => changed.is_subset(&replied),
            "find_unknown" => changed.is_empty(),
            "force_unlock_workers" | "sweep_stale_locks" | "delete_permafailed_jobs" => true,
            _ => replied == changed,
        };
        if !is_right {
            findings.push(format!("{who}: {name} replied {replied:?} and changed {changed:?}"));
        }
    }
    findings
}

fn waits_and_failures(group: &Group, ran: &Ran) -> Vec<String> {
    let mut findings = Vec::new();
    let has_clean_up = group.parts.iter().any(|part| part.actor.locks_tables());
    for event in &ran.events {
        let actor = &group.parts[event.part].actor;
        match &event.outcome {
            Outcome::Waits(others) if actor.waits == Waits::Never => {
                let rows = others.iter().filter(|other| !group.parts[**other].actor.locks_tables());
                for other in rows {
                    let other = &group.parts[*other].actor.name;
                    findings.push(format!("{} waits for a row of {other}", actor.name));
                }
            }
            Outcome::Failed(code, message) => {
                let is_allowed = match (actor.waits, code.as_str()) {
                    (Waits::Never, _) => false,
                    (_, "40P01") => true,
                    (_, "40001") => {
                        actor.isolation != Isolation::ReadCommitted || (actor.is_add() && has_clean_up)
                    }
                    (_, "55P03") => actor.locks_tables(),
                    _ => false,
                };
                if !is_allowed {
                    findings.push(format!("{} failed: {code} {message}", actor.name));
                }
            }
            _ => {}
        }
    }
    findings
}

/// What must be true of the rows at any time.
fn state(rows: &Rows) -> Vec<String> {
    let mut findings = Vec::new();
    let mut keys = BTreeSet::new();
    let mut locked_jobs: BTreeMap<i64, Vec<&Row>> = BTreeMap::new();
    for job in &rows.jobs {
        if !(0..=job.max_attempts).contains(&job.attempts) {
            findings.push(format!("job {} has {} attempts of {}", job.id, job.attempts, job.max_attempts));
        }
        if job.key.as_ref().is_some_and(|key| !keys.insert(key)) {
            findings.push(format!("two jobs have the key of job {}", job.id));
        }
        if !rows.task_ids.contains(&job.task_id) {
            findings.push(format!("the task of job {} is gone", job.id));
        }
        if job.locked_at.is_some() != job.locked_by.is_some() {
            findings.push(format!("job {} is locked by half", job.id));
        }
        let Some(queue_id) = job.job_queue_id else { continue };
        let Some(queue) = rows.queues.iter().find(|queue| queue.id == queue_id) else {
            findings.push(format!("the queue of job {} is gone", job.id));
            continue;
        };
        if job.locked_at.is_some() {
            locked_jobs.entry(queue_id).or_default().push(job);
            if queue.locked_by != job.locked_by {
                findings.push(format!(
                    "job {} is locked by {:?}, its queue by {:?}",
                    job.id, job.locked_by, queue.locked_by
                ));
            }
        }
    }
    for (queue_id, jobs) in locked_jobs {
        if jobs.len() > 1 {
            findings.push(format!("queue {queue_id} has {} locked jobs", jobs.len()));
        }
    }
    findings
}

/// Queues that are locked although none of their jobs is locked by the same worker. A statement that skips a locked row
/// may leave such a queue until it runs again.
pub(crate) fn queues_locked_for_no_job(rows: &Rows) -> Vec<String> {
    let is_for_a_job = |queue: &Row| {
        rows.jobs.iter().any(|job| job.job_queue_id == Some(queue.id) && job.locked_by == queue.locked_by)
    };
    let locked = rows.queues.iter().filter(|queue| queue.locked_at.is_some());
    locked
        .filter(|queue| !is_for_a_job(queue))
        .map(|queue| format!("queue {} is locked by {:?} for no job", queue.id, queue.locked_by))
        .collect()
}
