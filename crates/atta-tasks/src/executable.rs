//! A task that is a program, started for each job by Graphile Worker's protocol: the job in environment variables, the
//! payload as JSON on standard input, and the exit code as the result.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use atta::{Job, TaskError, WorkerContext};
use chrono::SecondsFormat;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio_util::sync::CancellationToken;

use super::guard::{Group, Guard};
use super::json::compact;
use super::lines::{Tail, read_lines};

/// How long to read the remaining output after the program itself has ended: other processes may still have its pipes
/// open.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// A program that is being written can't be started; the process that replaces it is done in a moment.
const BUSY_TRIES: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(25);

#[derive(Debug)]
pub(super) struct Executable {
    pub(super) path: PathBuf,
    pub(super) kill_after: Duration,
    pub(super) guard: Arc<Guard>,
}

/// Why the worker ended the program, if it did.
#[derive(Clone, Copy, Debug)]
enum StopReason {
    NotStopped,
    Shutdown,
    TimeLimit(Duration),
}

impl Executable {
    /// Runs the program for one job. When the future is dropped, the whole process group is killed.
    pub(super) async fn run(
        self: Arc<Executable>,
        ctx: WorkerContext,
        limit: Option<Duration>,
    ) -> Result<(), TaskError> {
        let job = ctx.job();
        let mut child = self.spawn(job).await.map_err(|error| TaskError::new(self.explain(&error)))?;
        let group = self.guard.watch(child.id());
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let tail = Tail::default();
        let talk = async {
            let feed = feed(stdin, job.payload_json());
            let out = async {
                if let Some(stdout) = stdout {
                    read_lines(stdout, |line| log_stdout(&ctx, line)).await;
                }
            };
            let err = async {
                if let Some(stderr) = stderr {
                    read_lines(stderr, |line| {
                        log_stderr(&ctx, line);
                        tail.push(line);
                    })
                    .await;
                }
            };
            tokio::join!(feed, out, err);
        };
        tokio::pin!(talk);
        let mut is_silent = false;
        let ended = {
            let watch = self.watch(&mut child, group.as_ref(), ctx.cancellation_token(), limit);
            tokio::pin!(watch);
            loop {
                tokio::select! {
                    ended = &mut watch => break ended,
                    () = &mut talk, if !is_silent => is_silent = true,
                }
            }
        };
        let (status, reason) = ended
            .map_err(|error| TaskError::new(format!("can't wait for {}: {error}", self.path.display())))?;
        if !is_silent {
            // Processes that still have the pipes open after that are ended below.
            let _ = tokio::time::timeout(LAST_WORDS, &mut talk).await;
        }
        if let Some(group) = group
            && group.end(self.kill_after).await
        {
            tracing::warn!(
                parent: None,
                worker = ctx.worker_id(),
                job = job.id(),
                task = job.task_identifier(),
                attempt = job.attempts(),
                "killed processes that the task had left running"
            );
        }
        judge(status, reason, &tail)
    }

    async fn spawn(&self, job: &Job) -> io::Result<Child> {
        let mut command = self.command(Command::new(&self.path), job);
        for _ in 0..BUSY_TRIES {
            match command.spawn() {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                // The file has no format that the system knows, so it is a script without a first line: by convention,
                // a shell script.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
                    let mut shell = Command::new("/bin/sh");
                    shell.arg(&self.path);
                    command = self.command(shell, job);
                }
                spawned => return spawned,
            }
        }
        command.spawn()
    }

    /// If the interpreter in a script's first line does not exist, the system reports "no such file", as if it meant
    /// the script.
    fn explain(&self, error: &io::Error) -> String {
        let message = format!("can't start {}: {error}", self.path.display());
        let interpreter = first_line(&self.path).and_then(|line| line.strip_prefix("#!").map(str::to_owned));
        match (error.kind(), interpreter) {
            (io::ErrorKind::NotFound, Some(line)) if line.ends_with('\r') => {
                format!("{message} (its first line ends with CR LF; it must end with LF: #!{})", line.trim())
            }
            (io::ErrorKind::NotFound, Some(line)) if self.path.exists() => {
                format!("{message} (does the program in its first line exist? #!{})", line.trim())
            }
            (io::ErrorKind::NotFound, _) if !self.path.exists() => {
                format!("{message} (the file was deleted after the worker started)")
            }
            (io::ErrorKind::PermissionDenied, _) => {
                format!("{message} (is it executable for this user? chmod +x)")
            }
            _ => message,
        }
    }

    fn command(&self, mut command: Command, job: &Job) -> Command {
        command
            .env("GRAPHILE_WORKER_PAYLOAD_FORMAT", "json")
            .env("GRAPHILE_WORKER_TASK_IDENTIFIER", job.task_identifier())
            .env("GRAPHILE_WORKER_JOB_ID", job.id().to_string())
            .env("GRAPHILE_WORKER_JOB_ATTEMPTS", job.attempts().to_string())
            .env("GRAPHILE_WORKER_JOB_MAX_ATTEMPTS", job.max_attempts().to_string())
            .env("GRAPHILE_WORKER_JOB_PRIORITY", job.priority().to_string())
            .env("GRAPHILE_WORKER_JOB_RUN_AT", job.run_at().to_rfc3339_opts(SecondsFormat::Millis, true))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        match job.key() {
            Some(key) => command.env("GRAPHILE_WORKER_JOB_KEY", key),
            None => command.env_remove("GRAPHILE_WORKER_JOB_KEY"),
        };
        command
    }

    /// Waits for the end of the program, and ends it after the time limit or on request.
    async fn watch(
        &self,
        child: &mut Child,
        group: Option<&Group>,
        cancel: &CancellationToken,
        limit: Option<Duration>,
    ) -> io::Result<(ExitStatus, StopReason)> {
        let time_is_up = async {
            match limit {
                Some(limit) => {
                    tokio::time::sleep(limit).await;
                    StopReason::TimeLimit(limit)
                }
                None => std::future::pending().await,
            }
        };
        let reason = tokio::select! {
            status = child.wait() => return status.map(|status| (status, StopReason::NotStopped)),
            reason = time_is_up => reason,
            () = cancel.cancelled() => StopReason::Shutdown,
        };
        if let Some(group) = group {
            group.signal(Signal::TERM);
        }
        if let Ok(status) = tokio::time::timeout(self.kill_after, child.wait()).await {
            return status.map(|status| (status, reason));
        }
        match group {
            Some(group) => group.signal(Signal::KILL),
            None => child.start_kill()?,
        }
        child.wait().await.map(|status| (status, reason))
    }
}

/// The first line, without its line feed.
fn first_line(path: &Path) -> Option<String> {
    let mut start = Vec::new();
    // As many bytes as the system reads.
    File::open(path).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.split(|byte| *byte == b'\n').next()?;
    String::from_utf8(line.to_vec()).ok()
}

/// Sends the payload as Graphile Worker does: one object with one member, on one line.
async fn feed(stdin: Option<ChildStdin>, payload: &str) {
    let Some(mut stdin) = stdin else { return };
    let text = format!("{{\"payload\":{}}}", compact(payload));
    // A task that does not read the payload, or not to its end, does not need it.
    let _ = stdin.write_all(text.as_bytes()).await;
}

fn log_stdout(ctx: &WorkerContext, line: &str) {
    let (worker, job) = (ctx.worker_id(), ctx.job());
    let (job, task, attempt) = (job.id(), job.task_identifier(), job.attempts());
    tracing::info!(parent: None, worker, job, task, attempt, stream = "stdout", "{line}");
}

fn log_stderr(ctx: &WorkerContext, line: &str) {
    let (worker, job) = (ctx.worker_id(), ctx.job());
    let (job, task, attempt) = (job.id(), job.task_identifier(), job.attempts());
    tracing::error!(parent: None, worker, job, task, attempt, stream = "stderr", "{line}");
}

fn judge(status: ExitStatus, reason: StopReason, tail: &Tail) -> Result<(), TaskError> {
    let how = describe(status);
    let mut message = match reason {
        StopReason::TimeLimit(limit) => format!("the time limit of {limit:?} was exceeded: {how}"),
        StopReason::Shutdown | StopReason::NotStopped if status.success() => return Ok(()),
        StopReason::Shutdown => format!("ended by the worker's shutdown: {how}"),
        StopReason::NotStopped => how,
    };
    if let Some(tail) = tail.text() {
        message.push_str("\nstderr:\n");
        message.push_str(&tail);
    }
    Err(TaskError::new(message))
}

/// How a process ended.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(number)) => match signal_name(number) {
            Some(name) => format!("killed by {name} (signal {number})"),
            None => format!("killed by signal {number}"),
        },
        (None, None) => status.to_string(),
    }
}

fn signal_name(number: i32) -> Option<&'static str> {
    let names = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::SYS, "SIGSYS"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
    ];
    names.iter().find(|(signal, _)| signal.as_raw() == number).map(|(_, name)| *name)
}
