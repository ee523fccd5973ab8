//! The task that owns a host: it turns what happens into events for the state machine, and commands into actions.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use atta::{Job, PausedTasks, RawJobSpec, WorkerUtils};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::event::{Answer, Command, End, Event, Load, NewRun};
use super::machine::Machine;
use super::process::{Process, ProcessEvent, sleep_until};
use super::report::Subject;
use crate::guard::Guard;
use crate::runtime::Program;
use crate::wire::{AddError, Hello, HostedTask, NewJob, WorkerMessage, jobs_to_add};

/// How many requests are handled before the next message is sent: many runs in one message are cheaper.
const REQUESTS: usize = 1024;

/// What the supervisor is asked to do.
pub(super) enum Request {
    /// The worker that the jobs come from. This is the first request, except for `Close`.
    Worker(WorkerLink),
    /// A job is to be run. The answer is sent when the run has ended.
    Run(NewRun, oneshot::Sender<Answer>),
    /// Nobody waits for this run any more.
    GiveUp(u64),
    /// The host must end.
    Close,
}

/// What a host needs from the worker that the jobs come from.
pub(super) struct WorkerLink {
    pub(super) id: String,
    pub(super) utils: WorkerUtils,
    /// Cancelled when the worker aborts its jobs.
    pub(super) cancel: CancellationToken,
}

/// What does not change as long as the host exists.
pub(super) struct Constants {
    pub(super) program: Program,
    /// Identifiers and files.
    pub(super) tasks: Vec<(String, PathBuf)>,
    pub(super) concurrency: usize,
    /// How tasks can connect to the database, encoded. None: that is not known.
    pub(super) connection: Option<Box<RawValue>>,
    pub(super) schema: String,
    pub(super) guard: Arc<Guard>,
    pub(super) paused: PausedTasks,
}

pub(super) struct Supervisor {
    constants: Constants,
    machine: Machine,
    /// Not bounded, because a run must be given up without waiting. A slot has at most two requests in it.
    requests: mpsc::UnboundedReceiver<Request>,
    load: watch::Sender<Load>,
    worker: Option<WorkerLink>,
    is_aborted: bool,
    process: Option<Process>,
    /// Where the answers of runs are sent.
    answers: HashMap<u64, oneshot::Sender<Answer>>,
    /// Calls of the current process to add jobs. They return the encoded replies.
    calls: JoinSet<Vec<u8>>,
}

impl Supervisor {
    pub(super) fn new(
        constants: Constants,
        machine: Machine,
        requests: mpsc::UnboundedReceiver<Request>,
        load: watch::Sender<Load>,
    ) -> Supervisor {
        Supervisor {
            constants,
            machine,
            requests,
            load,
            worker: None,
            is_aborted: false,
            process: None,
            answers: HashMap::new(),
            calls: JoinSet::new(),
        }
    }

    /// The worker claims no jobs of this host until it is ready.
    pub(super) fn pause_tasks(&self) {
        self.constants.paused.pause(self.constants.tasks.iter().map(|(identifier, _)| identifier.as_str()));
    }

    /// Keeps a process alive until the host is closed.
    pub(super) async fn run(mut self) {
        self.handle(Event::Open);
        let mut requests = Vec::new();
        let mut may_be_asked = true;
        while !self.machine.is_over() {
            let deadline = self.machine.deadline().map(tokio::time::Instant::from_std);
            tokio::select! {
                count = self.requests.recv_many(&mut requests, REQUESTS), if may_be_asked => {
                    requests.drain(..).for_each(|request| self.on_request(request));
                    if count == 0 {
                        // Nobody is left who could ask for anything.
                        may_be_asked = false;
                        self.handle(Event::Close);
                    }
                }
                event = next_event(&mut self.process) => self.on_process_event(event),
                Some(reply) = self.calls.join_next() => {
                    // A call that has panicked gets no reply.
                    if let Ok(reply) = reply {
                        self.handle(Event::Send(reply));
                    }
                }
                () = cancelled(self.worker.as_ref()), if !self.is_aborted => {
                    self.is_aborted = true;
                    self.handle(Event::Abort);
                }
                () = sleep_until(deadline) => self.handle(Event::Timer),
            }
            self.send_outgoing();
        }
        self.return_requests();
    }

    fn on_request(&mut self, request: Request) {
        match request {
            Request::Worker(worker) => {
                let message = WorkerMessage::Worker { id: &worker.id }.encode();
                self.worker = Some(worker);
                self.handle(Event::Send(message));
            }
            Request::Run(run, answer) => {
                self.answers.insert(run.number, answer);
                self.handle(Event::Run(run));
            }
            Request::GiveUp(run) => {
                self.answers.remove(&run);
                self.handle(Event::GiveUp(run));
            }
            Request::Close => self.handle(Event::Close),
        }
    }

    fn on_process_event(&mut self, event: ProcessEvent) {
        match event {
            ProcessEvent::Messages(messages) => {
                messages.into_iter().for_each(|message| self.handle(Event::Message(message)));
            }
            ProcessEvent::Output(stream, lines) => self.subject().log_output(stream, &lines),
            ProcessEvent::Written => {}
            ProcessEvent::SocketClosed => self.handle(Event::SocketClosed),
            ProcessEvent::Ended(end) => {
                // First, so that no process of a task runs on when its job is returned.
                self.process = None;
                self.calls = JoinSet::new();
                self.handle(Event::Ended(end));
            }
        }
    }

    fn handle(&mut self, event: Event) {
        for command in self.machine.handle(event, Instant::now()) {
            self.act(command);
        }
    }

    fn act(&mut self, command: Command) {
        match command {
            Command::StartProcess => self.start_process(),
            Command::KillProcess => {
                if let Some(process) = &mut self.process {
                    process.kill();
                }
            }
            Command::CloseSocket(last) => {
                if let Some(process) = &mut self.process {
                    process.send(last);
                    process.close_socket();
                }
            }
            Command::PauseTasks => self.pause_tasks(),
            Command::ResumeTasks { except } => {
                let identifiers = self.constants.tasks.iter().map(|(identifier, _)| identifier);
                let loaded = identifiers.filter(|identifier| !except.contains(identifier));
                self.constants.paused.resume(loaded.map(String::as_str));
            }
            Command::Publish(load) => drop(self.load.send_replace(load)),
            Command::Answer(run, answer) => {
                if let Some(sender) = self.answers.remove(&run) {
                    // The receiver may have gone.
                    let _ = sender.send(answer);
                }
            }
            Command::AddJobs { call, jobs, preserve_run_at } => {
                let utils = self.worker.as_ref().map(|worker| worker.utils.clone());
                self.calls.spawn(async move {
                    let added = add_jobs(utils, &jobs, preserve_run_at).await;
                    WorkerMessage::Reply { call, result: added.as_deref() }.encode()
                });
            }
            Command::Report(report) => self.subject().report(report),
        }
    }

    fn start_process(&mut self) {
        let program = &self.constants.program;
        match Process::start(program, &self.constants.guard) {
            Ok(mut process) => {
                process.send(self.hello());
                self.process = Some(process);
            }
            Err(error) => {
                let how = format!("can't start {}: {error}", program.path.display());
                self.handle(Event::Ended(End { how, stderr: None }));
            }
        }
    }

    fn hello(&self) -> Vec<u8> {
        let Constants { tasks, concurrency, connection, schema, .. } = &self.constants;
        let tasks =
            tasks.iter().map(|(identifier, path)| HostedTask { identifier, path: path.to_string_lossy() });
        WorkerMessage::Hello(Hello {
            tasks: tasks.collect(),
            concurrency: *concurrency,
            connection: connection.as_deref(),
            schema,
            worker: self.worker.as_ref().map(|worker| worker.id.as_str()),
        })
        .encode()
    }

    /// Sends all waiting messages at once, if the process takes more.
    fn send_outgoing(&mut self) {
        if let Some(process) = self.process.as_mut().filter(|process| process.takes_more())
            && let Some(bytes) = self.machine.take_outgoing(Instant::now())
        {
            process.send(bytes);
        }
    }

    /// Nothing is started any more: whoever still asks for a run gets it back.
    fn return_requests(&mut self) {
        self.requests.close();
        while let Ok(request) = self.requests.try_recv() {
            if let Request::Run(_, answer) = request {
                // The receiver may have gone.
                let _ = answer.send(Answer::NotStarted);
            }
        }
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            host: &self.constants.program.name,
            worker: self.worker.as_ref().map(|worker| worker.id.as_str()),
            is_repeating: self.machine.is_repeating(),
        }
    }
}

/// Cancel safe; waits forever without a process.
async fn next_event(process: &mut Option<Process>) -> ProcessEvent {
    match process {
        Some(process) => process.next().await,
        None => std::future::pending().await,
    }
}

/// Waits until the worker aborts its jobs. Cancel safe; waits forever without a worker.
async fn cancelled(worker: Option<&WorkerLink>) {
    match worker {
        Some(worker) => worker.cancel.cancelled().await,
        None => std::future::pending().await,
    }
}

async fn add_jobs(
    utils: Option<WorkerUtils>,
    jobs: &RawValue,
    preserve_run_at: bool,
) -> Result<Vec<Job>, AddError> {
    let jobs = jobs_to_add(jobs, preserve_run_at)?;
    let utils = utils.ok_or("jobs can be added only while a task runs")?;
    let added = match <[NewJob; 1]>::try_from(jobs) {
        Ok([job]) => utils.add_raw_job(job.identifier, job.payload, job.spec).await.map(|added| vec![added]),
        Err(jobs) => {
            let jobs: atta::Result<Vec<RawJobSpec>> =
                jobs.into_iter().map(|job| RawJobSpec::new(job.identifier, job.payload, job.spec)).collect();
            match jobs {
                Ok(jobs) => utils.add_raw_jobs(&jobs).await,
                Err(error) => Err(error),
            }
        }
    };
    added.map_err(|error| AddError { code: error.db_code().map(str::to_owned), message: error.to_string() })
}
