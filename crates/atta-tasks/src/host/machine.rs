//! The states of a host, and everything that is decided about it. Does no input or output, and has no clock: the
//! supervisor passes events and the time in, and carries out the commands that come out.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use super::event::{Answer, BrokenTask, Command, End, Event, Load, Phase, Report};
use super::runs::{Runs, Stuck};
use crate::wire::{HostMessage, WorkerMessage};

/// The pause before a host is started again grows from the first to the second value.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A host that was ready and lived this long counts as stable.
const STEADY: Duration = Duration::from_secs(10);

/// How long loading may take before that is logged, and before a worker starts without the tasks of the host.
pub(crate) const SLOW_LOAD: Duration = Duration::from_secs(5);

/// How long a closed host may take to end if it still has runs that were given up: they must not start any more.
const SHORT_PATIENCE: Duration = Duration::from_millis(250);

const CLOSED_SOCKET: Stuck = "it closed its socket without ending";

/// Where a host is in its life. `host.rs` describes the states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HostState {
    Starting {
        since: Instant,
        /// When to warn that loading takes long. None: that was done.
        warn_at: Option<Instant>,
        broken: Vec<BrokenTask>,
    },
    Ready {
        since: Instant,
        reports_start: bool,
    },
    Draining {
        /// None: it was killed.
        kill_at: Option<Instant>,
    },
    Stuck {
        why: Stuck,
        since: Instant,
        was_ready: bool,
        /// None: it was killed.
        kill_at: Option<Instant>,
    },
    Dead {
        /// None: the host is closed, or not started yet.
        restart_at: Option<Instant>,
    },
}

/// The settings that decisions depend on.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// The name of the host in errors.
    pub(super) name: String,
    /// The time between the request to end and SIGKILL.
    pub(super) kill_after: Duration,
    /// Whether a first start that failed is logged as an error. Otherwise the caller that waits for it reports it.
    pub(super) logs_first_load: bool,
}

pub(super) struct Machine {
    rules: Rules,
    state: HostState,
    /// The runs of the current process.
    runs: Runs,
    /// What was published last.
    load: Load,
    /// The pause before the next start.
    pause: Duration,
    is_closing: bool,
    /// The worker aborts all jobs; every further process is told too.
    is_aborted: bool,
    /// The last start failed, and this one may fail in the same way: its output is not logged again.
    is_repeating: bool,
    /// A warning was logged that loading takes long.
    was_slow: bool,
}

impl Machine {
    pub(super) fn new(rules: Rules) -> Machine {
        Machine {
            state: HostState::Dead { restart_at: None },
            runs: Runs::new(rules.kill_after),
            rules,
            load: Load::default(),
            pause: FIRST_PAUSE,
            is_closing: false,
            is_aborted: false,
            is_repeating: false,
            was_slow: false,
        }
    }

    /// Takes in what has happened. Returns what is to be done.
    pub(super) fn handle(&mut self, event: Event, now: Instant) -> Vec<Command> {
        let mut commands = Vec::new();
        let commands_out = &mut commands;
        match event {
            Event::Open => self.start(now, commands_out),
            Event::Run(run) => match self.state {
                HostState::Ready { .. } => self.runs.add(run),
                // Its tasks are paused, so this job was claimed just before.
                _ => commands_out.push(Command::Answer(run.number, Answer::NotStarted)),
            },
            Event::GiveUp(run) => self.runs.give_up(run),
            Event::Send(message) => self.runs.send(&message),
            Event::Abort => {
                self.is_aborted = true;
                self.runs.send(&WorkerMessage::AbortAll.encode());
            }
            Event::Close => self.close(now, commands_out),
            Event::Message(message) => self.receive(message, now, commands_out),
            Event::SocketClosed => self.on_socket_closed(now, commands_out),
            Event::Ended(end) => self.on_ended(end, now, commands_out),
            Event::Timer => self.on_timer(now, commands_out),
        }
        commands
    }

    /// Everything that is to be sent to the process now. Call it when the socket takes more.
    pub(super) fn take_outgoing(&mut self, now: Instant) -> Option<Vec<u8>> {
        match self.state {
            HostState::Ready { reports_start, .. } => self.runs.take_outgoing(reports_start, now),
            // There are no runs yet.
            HostState::Starting { .. } => self.runs.take_outgoing(false, now),
            HostState::Draining { .. } | HostState::Stuck { .. } | HostState::Dead { .. } => None,
        }
    }

    /// When to pass in [`Event::Timer`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            HostState::Starting { warn_at, .. } => warn_at,
            HostState::Ready { .. } => self.runs.deadline(),
            HostState::Draining { kill_at } | HostState::Stuck { kill_at, .. } => kill_at,
            HostState::Dead { restart_at } => restart_at,
        }
    }

    /// Whether there is no process, and there will be none.
    pub(super) fn is_over(&self) -> bool {
        self.is_closing && matches!(self.state, HostState::Dead { .. })
    }

    /// Whether output of the process was logged before: this is another start after one that failed.
    pub(super) fn is_repeating(&self) -> bool {
        self.is_repeating
    }

    fn start(&mut self, now: Instant, commands: &mut Vec<Command>) {
        self.state = HostState::Starting { since: now, warn_at: Some(now + SLOW_LOAD), broken: Vec::new() };
        commands.push(Command::StartProcess);
        // Messages for the previous process have no meaning for this one.
        self.runs.take_messages();
        if self.is_aborted {
            self.runs.send(&WorkerMessage::AbortAll.encode());
        }
    }

    fn receive(&mut self, message: HostMessage, now: Instant, commands: &mut Vec<Command>) {
        match message {
            HostMessage::Ready { version, reports_start } => {
                self.on_ready(version, reports_start, commands);
            }
            HostMessage::Unloaded { task: identifier, error } => {
                if let HostState::Starting { broken, .. } = &mut self.state {
                    broken.push(BrokenTask { identifier, error });
                }
            }
            HostMessage::Started(runs) => runs.iter().for_each(|run| self.runs.on_started(*run, now)),
            HostMessage::Done(runs) => {
                runs.iter().for_each(|run| commands.push(self.end_run(*run, Answer::Done)));
            }
            HostMessage::Failed { run, failure } => {
                commands.push(self.end_run(run, Answer::Failed(failure)));
            }
            HostMessage::Log(entry) => {
                let job = entry.run.and_then(|run| self.runs.job_of(run).cloned());
                commands.push(Command::Report(Report::Logged { entry, job }));
            }
            HostMessage::Add { call, jobs, preserve_run_at } => {
                commands.push(Command::AddJobs { call, jobs, preserve_run_at });
            }
            HostMessage::InvalidCall { call, error } => {
                let reply = WorkerMessage::Reply { call, result: Err(&error.into()) }.encode();
                self.runs.send(&reply);
            }
            HostMessage::Pong(pong) => {
                if let Err(why) = self.runs.on_pong(pong, now, commands) {
                    self.get_stuck(why, now, now, commands);
                }
            }
        }
    }

    fn end_run(&mut self, run: u64, answer: Answer) -> Command {
        self.runs.on_ended(run, answer).unwrap_or(Command::Report(Report::LateEnd { run }))
    }

    fn on_ready(&mut self, version: String, reports_start: bool, commands: &mut Vec<Command>) {
        // A host that was ready already has nothing to add.
        let HostState::Starting { since, broken, .. } = &mut self.state else { return };
        let (since, broken) = (*since, std::mem::take(broken));
        self.state = HostState::Ready { since, reports_start };
        let is_first = self.load == Load::default();
        if !is_first || self.rules.logs_first_load {
            commands.extend(broken.iter().cloned().map(|task| Command::Report(Report::Broken(task))));
        }
        let is_expected = is_first && !self.was_slow;
        commands.push(Command::Report(Report::Ready { version, is_expected }));
        (self.was_slow, self.is_repeating) = (false, false);
        let identifiers = broken.iter().map(|task| task.identifier.clone()).collect();
        commands.push(Command::ResumeTasks { except: identifiers });
        self.load.phase = Phase::Ready(broken);
        commands.push(Command::Publish(self.load.clone()));
    }

    /// A process that has closed its socket and goes on is useless. Usually it is about to end.
    fn on_socket_closed(&mut self, now: Instant, commands: &mut Vec<Command>) {
        self.get_stuck(CLOSED_SOCKET, now + self.rules.kill_after, now, commands);
    }

    /// The process can't be used any more.
    fn get_stuck(&mut self, why: Stuck, kill_at: Instant, now: Instant, commands: &mut Vec<Command>) {
        let (since, was_ready) = match self.state {
            HostState::Starting { since, .. } => (since, false),
            HostState::Ready { since, .. } => (since, true),
            HostState::Draining { .. } | HostState::Stuck { .. } | HostState::Dead { .. } => return,
        };
        self.state = HostState::Stuck { why, since, was_ready, kill_at: Some(kill_at) };
        if was_ready {
            self.lose_process(commands);
        }
        self.runs.return_unsent(commands);
        self.on_timer(now, commands);
    }

    /// A process that was ready takes no more jobs. This is published before any run ends because of it: whoever waits
    /// for a run must already see it.
    fn lose_process(&mut self, commands: &mut Vec<Command>) {
        self.load = Load { phase: Phase::Starting, deaths: self.load.deaths + 1 };
        // Answers may be in the list already, if a run is the reason.
        commands.splice(0..0, [Command::PauseTasks, Command::Publish(self.load.clone())]);
    }

    fn close(&mut self, now: Instant, commands: &mut Vec<Command>) {
        self.is_closing = true;
        match &mut self.state {
            HostState::Starting { .. } | HostState::Ready { .. } => {
                let patience = if self.runs.lost() == 0 { self.rules.kill_after } else { SHORT_PATIENCE };
                self.state = HostState::Draining { kill_at: Some(now + patience) };
                self.runs.return_unsent(commands);
                // With the aborts of runs that were given up: they must not start any more.
                commands.push(Command::CloseSocket(self.runs.take_messages()));
            }
            HostState::Stuck { kill_at, .. } => *kill_at = kill_at.map(|_| now),
            HostState::Dead { restart_at } => *restart_at = None,
            HostState::Draining { .. } => {}
        }
    }

    fn on_timer(&mut self, now: Instant, commands: &mut Vec<Command>) {
        let is_over = |time: &Option<Instant>| time.is_some_and(|time| time <= now);
        match &mut self.state {
            HostState::Starting { warn_at, .. } if is_over(warn_at) => {
                (*warn_at, self.was_slow) = (None, true);
                commands.push(Command::Report(Report::StillLoading));
            }
            HostState::Ready { .. } => {
                if let Err(why) = self.runs.expire(now, commands) {
                    self.get_stuck(why, now, now, commands);
                }
            }
            HostState::Draining { kill_at } | HostState::Stuck { kill_at, .. } if is_over(kill_at) => {
                *kill_at = None;
                commands.push(Command::KillProcess);
            }
            HostState::Dead { restart_at } if is_over(restart_at) => self.start(now, commands),
            _ => {}
        }
    }

    fn on_ended(&mut self, end: End, now: Instant, commands: &mut Vec<Command>) {
        if self.is_closing {
            let error = format!("the {} host of the task was closed", self.rules.name);
            self.runs.end(&error, commands);
            self.state = HostState::Dead { restart_at: None };
            return;
        }
        let (since, was_ready, how) = match self.state {
            HostState::Stuck { why, since, was_ready, kill_at: None } => {
                (since, was_ready, format!("{why}, so it was killed"))
            }
            HostState::Stuck { since, was_ready, .. } => (since, was_ready, end.how),
            HostState::Ready { since, .. } => {
                self.lose_process(commands);
                (since, true, end.how)
            }
            HostState::Starting { since, .. } => (since, false, end.how),
            HostState::Draining { .. } | HostState::Dead { .. } => return,
        };
        let how = match end.stderr {
            Some(stderr) => format!("{how}\nstderr:\n{stderr}"),
            None => how,
        };
        let error = format!("the {} host died while it ran the task: {how}", self.rules.name);
        self.runs.end(&error, commands);
        if was_ready && now.duration_since(since) >= STEADY {
            self.pause = FIRST_PAUSE;
        }
        match was_ready {
            true => commands.push(Command::Report(Report::Died { how, pause: self.pause })),
            false => self.on_failed_start(how, commands),
        }
        self.state = HostState::Dead { restart_at: Some(now + self.pause) };
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// A start has failed. This is logged once, and again if it fails in another way.
    fn on_failed_start(&mut self, how: String, commands: &mut Vec<Command>) {
        // Only the first line is compared: its output may contain a time or a number.
        let kind = |how: &str| how.lines().next().unwrap_or_default().to_owned();
        let is_known = match &self.load.phase {
            Phase::Failed(last) => kind(last) == kind(&how),
            _ => self.load == Load::default() && !self.rules.logs_first_load,
        };
        commands.push(Command::Report(Report::NotReady { how: how.clone(), is_repeated: is_known }));
        self.is_repeating = true;
        self.load.phase = Phase::Failed(how);
        commands.push(Command::Publish(self.load.clone()));
    }
}
