//! The folder of tasks: for now, its executables.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use atta::WorkerOptions;

use crate::output::Failure;

#[expect(dead_code, reason = "stub")]
pub(crate) struct TasksSettings {
    pub(crate) folder: PathBuf,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) time_limits: HashMap<String, Duration>,
    pub(crate) kill_after: Duration,
    pub(crate) connection: String,
    pub(crate) schema: String,
    pub(crate) concurrency: usize,
}

pub(crate) struct TasksFolder {
    files: Vec<(String, PathBuf)>,
}

impl TasksFolder {
    pub(crate) async fn open(settings: TasksSettings) -> Result<TasksFolder, Failure> {
        let mut files = Vec::new();
        let entries = std::fs::read_dir(&settings.folder).map_err(|error| Failure::new(error.to_string()))?;
        for entry in entries.flatten() {
            if entry.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o100 != 0) {
                let name =
                    entry.file_name().to_string_lossy().split('.').next().unwrap_or_default().to_owned();
                files.push((name, entry.path()));
            }
        }
        Ok(TasksFolder { files })
    }

    pub(crate) fn identifiers(&self) -> Vec<String> {
        self.files.iter().map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn define(&self, mut options: WorkerOptions) -> WorkerOptions {
        for (name, path) in &self.files {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            options = options.define_raw_job(name, move |ctx| {
                let path = path.clone();
                async move {
                    let output = tokio::process::Command::new(path)
                        .env("GRAPHILE_WORKER_JOB_ID", ctx.job().id().to_string())
                        .stdin(std::process::Stdio::null())
                        .kill_on_drop(true)
                        .output()
                        .await
                        .map_err(|error| error.to_string())?;
                    for line in String::from_utf8_lossy(&output.stdout).lines() {
                        tracing::info!("{line}");
                    }
                    if output.status.success() { Ok(()) } else { Err(output.status.to_string()) }
                }
            });
        }
        options
    }

    pub(crate) async fn close(self) {}
}
