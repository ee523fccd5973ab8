//! Detects changes of the tasks and of the crontab.
//!
//! Events of the file system are only a hint: editors save in many ways, and Python writes its caches next to the
//! tasks. Therefore, after a quiet moment, the files themselves are checked. Only if one of them differs from before,
//! by name, size, time or mode, is that a change.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use crate::output::Failure;

/// How long there must be no events before the files are checked: an editor's save causes several events.
const QUIET: Duration = Duration::from_millis(150);

/// The files are checked at least this often while events keep arriving.
const AT_MOST: Duration = Duration::from_secs(2);

/// Watches a folder of tasks and a crontab.
pub(crate) struct Watch {
    tasks: PathBuf,
    crontab: PathBuf,
    seen: Fingerprint,
    hints: mpsc::Receiver<()>,
    /// Watching ends when this value is dropped.
    _watcher: RecommendedWatcher,
}

/// The relevant files, with the properties that show a change.
type Fingerprint = BTreeMap<PathBuf, (u64, i64, i64, u32, u64)>;

impl Watch {
    /// Watches from now on.
    pub(crate) fn start(tasks: &Path, crontab: &Path) -> Result<Watch, Failure> {
        // One waiting hint is as good as many.
        let (sender, hints) = mpsc::channel(1);
        let failed = |path: &Path, error: notify::Error| {
            Failure::new(format!("can't watch {} for changes: {error}", path.display()))
        };
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                // If the channel is full, a hint is already waiting.
                let _ = sender.try_send(());
            }
        })
        .map_err(|error| failed(tasks, error))?;
        watcher.watch(tasks, RecursiveMode::Recursive).map_err(|error| failed(tasks, error))?;
        // The folder is watched, since the file may not exist yet, and is often replaced by another.
        let folder =
            crontab.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if folder.is_dir() {
            watcher.watch(folder, RecursiveMode::NonRecursive).map_err(|error| failed(folder, error))?;
        }
        let seen = fingerprint(tasks, crontab);
        Ok(Watch { tasks: tasks.into(), crontab: crontab.into(), seen, hints, _watcher: watcher })
    }

    /// Returns when the files have changed. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        loop {
            if self.hints.recv().await.is_none() {
                return std::future::pending().await;
            }
            let quiet = async {
                while tokio::time::timeout(QUIET, self.hints.recv()).await.is_ok_and(|hint| hint.is_some()) {}
            };
            // Check the files in both cases.
            let _ = tokio::time::timeout(AT_MOST, quiet).await;
            let now = fingerprint(&self.tasks, &self.crontab);
            if now != self.seen {
                self.seen = now;
                return;
            }
        }
    }
}

fn fingerprint(tasks: &Path, crontab: &Path) -> Fingerprint {
    let mut files = Fingerprint::new();
    add_folder(&mut files, tasks);
    add_file(&mut files, crontab);
    files
}

fn add_folder(files: &mut Fingerprint, folder: &Path) {
    // A folder that has just been removed has no files.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            _ if is_no_task(&path) => {}
            Ok(kind) if kind.is_dir() => add_folder(files, &path),
            _ => add_file(files, &path),
        }
    }
}

fn add_file(files: &mut Fingerprint, path: &Path) {
    if let Ok(file) = fs::metadata(path) {
        let mark = (file.size(), file.mtime(), file.mtime_nsec(), file.mode(), file.ino());
        files.insert(path.into(), mark);
    }
}

/// Hidden files, backup files of editors, and caches of languages.
fn is_no_task(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with('.') || name.ends_with('~') || name == "__pycache__" || name == "node_modules"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_and_backups_are_no_change_and_modes_are() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("atta-watch-{}", std::process::id()));
        let tasks = folder.join("tasks");
        fs::create_dir_all(tasks.join("__pycache__")).unwrap();
        fs::write(tasks.join("hello.py"), "").unwrap();
        let before = fingerprint(&tasks, &folder.join("crontab"));
        fs::write(tasks.join("__pycache__/hello.pyc"), "").unwrap();
        fs::write(tasks.join(".hello.py.swp"), "").unwrap();
        assert_eq!(fingerprint(&tasks, &folder.join("crontab")), before);
        fs::set_permissions(tasks.join("hello.py"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_ne!(fingerprint(&tasks, &folder.join("crontab")), before);
        fs::remove_dir_all(folder).unwrap();
    }
}
