//! What takes place in the process of a worker: the planner's events and commands, slots, and the tasks beside the driver.

use std::time::{Duration, Instant};

use super::super::backoff::Backoff;
use super::super::claim::held::Wanted;
use super::super::claim::promote::{Split, Unsettled, split};
use super::super::claim::{Claimed, Left};
use super::super::planner::{Command, Event, Surroundings};
use super::super::release::{APART, BATCHES, Fate, Report};
use super::super::run::{Failure, Finished, Outcome};
use super::model::{Polled, WorkerNumber};
use super::setup::{POLL_INTERVAL, TASKS, THRESHOLD};
use super::statement::{Answer, Sent, Statement, Trouble};
use super::worker::{Polling, Run, TimerEntry};
use super::world::{Happening, MS, Step, World};
use crate::recovery::{Heartbeat, PER_THRESHOLD};
use crate::{Error, Retry};

/// See `wake.rs` and `recovery/sweep.rs`.
const REST: u32 = 5;
const SUSPICIOUS_DEATHS: usize = 2;
const ORPHANS_LATER: u32 = 3;

impl World {
    pub(super) fn step(&mut self, number: WorkerNumber, step: Step) -> Result<(), String> {
        let now = self.now();
        let Some(worker) = self.workers.get_mut(&number) else { return Ok(()) };
        if now < worker.stopped_until {
            let at = worker.stopped_until;
            self.plan(at, number, step);
            return Ok(());
        }
        match step {
            Step::Timer(entry) => match worker.timer.on_entry(entry, now) {
                TimerEntry::Due => self.deliver(number, Event::Timer)?,
                TimerEntry::Early(at) => self.set_timer(number, at),
                TimerEntry::Obsolete => {}
            },
            Step::ReleaseTimer(timer) if worker.release_timer == timer => self.release(number),
            Step::ReleaseTimer(_) => {}
            Step::SendHeartbeat => self.send(number, Statement::Heartbeat),
            Step::PollRested => {
                worker.poll_timer += 1;
                worker.polling = Polling::Waiting(worker.poll_timer);
                let timer = worker.poll_timer;
                match std::mem::take(&mut worker.is_poll_asked) {
                    true => self.poll(number),
                    false => self.plan(now + POLL_INTERVAL, number, Step::PollDue(timer)),
                }
            }
            Step::PollDue(timer) => {
                if worker.polling == Polling::Waiting(timer) {
                    self.poll(number);
                }
            }
            Step::FreeOrphans => self.send(number, Statement::FreeOrphans),
            Step::Deliver(event) => self.deliver(number, event)?,
            Step::Send(statement) => self.send(number, statement),
            Step::Reply(statement) => self.on_reply(number, statement)?,
            Step::End(run) => self.end_run(number, run)?,
        }
        Ok(())
    }

    fn poll(&mut self, number: WorkerNumber) {
        if let Some(worker) = self.workers.get_mut(&number) {
            worker.polling = Polling::UnderWay;
            self.send(number, Statement::Poll);
        }
    }

    fn deliver(&mut self, number: WorkerNumber, event: Event) -> Result<(), String> {
        let now = self.agenda.instant();
        let Some(worker) = self.workers.get_mut(&number).filter(|it| it.has_started) else { return Ok(()) };
        worker.planner.observe(Surroundings {
            may_hold: worker.may_hold,
            hooks_are_full: false,
            has_few_queues: true,
        });
        worker.planner.handle(event, now);
        worker.planner.plan(now);
        let is_done = worker.planner.is_done(now);
        let commands: Vec<Command> = worker.planner.take_commands().collect();
        let at = worker.planner.next_timer(now);
        let at = self.agenda.since_start(at).max(self.now() + MS / 10);
        self.set_timer(number, at);
        for command in commands {
            self.obey(number, command);
        }
        match is_done {
            true => {
                self.exit(number);
                Ok(())
            }
            false => self.start_jobs(number),
        }
    }

    fn set_timer(&mut self, number: WorkerNumber, at: Duration) {
        let Some(worker) = self.workers.get_mut(&number) else { return };
        if let Some(entry) = worker.timer.set(at) {
            self.plan(at, number, Step::Timer(entry));
        }
    }

    fn obey(&mut self, number: WorkerNumber, command: Command) {
        let (now, instant) = (self.now(), self.agenda.instant());
        let Some(worker) = self.workers.get_mut(&number) else { return };
        match command {
            Command::ClaimDurably(wanted) if worker.continuity.is_overdue(instant) => {
                let claimed = Err(Error::unavailable("no heartbeat of this worker succeeded recently"));
                let event = Event::Claimed { wanted: Box::new(wanted), claimed };
                self.plan(now + MS, number, Step::Deliver(event));
            }
            Command::ClaimDurably(wanted) => self.send(number, Statement::Claim(wanted)),
            Command::Hold(wanted) => self.send(number, Statement::Pick(wanted)),
            Command::CommitBatch { lane, settlement } => {
                self.send(number, Statement::Commit { lane, settlement })
            }
            Command::Promote { lane, mut unsettled } => {
                let is_first = unsettled.backoff.tries() == 0;
                let pause = if is_first { Duration::ZERO } else { unsettled.backoff.next() };
                self.plan(now + pause, number, Step::Send(Statement::Promote { lane, unsettled }));
            }
            Command::Search { known } => self.send(number, Statement::Search { known }),
            Command::RenewLocks { ids } => {
                self.send(number, Statement::Renew { ids, backoff: Backoff::default() })
            }
            Command::Release(entries) => {
                worker.pending.add(instant, entries);
                self.release(number);
            }
            Command::Poll => match worker.polling {
                Polling::Waiting(_) => self.poll(number),
                _ => worker.is_poll_asked = true,
            },
            Command::Stop => {
                worker.is_stopping = true;
                self.plan(now, number, Step::Deliver(Event::Shutdown));
            }
            Command::AbortTasks => {
                let runs: Vec<u64> = worker.runs.keys().copied().collect();
                runs.into_iter().for_each(|run| self.interrupt(number, run));
            }
            Command::Leave => self.statements.retain(|(owner, _), _| *owner != number),
            Command::Report(_) | Command::CancelTasks => {}
        }
    }

    /// The worker has ended. If it has left nothing, it deregisters.
    fn exit(&mut self, number: WorkerNumber) {
        let Some(worker) = self.workers.remove(&number) else { return };
        let (_, is_clear) = worker.planner.end(self.agenda.instant());
        self.note(|_| {
            format!("worker {number} has ended{}", if is_clear { "" } else { " and leaves locks" })
        });
        self.abandon_statements(number);
        let at = self.soon();
        if is_clear {
            self.agenda.add(at, Happening::Deregister(number));
        }
        self.agenda.add(at, Happening::StartWorker);
    }

    /// Free slots take jobs from the list.
    pub(super) fn start_jobs(&mut self, number: WorkerNumber) -> Result<(), String> {
        let now = self.agenda.instant();
        while let Some(worker) = self.workers.get(&number)
            && worker.runs.len() < self.setup.slots
            && let Some(next) = worker.list.next()
        {
            if worker.is_too_late(&next, now) {
                self.note(|_| format!("worker {number} does not start {}", next.job.id));
                let (outcome, duration) = (Outcome::NotStarted, Duration::ZERO);
                let finished = Finished { job: next.job, outcome, duration, claim: next.claim };
                let event = Event::Finished(vec![finished]);
                self.plan(self.now() + MS / 10, number, Step::Deliver(event));
                continue;
            }
            self.check_start(number, &next)?;
            let (job, claim) = (next.job, next.claim);
            self.note(|_| format!("worker {number} starts {} {:?} {claim:?}", job.id, job.order()));
            self.started.push(job.order());
            self.statistics.on_started(job.id, self.now());
            let is_slow = TASKS[..self.setup.slow].contains(&job.task_identifier());
            let most = if is_slow { 120.0 } else { 2.0 };
            let mut duration = MS.mul_f64(0.1 + self.random.work.f64() * most);
            let long = self.random.work.u32(100..40_000);
            if self.random.work.f64() < self.setup.long {
                duration = MS * long;
            }
            self.last_number += 1;
            let (run, lost) = (self.last_number, self.lost.get(&(number, job.id)).copied());
            if let Some(worker) = self.workers.get_mut(&number) {
                worker.runs.insert(run, Run { job, claim, began: self.agenda.now(), lost });
            }
            self.plan(self.now() + duration, number, Step::End(run));
        }
        Ok(())
    }

    /// A slot takes its next job before the driver knows that this one has ended.
    fn end_run(&mut self, number: WorkerNumber, run: u64) -> Result<(), String> {
        let roll = self.random.work.f64();
        let outcome = match roll < self.setup.failing {
            true => {
                // The back-off of later attempts takes longer than a run.
                let is_early = self
                    .workers
                    .get(&number)
                    .and_then(|it| it.runs.get(&run))
                    .is_some_and(|run| run.job.attempts < 4);
                let retry = match (roll * 1000.0) as u32 % 8 {
                    0 => Retry::Never,
                    1 | 2 if is_early => Retry::Backoff,
                    _ => Retry::In(MS * (roll * 10_000.0) as u32),
                };
                Outcome::Failed(Failure { error: "no".into(), retry, payload: None })
            }
            false => Outcome::Completed,
        };
        self.finish(number, run, outcome);
        self.start_jobs(number)
    }

    fn interrupt(&mut self, number: WorkerNumber, run: u64) {
        self.finish(number, run, Outcome::Interrupted);
    }

    fn finish(&mut self, number: WorkerNumber, run: u64, outcome: Outcome) {
        let Some(worker) = self.workers.get_mut(&number) else { return };
        let Some(Run { job, claim, began, .. }) = worker.runs.remove(&run) else { return };
        if worker.runs.len() + 1 == self.setup.slots {
            worker.idle_since = self.agenda.now();
        }
        let duration = self.now().saturating_sub(began);
        self.ended_at.insert((number, job.id), self.now());
        if matches!(outcome, Outcome::Completed) {
            self.ended.insert(job.id);
        }
        self.note(|_| format!("worker {number}: {} has ended: {outcome:?}", job.id));
        let event = Event::Finished(vec![Finished { job, outcome, duration, claim }]);
        let at = self.now() + MS.mul_f64(self.random.work.f64());
        self.plan(at, number, Step::Deliver(event));
    }

    /// The actor that releases: see `release/actor.rs`.
    fn release(&mut self, number: WorkerNumber) {
        let now = self.agenda.instant();
        let Some(worker) = self.workers.get_mut(&number) else { return };
        let mut statements = Vec::new();
        while worker.batches.len() < BATCHES {
            let Some(entries) = worker.pending.next_batch(now, worker.under_way()) else { break };
            worker.batches.push(now);
            statements.push(Statement::Release { entries, is_apart: false, sent: now });
        }
        while worker.apart < APART {
            let Some(entry) = worker.pending.next_apart(now) else { break };
            worker.apart += 1;
            statements.push(Statement::Release { entries: vec![entry], is_apart: true, sent: now });
        }
        let stuck = worker.pending.stuck() + worker.apart;
        let is_new = std::mem::replace(&mut worker.stuck, stuck) != stuck;
        worker.release_timer += 1;
        let (timer, at) = (worker.release_timer, worker.pending.next_timer(now, worker.under_way()));
        if let Some(at) = at {
            let at = self.agenda.since_start(at);
            self.plan(at, number, Step::ReleaseTimer(timer));
        }
        for statement in statements {
            self.send(number, statement);
        }
        if is_new {
            let report = Report { stuck, ..Report::default() };
            self.plan(self.now(), number, Step::Deliver(Event::Released(report)));
        }
    }

    fn on_reply(&mut self, number: WorkerNumber, statement: u64) -> Result<(), String> {
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
            (Statement::Claim(wanted), Answer::Claimed(jobs, level)) => {
                let has_forbidden = wanted.level.is_none() && !self.forbidden.is_empty();
                let claimed = Claimed {
                    refused: Vec::new(),
                    jobs,
                    without_room: Vec::new(),
                    unreadable: Vec::new(),
                    asked_at: sent_at,
                    took: instant - sent_at,
                    level,
                    has_forbidden,
                };
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
                    Some(locked_at) => Left { locked_at, running: settlement.running, ..Left::default() },
                    None => {
                        let unsettled = Some(Unsettled::new(settlement, false));
                        Left { unsettled, ..Left::default() }
                    }
                };
                Event::BatchEnded { lane, picked, left }
            }
            (Statement::Promote { lane, unsettled }, Answer::Promoted(claimed)) => {
                let Split { left, .. } = split(unsettled, claimed);
                Event::Promoted { lane, left }
            }
            (Statement::Search { .. }, Answer::Searched(returned, blocked)) => {
                Event::Searched(Ok((returned, blocked)))
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
        worker.may_hold = polled.recent_deaths < SUSPICIOUS_DEATHS;
        worker.has_polled = true;
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
            Statement::Claim(wanted) => {
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
            Statement::Promote { lane, mut unsettled } => {
                if unsettled.backoff.tries() == 0 {
                    unsettled.backoff.next();
                }
                let pause = unsettled.backoff.next();
                self.plan(now + pause, number, Step::Send(Statement::Promote { lane, unsettled }));
                return Ok(());
            }
            Statement::Search { .. } => Event::Searched(Err(trouble.error())),
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

impl super::worker::Worker {
    fn end_release(&mut self, is_apart: bool, sent: Instant) {
        if is_apart {
            self.apart -= 1;
        } else if let Some(index) = self.batches.iter().position(|time| *time == sent) {
            self.batches.remove(index);
        }
    }
}
