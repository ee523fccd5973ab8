//! What takes place in the process of a worker: the planner's events and commands, and the tasks beside the driver. Its slots
//! are in `slots.rs`, and replies to statements in `replies.rs`.

use std::time::Duration;

use super::super::backoff::Backoff;
use super::super::planner::{Command, Event, Surroundings};
use super::super::release::{APART, BATCHES, Report};
use super::model::WorkerNumber;
use super::refusals::Promotion;
use super::setup::{FEW_QUEUES, POLL_INTERVAL};
use super::statement::Statement;
use super::worker::{Polling, TimerEntry};
use super::world::{Happening, MS, Step, World};
use crate::Error;

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
            Step::CronTimer => self.on_cron_timer(number),
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

    pub(super) fn deliver(&mut self, number: WorkerNumber, event: Event) -> Result<(), String> {
        let now = self.agenda.instant();
        let Some(worker) = self.workers.get_mut(&number).filter(|it| it.has_started) else { return Ok(()) };
        worker.planner.observe(Surroundings {
            may_hold: worker.may_hold,
            hooks_are_full: false,
            has_few_queues: self.setup.queues <= FEW_QUEUES,
            has_triggers: worker.has_triggers,
            // Every second worker releases failed jobs apart from their batches.
            stores_any_text: number.is_multiple_of(2),
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
            true => self.exit(number),
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
            Command::ClaimDurably(wanted) if wanted.one_by_one => {
                self.send(number, Statement::ClaimOneByOne(wanted))
            }
            Command::ClaimDurably(wanted) => self.send(number, Statement::Claim(wanted)),
            Command::Hold(wanted) => self.send(number, Statement::Pick(wanted)),
            Command::CommitBatch { lane, settlement } => {
                self.send(number, Statement::Commit { lane, settlement })
            }
            Command::Promote { lane, mut unsettled } => {
                let is_first = unsettled.backoff.tries() == 0;
                let pause = if is_first { Duration::ZERO } else { unsettled.backoff.next() };
                let promotion = Box::new(Promotion::new(lane, unsettled));
                self.plan(now + pause, number, Step::Send(Statement::Promote(promotion)));
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
    fn exit(&mut self, number: WorkerNumber) -> Result<(), String> {
        let Some(worker) = self.workers.remove(&number) else { return Ok(()) };
        let (is_stopping, disturbed_at) = (worker.is_stopping, worker.disturbed_at);
        let (result, is_clear) = worker.planner.end(self.agenda.instant());
        self.note(|_| {
            format!("worker {number} has ended{}", if is_clear { "" } else { " and leaves locks" })
        });
        if self.setup.until_empty && !is_stopping {
            self.check_exit(number, disturbed_at, result)?;
        }
        self.abandon_statements(number);
        let at = self.soon();
        if is_clear {
            self.agenda.add(at, Happening::Deregister(number));
        }
        let pause =
            if self.setup.until_empty { MS * self.random.losses.u32(0..3000) } else { Duration::ZERO };
        self.agenda.add(at + pause, Happening::StartWorker);
        Ok(())
    }

    /// The actor that releases: see `release/actor.rs`.
    pub(super) fn release(&mut self, number: WorkerNumber) {
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
}
