//! The settings file, `atta.toml`.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Span;
use crate::args::{ClaimsChoice, LogFormat};
use crate::output::Failure;

/// The file that is read if none is named and it exists.
const NAME: &str = "atta.toml";

/// The contents of a settings file. The page docs/reference/settings.md of the book is made from the comments below:
/// they are texts for users, in Markdown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// The database: a URL, key=value pairs, or a name. Without it, the `PG*` variables name the database, or an
    /// `atta dev` that runs in this folder.
    pub(super) connection: Option<String>,
    /// The schema that contains the jobs.
    pub(super) schema: Option<String>,
    /// The folder of tasks.
    pub(super) tasks: Option<PathBuf>,
    /// The crontab; a file that is named here must exist.
    pub(super) crontab: Option<PathBuf>,
    /// Number of slots: jobs that run at a time; at least 1.
    pub(super) jobs: Option<usize>,
    /// Connections for tasks in Rust and for adding jobs; a worker has
    /// [others](../operating/poolers.md#connections) as well.
    pub(super) max_pool_size: Option<usize>,
    /// How often to poll for jobs that were not announced by NOTIFY; at least `1ms`.
    pub(super) poll_interval: Option<Span>,
    /// Whether to prepare statements; false behind a pooler that does not support them. Poolers in transaction
    /// mode are detected, so that this is rarely needed.
    pub(super) prepared_statements: Option<bool>,
    /// The worker never claims jobs that have one of these flags: a list; in the variable, separated by commas.
    pub(super) forbidden_flags: Option<Vec<String>>,
    /// How to [claim](../concepts/claims.md) jobs: `held`, or `durable`, which writes every claim into the job's
    /// row.
    pub(super) claims: Option<ClaimsChoice>,
    /// How long a held claim may last; `1ms` to `1s`.
    pub(super) hold_budget: Option<Span>,
    /// Size of the local queue: jobs to claim in advance, beyond those that run.
    pub(super) local_queue_size: Option<usize>,
    /// How long a job may wait in the local queue before it is returned.
    pub(super) local_queue_ttl: Option<Span>,
    /// Pause after a claim that returned few jobs; at most the poll interval.
    pub(super) local_queue_refetch_delay: Option<Span>,
    /// A claim that returned at most this many jobs is followed by the pause of `local_queue_refetch_delay`.
    pub(super) local_queue_refetch_threshold: Option<usize>,
    /// How long the outcome of a completed job may wait to be written together with others.
    pub(super) complete_job_batch_delay: Option<Span>,
    /// The same for the outcome of a failed job.
    pub(super) fail_job_batch_delay: Option<Span>,
    /// How long running jobs may finish after a signal.
    pub(super) shutdown_grace_period: Option<Span>,
    /// How long jobs may take to end after their abort signal, before they are aborted.
    pub(super) shutdown_abort_period: Option<Span>,
    /// How long a job that a shutdown interrupted waits before it runs again.
    pub(super) interrupted_job_retry_delay: Option<Span>,
    /// How long this worker may go without a heartbeat before others declare it dead and recover its jobs; at
    /// least `1s`.
    pub(super) recovery_threshold: Option<Span>,
    /// After how many crashes of its worker a job fails permanently; at least 1; should be the same for all
    /// workers.
    pub(super) crash_limit: Option<u32>,
    /// How many bytes of payloads a worker claims in advance of running them; a larger job is claimed alone.
    pub(super) max_claim_bytes: Option<usize>,
    /// Use this machine's clock instead of the database's for jobs; [cron](../guides/cron.md) always uses the
    /// database's.
    pub(super) use_local_time: Option<bool>,
    /// A worker may migrate the schema at its start even if [older releases of
    /// graphile-worker](../guides/from-graphile-worker.md) that use it then stop working.
    pub(super) allow_breaking_migration: Option<bool>,
    /// How long a job may run.
    pub(super) time_limit: Option<Span>,
    /// The same for single tasks: a table, with the task identifier as the key.
    pub(super) time_limits: Option<BTreeMap<String, Span>>,
    /// Time from the request to end (SIGTERM) to the kill (SIGKILL), for the processes of tasks.
    pub(super) kill_after: Option<Span>,
    /// Start even if some tasks can't be loaded, and claim no jobs of those.
    pub(super) allow_broken_tasks: Option<bool>,
    /// The level of the log: `error`, `warn`, `info`, `debug`, `trace`, `off`, or a level per module.
    pub(super) log: Option<String>,
    /// The format of the log: `text`, or `json`, which writes one object per line.
    pub(super) log_format: Option<LogFormat>,

    /// The path of the file.
    #[serde(skip)]
    pub(super) path: PathBuf,
}

impl File {
    /// Reads the file that was named, or `atta.toml` if it exists.
    pub(crate) fn read(named: Option<&Path>) -> Result<File, Failure> {
        let path = named.unwrap_or(Path::new(NAME));
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => {
                return Ok(File::default());
            }
            Err(error) => {
                return Err(Failure::new(format!(
                    "can't read the settings file {}: {error}",
                    path.display()
                )));
            }
        };
        File::parse(&text, path)
    }

    /// Parses the text of a file.
    pub(crate) fn parse(text: &str, path: &Path) -> Result<File, Failure> {
        let mut file: File = toml::from_str(text).map_err(|error| explain(path, text, &error))?;
        file.resolve_paths(path);
        Ok(file)
    }

    /// A relative path in the file is relative to the file's folder, wherever the command runs.
    fn resolve_paths(&mut self, path: &Path) {
        let folder = path.parent().unwrap_or(Path::new(""));
        for relative in [&mut self.tasks, &mut self.crontab].into_iter().flatten() {
            *relative = folder.join(&*relative);
        }
        path.clone_into(&mut self.path);
    }
}

fn explain(path: &Path, text: &str, error: &toml::de::Error) -> Failure {
    let shown = path.display();
    let failure = Failure::new(format!("the settings file {shown} is invalid: {}", describe(text, error)));
    let is_code = path.extension().is_some_and(|extension| extension != "toml");
    failure.with_hint(if is_code {
        "atta's settings are TOML, not code; `atta config -C /dev/null` shows all keys, with their defaults"
    } else {
        "`atta config -C /dev/null` shows all keys, with their defaults"
    })
}

/// Describes an error, with the line itself unless it may contain a password.
fn describe(text: &str, error: &toml::de::Error) -> String {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = text.get(..start).unwrap_or_default();
    let line = before.matches('\n').count();
    let may_hold_secret =
        |text: &str| ["connection", "password", "://", "@"].iter().any(|sign| text.contains(sign));
    let message = error.message().lines().next().unwrap_or_default();
    match text.lines().nth(line).is_some_and(may_hold_secret) {
        // The message would repeat a value of the wrong type.
        true if may_hold_secret(message) => format!("line {}", line + 1),
        true => format!("line {}: {message}", line + 1),
        // The only name of a Rust type that users could see.
        false => error.to_string().trim_end().replace("expected usize", "expected a whole number"),
    }
}
