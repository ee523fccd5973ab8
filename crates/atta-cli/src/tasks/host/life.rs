//! The life of one host process: start it, send messages, receive messages, wait for its end.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atta::{RawJobSpec, WorkerUtils};
use command_fds::{CommandFdExt, FdMapping};
use rustix::process::Signal;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::super::executable::describe;
use super::super::guard::Group;
use super::super::lines::{Tail, read_lines};
use super::super::wire::{self, AddError, Hello, HostedTask, Message, NewJob};
use super::supervise::SLOW_LOAD;
use super::{Answer, Refusal, Shared};

/// The host's end of the socket is this file descriptor. It is not standard input, because processes that a task starts
/// must not read it.
const SOCKET: i32 = 3;

/// How many bytes are read at a time.
const CHUNK: usize = 64 * 1024;

/// The longest line that is accepted from a host: the payload of a job to add has to fit.
const LONGEST_LINE: usize = 64 * 1024 * 1024;

/// How long to read the last messages when the process has ended: other processes may still have its pipes open.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// Starts a process and waits for its end. Returns how it ended.
pub(super) async fn live(shared: &Shared) -> String {
    let (child, socket) = match start(shared) {
        Ok(started) => started,
        Err(error) => return format!("can't start {}: {error}", shared.program.path.display()),
    };
    accompany(shared, child, socket).await
}

fn start(shared: &Shared) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let program = &shared.program;
    let mut command = Command::new(&program.path);
    command.args(&program.arguments);
    if let Some(script) = program.script {
        command.env("ATTA_HOST_SCRIPT", script);
    }
    let socket = FdMapping { parent_fd: OwnedFd::from(theirs), child_fd: SOCKET };
    command.fd_mappings(vec![socket]).map_err(io::Error::other)?;
    let child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    Ok((child, UnixStream::from_std(ours)?))
}

async fn accompany(shared: &Shared, mut child: Child, socket: UnixStream) -> String {
    let group = shared.guard.watch(child.id());
    let name = shared.program.name.as_str();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let tail = Tail::default();
    let (reader, writer) = socket.into_split();
    let out = async {
        if let Some(stdout) = stdout {
            read_lines(stdout, |line| match is_noise(shared) {
                true => tracing::debug!(parent: None, host = name, stream = "stdout", "{line}"),
                false => tracing::info!(parent: None, host = name, stream = "stdout", "{line}"),
            })
            .await;
        }
    };
    let err = async {
        if let Some(stderr) = stderr {
            read_lines(stderr, |line| {
                match is_noise(shared) {
                    true => tracing::debug!(parent: None, host = name, stream = "stderr", "{line}"),
                    false => tracing::warn!(parent: None, host = name, stream = "stderr", "{line}"),
                }
                tail.push(line);
            })
            .await;
        }
    };
    let deaf = Notify::new();
    let heed = async {
        listen(shared, reader).await;
        deaf.notify_one();
    };
    let listen = async { tokio::join!(heed, out, err) };
    tokio::pin!(listen);
    let send = send(shared, writer);
    tokio::pin!(send);
    // A process that has closed its socket and goes on is useless.
    let useless = async {
        deaf.notified().await;
        tokio::time::sleep(shared.kill_after).await;
    };
    tokio::pin!(useless);
    let slow_load = tokio::time::sleep(SLOW_LOAD);
    tokio::pin!(slow_load);
    let mut is_slow = false;
    let mut is_silent = false;
    let mut killed_for = None;
    let ended = loop {
        tokio::select! {
            ended = child.wait() => break Some(ended),
            _ = &mut listen, if !is_silent => is_silent = true,
            // When `send` returns, the socket has been closed for writing, and the process ends by itself.
            () = &mut send => break None,
            () = shared.condemned.notified(), if killed_for.is_none() => {
                // None, if the request was about the previous process.
                killed_for = shared.lock().take_condemned();
                if killed_for.is_some() {
                    kill(group.as_ref(), &mut child);
                }
            }
            () = &mut slow_load, if !is_slow => {
                is_slow = true;
                shared.warn_if_loading();
            }
            () = &mut useless, if killed_for.is_none() => {
                killed_for = Some("it closed its socket without ending");
                kill(group.as_ref(), &mut child);
            }
        }
    };
    let ended = match ended {
        Some(ended) => Some(ended),
        None => {
            let wait = async {
                loop {
                    tokio::select! {
                        ended = child.wait() => break ended,
                        _ = &mut listen, if !is_silent => is_silent = true,
                    }
                }
            };
            // A run that was given up and waits in a blocked process must not start when the process goes on.
            let patience = if shared.lock().lost() == 0 { shared.kill_after } else { LAST_WORDS };
            tokio::time::timeout(patience, wait).await.ok()
        }
    };
    if !is_silent {
        // Results that it sent just before its end count.
        let _ = tokio::time::timeout(LAST_WORDS, &mut listen).await;
    }
    // Kills the process together with all processes that its tasks have started.
    drop(group);
    let mut how = match ended {
        _ if killed_for.is_some() => format!("{}, so it was killed", killed_for.unwrap_or_default()),
        Some(Ok(status)) => describe(status),
        Some(Err(error)) => format!("can't wait for it: {error}"),
        None => "it did not end when it was asked to, and was killed".to_owned(),
    };
    if let Some(tail) = tail.text() {
        how.push_str("\nstderr:\n");
        how.push_str(&tail);
    }
    how
}

fn kill(group: Option<&Group>, child: &mut Child) {
    match group {
        Some(group) => group.signal(Signal::KILL),
        // The process is our child, so it can be killed if it has not ended.
        None => drop(child.start_kill()),
    }
}

/// Whether the output of the process was logged before: this is another start after one that failed.
fn is_noise(shared: &Shared) -> bool {
    shared.is_repeating.load(Ordering::Relaxed)
}

/// Sends all waiting messages at once, until the host is closed or no longer reads.
async fn send(shared: &Shared, mut writer: OwnedWriteHalf) {
    let worker = shared.worker.get();
    let hello = Hello {
        tasks: shared
            .tasks
            .iter()
            .map(|(identifier, path)| HostedTask { identifier, path: path.to_string_lossy() })
            .collect(),
        concurrency: shared.concurrency,
        connection: &shared.connection,
        schema: &shared.schema,
        worker: worker.map(|worker| worker.id.as_str()),
    };
    let mut bytes = wire::hello(&hello);
    let (mut has_aborted, mut knows_worker) = (false, worker.is_some());
    loop {
        let sent = tokio::select! {
            sent = writer.write_all(&bytes) => sent,
            () = shared.closing.cancelled() => return,
        };
        if sent.is_err() {
            // The process is dying, and its end gives the reason.
            return std::future::pending().await;
        }
        bytes.clear();
        // After one huge payload, the memory is freed again.
        bytes.shrink_to(CHUNK);
        let cancelled = async {
            match shared.worker.get() {
                Some(worker) if !has_aborted => worker.cancel.cancelled().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.outgoing.notified() => {}
            () = cancelled => {
                has_aborted = true;
                wire::abort_all(&mut bytes);
            }
            () = shared.closing.cancelled() => {
                // Runs that were given up must no longer start.
                shared.lock().take_outgoing(&mut bytes, CHUNK);
                let _ = tokio::time::timeout(LAST_WORDS, writer.write_all(&bytes)).await;
                return;
            }
        }
        // The host must know the worker before it runs its first job.
        if !knows_worker && let Some(worker) = shared.worker.get() {
            wire::worker(&mut bytes, &worker.id);
            knows_worker = true;
        }
        shared.lock().take_outgoing(&mut bytes, CHUNK);
    }
}

/// Receives messages until the host closes its end.
async fn listen(shared: &Shared, mut reader: OwnedReadHalf) {
    let mut adds = JoinSet::new();
    let mut buffer = Vec::with_capacity(CHUNK);
    let mut looked_at = 0;
    loop {
        tokio::select! {
            read = reader.read_buf(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            },
            Some(added) = adds.join_next() => {
                if let Ok(reply) = added {
                    shared.lock().messages.append(&mut { reply });
                    shared.outgoing.notify_one();
                }
                continue;
            }
        }
        let mut begin = 0;
        while let Some(length) = buffer[looked_at..].iter().position(|byte| *byte == b'\n') {
            let end = looked_at + length;
            handle(shared, &buffer[begin..end], &mut adds);
            begin = end + 1;
            looked_at = begin;
        }
        buffer.drain(..begin);
        looked_at = buffer.len();
        if buffer.is_empty() {
            buffer.shrink_to(CHUNK);
        }
        if buffer.len() > LONGEST_LINE {
            tracing::error!(host = shared.program.name, "ignored a message of the host that is too long");
            buffer.clear();
            looked_at = 0;
        }
    }
}

/// Handles one message. Messages that can't be parsed are logged and ignored: a host may send more than we know.
fn handle(shared: &Shared, line: &[u8], adds: &mut JoinSet<Vec<u8>>) {
    let message = match wire::parse(line) {
        Ok(message) => message,
        Err(error) => {
            let start = String::from_utf8_lossy(&line[..line.len().min(200)]);
            tracing::warn!(host = shared.program.name, %error, "ignored an invalid message of the host: {start}");
            return;
        }
    };
    if let Some(runs) = &message.done {
        for run in runs {
            answer(shared, *run, Answer::Done);
        }
    } else if let Some(run) = message.failed {
        let error = message.error.unwrap_or_else(|| "the task failed without an error message".into());
        answer(shared, run, Answer::Failed(Refusal { error, items: message.items }));
    } else if let Some(runs) = &message.started {
        let mut state = shared.lock();
        runs.iter().for_each(|run| state.on_started(*run));
    } else if message.log.is_some() {
        log(shared, &message);
    } else if let Some(call) = message.call {
        let utils = shared.worker.get().map(|worker| worker.utils.clone());
        let preserve_run_at = message.preserve_run_at;
        let Some(add) = message.add else {
            let error = message.error.unwrap_or_else(|| "a call must contain the jobs to add".into());
            shared.lock().messages.append(&mut wire::reply(call, Err(error.into())));
            return shared.outgoing.notify_one();
        };
        adds.spawn(async move { wire::reply(call, add_jobs(utils, &add, preserve_run_at).await) });
    } else if let Some(task) = message.unloaded {
        shared.lock().on_unloaded(task, message.error.unwrap_or_default());
    } else if let Some(version) = message.ready {
        shared.on_ready(&version, message.reports_start);
    } else if let Some(pong) = message.pong {
        shared.lock().on_pong(pong.as_u64());
    } else {
        let line = String::from_utf8_lossy(&line[..line.len().min(200)]);
        tracing::warn!(host = shared.program.name, "ignored an unknown message of the host: {line}");
    }
}

fn answer(shared: &Shared, run: u64, answer: Answer) {
    if !shared.lock().answer(run, answer) {
        // The run was given up: its time limit was over, or the worker stopped.
        tracing::debug!(host = shared.program.name, run, "a run ended that had been given up");
    }
}

async fn add_jobs(
    utils: Option<WorkerUtils>,
    add: &RawValue,
    preserve_run_at: bool,
) -> Result<Vec<atta::Job>, AddError> {
    let jobs = wire::jobs_to_add(add, preserve_run_at)?;
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

fn log(shared: &Shared, entry: &Message) {
    let run = entry.run.and_then(|run| shared.lock().job_of(run));
    let (job, attempt) = (run.as_ref().map(|run| run.job), run.as_ref().map(|run| run.attempt));
    let task = run.as_ref().map(|run| &*run.task);
    let worker = shared.worker.get().filter(|_| run.is_some()).map(|worker| worker.id.as_str());
    let host = run.is_none().then_some(shared.program.name.as_str());
    let message = entry.message.as_deref().unwrap_or_default();
    let meta = entry.meta.as_deref().map(RawValue::get);
    match entry.log.as_deref() {
        _ if is_noise(shared) => {
            tracing::debug!(parent: None, worker, job, task, attempt, host, meta, "{message}");
        }
        Some("error") => tracing::error!(parent: None, worker, job, task, attempt, host, meta, "{message}"),
        Some("warn" | "warning") => {
            tracing::warn!(parent: None, worker, job, task, attempt, host, meta, "{message}");
        }
        Some("debug") => tracing::debug!(parent: None, worker, job, task, attempt, host, meta, "{message}"),
        _ => tracing::info!(parent: None, worker, job, task, attempt, host, meta, "{message}"),
    }
}
