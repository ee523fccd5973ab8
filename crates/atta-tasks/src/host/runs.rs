//! The runs of one host process, from their arrival to their answers, and their time limits. Does no input or output.
//!
//! A run passes through these stages:
//!
//! - `Unsent`: it waits until the socket takes more. If it is given up, it is never sent.
//! - `Sent`: the host has it and has not reported its start. Only runs with a time limit report their start, and only if
//!   the host supports that; all others count as started when they are sent. If a run does not start for as long as its
//!   time limit, the host is asked for a sign of life.
//! - `Started`: its time limit counts from here.
//! - `Stopping`: the time limit is over, and the host was told to abort the run. If the run does not end, the host is
//!   asked for a sign of life. With it, the run is given up and continues as a lost run.
//!
//! A host that gives no sign of life is stuck: other jobs wait behind the one that blocks it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::event::{Answer, Command, NewRun, RunningJob};
use crate::wire::{Pong, WorkerMessage};

/// How long to wait for a run after its time limit, if it does not end at once: it may obey the abort signal.
pub(super) const TO_OBEY: Duration = Duration::from_secs(1);

/// The largest number of runs that continue although they were given up. With more of them the host is killed, since
/// each may keep a thread busy.
pub(super) const MOST_LOST: usize = 256;

/// The process can't be used any more, for this reason, and must be killed.
pub(super) type Stuck = &'static str;

const BLOCKED: Stuck = "a task exceeded its time limit and blocked all others";
const TOO_MANY_LOST: Stuck = "too many runs continued after their time limits";

pub(super) struct Runs {
    /// How long the host may take to answer a ping.
    kill_after: Duration,
    /// Encoded messages to send, except for runs.
    messages: Vec<u8>,
    /// Encoded runs to send.
    unsent: BTreeMap<u64, Vec<u8>>,
    /// Runs that somebody waits for.
    running: HashMap<u64, Run>,
    /// Runs that were sent and given up since, and have not ended.
    lost: HashSet<u64>,
    /// The runs for which the host was pinged, by the number of the ping.
    pings: HashMap<u64, u64>,
    next_ping: u64,
    /// When something must be decided about a run.
    deadlines: BTreeSet<(Instant, u64)>,
}

struct Run {
    job: RunningJob,
    limit: Option<Duration>,
    stage: Stage,
    ping: Option<u64>,
    deadline: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Unsent,
    Sent,
    Started,
    Stopping,
}

impl Runs {
    pub(super) fn new(kill_after: Duration) -> Runs {
        Runs {
            kill_after,
            messages: Vec::new(),
            unsent: BTreeMap::new(),
            running: HashMap::new(),
            lost: HashSet::new(),
            pings: HashMap::new(),
            next_ping: 1,
            deadlines: BTreeSet::new(),
        }
    }

    pub(super) fn add(&mut self, new: NewRun) {
        let NewRun { number, job, line, limit } = new;
        self.unsent.insert(number, line);
        self.running.insert(number, Run { job, limit, stage: Stage::Unsent, ping: None, deadline: None });
    }

    /// Queues an encoded message that is about no run.
    pub(super) fn send(&mut self, message: &[u8]) {
        self.messages.extend_from_slice(message);
    }

    /// Takes the messages that are about no run that is still to be sent.
    pub(super) fn take_messages(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.messages)
    }

    /// Takes everything that is to be sent, the runs last. The host reports the start of runs with a time limit if
    /// `reports_start` is true.
    pub(super) fn take_outgoing(&mut self, reports_start: bool, now: Instant) -> Option<Vec<u8>> {
        let mut out = self.take_messages();
        for (number, line) in std::mem::take(&mut self.unsent) {
            match out.is_empty() {
                true => out = line,
                false => out.extend_from_slice(&line),
            }
            let Some(run) = self.running.get_mut(&number) else { continue };
            run.stage = if reports_start && run.limit.is_some() { Stage::Sent } else { Stage::Started };
            let deadline = run.limit.map(|limit| now + limit);
            self.set_deadline(number, deadline);
        }
        (!out.is_empty()).then_some(out)
    }

    /// The job of a run that somebody waits for.
    pub(super) fn job_of(&self, run: u64) -> Option<&RunningJob> {
        self.running.get(&run).map(|run| &run.job)
    }

    /// The number of runs that continue although they were given up.
    pub(super) fn lost(&self) -> usize {
        self.lost.len()
    }

    /// When [`Runs::expire`] is to be called next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Nobody waits for this run any more.
    pub(super) fn give_up(&mut self, number: u64) {
        if self.remove(number).is_some() && self.unsent.remove(&number).is_none() {
            self.lost.insert(number);
            self.abort(number);
        }
    }

    pub(super) fn on_started(&mut self, number: u64, now: Instant) {
        let Some(run) = self.running.get_mut(&number).filter(|run| run.stage == Stage::Sent) else { return };
        run.stage = Stage::Started;
        let deadline = run.limit.map(|limit| now + limit);
        self.drop_ping(number);
        self.set_deadline(number, deadline);
    }

    /// A run has ended. None: it was given up before.
    pub(super) fn on_ended(&mut self, number: u64, answer: Answer) -> Option<Command> {
        self.lost.remove(&number);
        let run = self.remove(number)?;
        let is_late = run.stage == Stage::Stopping;
        Some(Command::Answer(number, if is_late { Answer::TimedOut } else { answer }))
    }

    /// The host has given a sign of life.
    pub(super) fn on_pong(
        &mut self,
        pong: Pong,
        now: Instant,
        commands: &mut Vec<Command>,
    ) -> Result<(), Stuck> {
        let runs: Vec<u64> = match pong {
            Pong::One(ping) => self.pings.get(&ping).copied().into_iter().collect(),
            Pong::All => self.pings.values().copied().collect(),
        };
        for number in runs {
            self.drop_ping(number);
            match self.running.get(&number) {
                Some(run) if run.stage == Stage::Stopping => self.time_out(number, commands),
                Some(run) => self.set_deadline(number, run.limit.map(|limit| now + limit)),
                None => {}
            }
        }
        if self.lost.len() > MOST_LOST { Err(TOO_MANY_LOST) } else { Ok(()) }
    }

    /// Decides about all runs whose deadline is over.
    pub(super) fn expire(&mut self, now: Instant, commands: &mut Vec<Command>) -> Result<(), Stuck> {
        let mut result = Ok(());
        while let Some((deadline, number)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            debug_assert!(self.running.contains_key(&number), "a run is removed with its deadline");
            self.deadlines.remove(&(deadline, number));
            let Some(run) = self.running.get_mut(&number) else { continue };
            run.deadline = None;
            match (run.stage, run.ping) {
                // A run that is not sent has no deadline.
                (Stage::Unsent, _) => {}
                (Stage::Started, _) => {
                    run.stage = Stage::Stopping;
                    self.abort(number);
                    self.set_deadline(number, Some(now + self.kill_after.min(TO_OBEY)));
                }
                (Stage::Sent | Stage::Stopping, None) => self.ping(number, now),
                (Stage::Sent, Some(_)) => result = Err(BLOCKED),
                (Stage::Stopping, Some(_)) => {
                    self.time_out(number, commands);
                    result = Err(BLOCKED);
                }
            }
        }
        result
    }

    /// Answers all runs that can't have started, and forgets them.
    pub(super) fn return_unsent(&mut self, commands: &mut Vec<Command>) {
        for (number, _) in std::mem::take(&mut self.unsent) {
            if self.remove(number).is_some() {
                commands.push(Command::Answer(number, Answer::NotStarted));
            }
        }
    }

    /// The process has ended. Runs that may have started fail with this error; all others have not started.
    pub(super) fn end(&mut self, error: &str, commands: &mut Vec<Command>) {
        for (number, run) in std::mem::take(&mut self.running) {
            let answer = match run.stage {
                Stage::Unsent | Stage::Sent => Answer::NotStarted,
                Stage::Started => Answer::failed(error),
                Stage::Stopping => Answer::TimedOut,
            };
            commands.push(Command::Answer(number, answer));
        }
        *self = Runs { next_ping: self.next_ping, ..Runs::new(self.kill_after) };
    }

    /// The time limit of a run is over, and it does not end.
    fn time_out(&mut self, number: u64, commands: &mut Vec<Command>) {
        self.give_up(number);
        commands.push(Command::Answer(number, Answer::TimedOut));
    }

    fn abort(&mut self, run: u64) {
        WorkerMessage::Abort { run }.append_to(&mut self.messages);
    }

    /// Asks for a sign of life, which must arrive in time.
    fn ping(&mut self, run: u64, now: Instant) {
        let number = self.next_ping;
        self.next_ping += 1;
        WorkerMessage::Ping { number, run }.append_to(&mut self.messages);
        self.pings.insert(number, run);
        if let Some(running) = self.running.get_mut(&run) {
            running.ping = Some(number);
        }
        self.set_deadline(run, Some(now + self.kill_after));
    }

    fn drop_ping(&mut self, number: u64) {
        if let Some(ping) = self.running.get_mut(&number).and_then(|run| run.ping.take()) {
            self.pings.remove(&ping);
        }
    }

    fn set_deadline(&mut self, number: u64, deadline: Option<Instant>) {
        let Some(run) = self.running.get_mut(&number) else { return };
        if let Some(old) = std::mem::replace(&mut run.deadline, deadline) {
            self.deadlines.remove(&(old, number));
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, number));
        }
    }

    fn remove(&mut self, number: u64) -> Option<Run> {
        self.drop_ping(number);
        self.set_deadline(number, None);
        self.running.remove(&number)
    }
}
