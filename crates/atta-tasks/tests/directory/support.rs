//! Folders with tasks, and the path of the example.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder of one test, removed with this value.
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("directory-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("a folder can be made");
        Folder { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that is not executable.
    pub(crate) fn file(self, name: &str, text: &str) -> Folder {
        let path = self.path.join(name);
        fs::create_dir_all(path.parent().expect("it is in the folder")).expect("a folder can be made");
        fs::write(path, text).expect("a file can be written");
        self
    }

    /// Writes a program.
    pub(crate) fn program(self, name: &str, text: &str) -> Folder {
        let folder = self.file(name, text);
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path.join(name), mode).expect("a file of ours can be made executable");
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, the folder stays in target.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Cargo builds the examples of a package before it runs the package's tests, in a folder beside theirs.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().expect("we run from a file");
    let target = tests.parent().and_then(|deps| deps.parent()).expect("it is in target/…/deps");
    target.join("examples").join(name)
}
