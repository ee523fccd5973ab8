//! What the state machine of a host takes in and gives out.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::wire::{Failure, HostMessage, LogEntry};

/// Something that has happened.
pub(super) enum Event {
    /// The host was started: the first process is wanted.
    Open,
    /// A job is to be run.
    Run(NewRun),
    /// Nobody waits for this run any more.
    GiveUp(u64),
    /// An encoded message for the current process, about no run: the worker's id, or the reply to a call.
    Send(Vec<u8>),
    /// The worker aborts all its jobs, and those that follow.
    Abort,
    /// The host must end.
    Close,
    /// The process has sent a message.
    Message(HostMessage),
    /// The process has closed its end of the socket.
    SocketClosed,
    /// The process has ended, or could not be started.
    Ended(End),
    /// The time that [`Machine::deadline`](super::machine::Machine::deadline) returned has come.
    Timer,
}

/// A job to run.
pub(super) struct NewRun {
    /// Identifies the run. It is never used twice.
    pub(super) number: u64,
    pub(super) job: RunningJob,
    /// The encoded message. If there is a time limit, it asks the host to report the start of the task.
    pub(super) line: Vec<u8>,
    pub(super) limit: Option<Duration>,
}

/// The job of a run, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunningJob {
    pub(super) id: i64,
    pub(super) task: Box<str>,
    pub(super) attempt: i16,
}

/// How a process ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) how: String,
    /// The last lines that it wrote to standard error.
    pub(super) stderr: Option<String>,
}

/// Something that the supervisor must do, in the order of the list.
#[derive(Debug)]
pub(super) enum Command {
    StartProcess,
    KillProcess,
    /// Sends these bytes and closes the socket for writing, which makes the process end.
    CloseSocket(Vec<u8>),
    /// The worker must claim no jobs of this host.
    PauseTasks,
    /// The worker may claim jobs of this host, except those of these tasks, which could not be loaded.
    ResumeTasks {
        except: Vec<String>,
    },
    /// What the users of the host see has changed.
    Publish(Load),
    /// A run has ended.
    Answer(u64, Answer),
    /// Jobs are to be added for a call of the host. The reply comes back as [`Event::Send`].
    AddJobs {
        call: u64,
        jobs: Box<RawValue>,
        preserve_run_at: bool,
    },
    /// Something for the log.
    Report(Report),
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Failed(Failure),
    /// The time limit was exceeded. The task has been aborted, or its host is killed.
    TimedOut,
    /// The task has not started, and will not.
    NotStarted,
}

impl Answer {
    pub(super) fn failed(error: impl Into<String>) -> Answer {
        Answer::Failed(Failure { error: error.into(), items: None })
    }
}

/// How far the host has come with loading its tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) phase: Phase,
    /// How many processes were ready and were lost since.
    pub(super) deaths: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// A process is being started, or will be.
    #[default]
    Starting,
    /// It runs jobs, except those of the tasks that could not be loaded.
    Ready(Vec<BrokenTask>),
    /// The process ended before it was ready, in this way, and is started again later.
    Failed(String),
}

/// A task that could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BrokenTask {
    pub(super) identifier: String,
    pub(super) error: String,
}

/// An entry for the log.
#[derive(Debug)]
pub(super) enum Report {
    /// A task or the host itself has logged this.
    Logged {
        entry: LogEntry,
        job: Option<RunningJob>,
    },
    Broken(BrokenTask),
    /// The host is ready. `is_expected` if nothing was logged before that made somebody wait for it.
    Ready {
        version: String,
        is_expected: bool,
    },
    /// The host has been loading for long.
    StillLoading,
    /// A process that was ready has ended.
    Died {
        how: String,
        pause: Duration,
    },
    /// A process ended before it was ready. `is_repeated` if that is known already.
    NotReady {
        how: String,
        is_repeated: bool,
    },
    /// A run that was given up has ended.
    LateEnd {
        run: u64,
    },
}
