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

/// The contents of a settings file. docs/settings.md describes each key.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub(super) connection: Option<String>,
    pub(super) schema: Option<String>,
    pub(super) tasks: Option<PathBuf>,
    pub(super) crontab: Option<PathBuf>,
    pub(super) jobs: Option<usize>,
    pub(super) max_pool_size: Option<usize>,
    pub(super) poll_interval: Option<Span>,
    pub(super) prepared_statements: Option<bool>,
    pub(super) forbidden_flags: Option<Vec<String>>,
    pub(super) claims: Option<ClaimsChoice>,
    pub(super) hold_budget: Option<Span>,
    pub(super) local_queue_size: Option<usize>,
    pub(super) local_queue_ttl: Option<Span>,
    pub(super) local_queue_refetch_delay: Option<Span>,
    pub(super) local_queue_refetch_threshold: Option<usize>,
    pub(super) complete_job_batch_delay: Option<Span>,
    pub(super) fail_job_batch_delay: Option<Span>,
    pub(super) shutdown_grace_period: Option<Span>,
    pub(super) shutdown_abort_period: Option<Span>,
    pub(super) interrupted_job_retry_delay: Option<Span>,
    pub(super) recovery_threshold: Option<Span>,
    pub(super) crash_limit: Option<u32>,
    pub(super) max_claim_bytes: Option<usize>,
    pub(super) use_local_time: Option<bool>,
    pub(super) allow_breaking_migration: Option<bool>,
    pub(super) time_limit: Option<Span>,
    pub(super) time_limits: Option<BTreeMap<String, Span>>,
    pub(super) kill_after: Option<Span>,
    pub(super) allow_broken_tasks: Option<bool>,
    pub(super) log: Option<String>,
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
