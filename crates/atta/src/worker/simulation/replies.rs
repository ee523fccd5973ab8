//! What a worker does with the reply to a statement, or with its error: mostly an event for the planner.

use std::time::{Duration, Instant};

use super::super::backoff::Backoff;
use super::super::claim::held::Wanted;
use super::super::claim::promote::Unsettled;
use super::super::claim::{Claimed, Left, Refusal};
use super::super::planner::Event;
use super::super::release::{Fate, Report};
use super::model::{Polled, WorkerNumber};
use super::refusals::refusal;
use super::setup::{POLL_INTERVAL, THRESHOLD};
use super::statement::{Answer, Sent, Statement, Trouble};
use super::worker::Polling;
use super::world::{MS, Step, World};
use crate::Job;
use crate::recovery::{Heartbeat, PER_THRESHOLD};

/// See `wake.rs` and `recovery/sweep.rs`.
const REST: u32 = 5;
const SUSPICIOUS_DEATHS: usize = 2;
const ORPHANS_LATER: u32 = 3;

impl World {
    pub(super) fn on_reply(&mut self, number: WorkerNumber, statement: u64) -> Result<(), String> {
        let Some(sent) = self.statements.remove(&(number, statement)) else { return Ok(()) };
        let Sent { statement, sent_at, trouble, answer, .. } = sent;
        match (trouble, answer) {
            (Some(trouble), _) => self.on_trouble(number, statement, trouble),
            (None, Some(answer)) => self.on_answer(number, statement, sent_at, answer),
            (None, None) => Ok(()),
        }
    }

    fn on_answer(
        &mut self,
        number: WorkerNumber,
        statement: Statement,
        sent_at: Instant,
        answer: Answer,
    ) -> Result<(), String> {
        let (now, instant) = (self.now(), self.agenda.instant());
        let Some(worker) = self.workers.get_mut(&number) else { return Ok(()) };
        let event = match (statement, answer) {
            (Statement::Heartbeat, Answer::Heartbeat { was_registered, started_at, now: server_now }) => {
                worker.heartbeat_backoff = Backoff::default();
                let is_first = !std::mem::replace(&mut worker.has_started, true);
                worker.continuity.note(Heartbeat {
                    sent_at,
                    answered_at: instant,
                    server_started_at: started_at,
                    server_now,
                    was_registered: was_registered || is_first,
                });
                self.plan(now + THRESHOLD / PER_THRESHOLD, number, Step::SendHeartbeat);
                if is_first {
                    self.send(number, Statement::Poll);
                    self.start_cron(number);
                    self.plan(now + THRESHOLD * ORPHANS_LATER, number, Step::FreeOrphans);
                    // A shutdown that was requested before the start is noticed now.
                    let is_stopping = self.workers.get(&number).is_some_and(|it| it.is_stopping);
                    self.deliver(number, if is_stopping { Event::Shutdown } else { Event::Timer })?;
                }
                return Ok(());
            }
            (Statement::Poll, Answer::Polled(polled)) => return self.on_polled(number, sent_at, polled),
            (Statement::Recover, Answer::Recovered(is_new)) => {
                if is_new {
                    self.plan(now + THRESHOLD * ORPHANS_LATER, number, Step::FreeOrphans);
                }
                self.plan(now + MS, number, Step::PollRested);
                return Ok(());
            }
            (Statement::FreeOrphans, Answer::Recovered(is_to_repeat)) => {
                if is_to_repeat {
                    self.plan(now + THRESHOLD * ORPHANS_LATER, number, Step::FreeOrphans);
                }
                return Ok(());
            }
            (statement, Answer::Refused) => return self.on_refused(number, statement),
            (Statement::Claim(wanted), Answer::Claimed(jobs, level)) => {
                let has_forbidden = wanted.level.is_none() && !self.forbidden.is_empty();
                let took = instant - sent_at;
                let claimed = Claimed { jobs, level, has_forbidden, ..claimed_nothing(sent_at, took) };
                Event::Claimed { wanted: Box::new(wanted), claimed: Ok(claimed) }
            }
            (Statement::ClaimOneByOne(wanted), Answer::ClaimedOneByOne(jobs, refused)) => {
                let has_forbidden = !self.forbidden.is_empty();
                let refuse = |job: Job| {
                    let Job { id, task_identifier, .. } = job;
                    Refusal { id, task_identifier, error: refusal(), took: Duration::ZERO }
                };
                let refused = refused.into_iter().map(refuse).collect();
                let took = instant - sent_at;
                let claimed = Claimed { jobs, refused, has_forbidden, ..claimed_nothing(sent_at, took) };
                Event::Claimed { wanted: Box::new(wanted), claimed: Ok(claimed) }
            }
            (Statement::Pick(Wanted { lane, request, .. }), Answer::Picked(jobs, mut seen)) => {
                seen.took = instant - sent_at;
                self.deliver(number, Event::Seen { lane, request, seen })?;
                let decoded = self.now() + MS.mul_f64(self.random.work.f64() * 2.0);
                let Some(worker) = self.workers.get_mut(&number) else { return Ok(()) };
                let event = match jobs.is_empty() {
                    true => Event::BatchEnded { lane, picked: Ok(0), left: Left::default() },
                    false => {
                        worker.picked.insert(lane, jobs.len());
                        Event::Picked { lane, jobs, without_room: Vec::new() }
                    }
                };
                self.plan(decoded, number, Step::Deliver(event));
                return Ok(());
            }
            (Statement::Commit { lane, settlement }, Answer::Committed(times)) => {
                let picked = Ok(worker.picked.remove(&lane).unwrap_or_default());
                let left = match times {
                    Some(locked_at) => Left {
                        locked_at,
                        running: settlement.running,
                        finished: settlement.apart,
                        ..Left::default()
                    },
                    None => {
                        let unsettled = Some(Unsettled::new(settlement, false));
                        Left { unsettled, ..Left::default() }
                    }
                };
                Event::BatchEnded { lane, picked, left }
            }
            (Statement::Promote(mut promotion), Answer::Promoted(promoted)) => {
                promotion.on_promoted(promoted);
                return self.go_on_promoting(number, *promotion);
            }
            (Statement::Search { .. }, Answer::Found(claims)) if claims.ids.is_empty() => {
                Event::Searched(Ok((0, 0)))
            }
            (Statement::Search { .. }, Answer::Found(claims)) => {
                self.send(number, Statement::ReturnUnknown(claims));
                return Ok(());
            }
            (Statement::ReturnUnknown(_), Answer::Searched(returned, blocked)) => {
                Event::Searched(Ok((returned, blocked)))
            }
            (Statement::Cron(_), Answer::Cron(answer)) => {
                self.on_cron_answer(number, answer);
                return Ok(());
            }
            (Statement::Renew { .. }, Answer::Renewed(times)) => Event::Renewed(times),
            (Statement::Release { entries, is_apart, sent }, Answer::Released(fates)) => {
                worker.end_release(is_apart, sent);
                let fate_of = |id| fates.get(&id).copied().unwrap_or(Fate::Absent);
                let done = worker.pending.on_answer(instant, entries, fate_of);
                let mut report = Report { stuck: worker.stuck, ..Report::default() };
                done.iter().for_each(|(entry, _)| report.add(&entry.finished));
                self.release(number);
                if done.is_empty() {
                    return Ok(());
                }
                Event::Released(report)
            }
            _ => return Ok(()),
        };
        self.deliver(number, event)
    }

    fn on_polled(&mut self, number: WorkerNumber, sent_at: Instant, polled: Polled) -> Result<(), String> {
        let (now, instant) = (self.now(), self.agenda.instant());
        let Some(worker) = self.workers.get_mut(&number) else { return Ok(()) };
        worker.may_hold = polled.recent_deaths < SUSPICIOUS_DEATHS && !polled.has_triggers;
        (worker.has_polled, worker.has_triggers) = (true, polled.has_triggers);
        let again = THRESHOLD / PER_THRESHOLD;
        let is_time = worker.recovered_at.is_none_or(|time| now - time >= again);
        if polled.others_are_stale || (polled.others_are_dead && is_time) {
            worker.recovered_at = Some(now);
            self.send(number, Statement::Recover);
        } else {
            worker.polling = Polling::Resting;
            let rest = ((instant - sent_at) * REST).min(POLL_INTERVAL);
            self.plan(now + rest, number, Step::PollRested);
        }
        let due = polled.next_due.into_iter().map(|wait| instant + wait).collect();
        self.deliver(number, Event::Due(due))
    }

    /// No answer comes back.
    fn on_trouble(
        &mut self,
        number: WorkerNumber,
        statement: Statement,
        trouble: Trouble,
    ) -> Result<(), String> {
        let (now, instant) = (self.now(), self.agenda.instant());
        let may_be_committed = self.random.losses.bool();
        let Some(worker) = self.workers.get_mut(&number) else { return Ok(()) };
        worker.disturb(now);
        let event = match statement {
            Statement::Heartbeat => {
                let pause = worker.heartbeat_backoff.next().min(THRESHOLD / PER_THRESHOLD);
                self.plan(now + pause, number, Step::SendHeartbeat);
                return Ok(());
            }
            Statement::Poll => {
                worker.polling = Polling::Resting;
                self.plan(now + MS, number, Step::PollRested);
                Event::Hint
            }
            Statement::Recover => {
                if trouble == Trouble::Closed {
                    self.plan(now + THRESHOLD * ORPHANS_LATER, number, Step::FreeOrphans);
                }
                self.plan(now + MS, number, Step::PollRested);
                return Ok(());
            }
            Statement::FreeOrphans => {
                self.plan(now + THRESHOLD * ORPHANS_LATER, number, Step::FreeOrphans);
                return Ok(());
            }
            Statement::Claim(wanted) | Statement::ClaimOneByOne(wanted) => {
                Event::Claimed { wanted: Box::new(wanted), claimed: Err(trouble.error()) }
            }
            Statement::Pick(Wanted { lane, .. }) => {
                Event::BatchEnded { lane, picked: Err(trouble.error()), left: Left::default() }
            }
            Statement::Commit { lane, settlement } => {
                let picked = Ok(worker.picked.remove(&lane).unwrap_or_default());
                // An error before the commit shows that it was not sent. A commit that took effect never looks like that.
                let may_be_committed = trouble == Trouble::Closed || may_be_committed;
                let unsettled = Some(Unsettled::new(settlement, may_be_committed));
                Event::BatchEnded { lane, picked, left: Left { unsettled, ..Left::default() } }
            }
            Statement::Promote(promotion) => {
                let mut promotion = promotion.again();
                let backoff = &mut promotion.unsettled.backoff;
                if backoff.tries() == 0 {
                    backoff.next();
                }
                let pause = backoff.next();
                self.plan(now + pause, number, Step::Send(Statement::Promote(Box::new(promotion))));
                return Ok(());
            }
            Statement::Cron(_) => {
                self.on_cron_error(number);
                return Ok(());
            }
            Statement::Search { .. } | Statement::ReturnUnknown(_) => Event::Searched(Err(trouble.error())),
            Statement::Renew { ids, mut backoff } => {
                let pause = backoff.next();
                self.plan(now + pause, number, Step::Send(Statement::Renew { ids, backoff }));
                return Ok(());
            }
            Statement::Release { entries, is_apart, sent } => {
                worker.end_release(is_apart, sent);
                worker.pending.on_error(instant, entries, &trouble.transient_error());
                self.release(number);
                return Ok(());
            }
        };
        self.deliver(number, event)
    }
}

fn claimed_nothing(asked_at: Instant, took: Duration) -> Claimed {
    Claimed {
        jobs: Vec::new(),
        without_room: Vec::new(),
        unreadable: Vec::new(),
        refused: Vec::new(),
        is_cut_short: false,
        asked_at,
        took,
        level: None,
        has_forbidden: false,
    }
}

impl super::worker::Worker {
    pub(super) fn end_release(&mut self, is_apart: bool, sent: Instant) {
        if is_apart {
            self.apart -= 1;
        } else if let Some(index) = self.batches.iter().position(|time| *time == sent) {
            self.batches.remove(index);
        }
    }
}
