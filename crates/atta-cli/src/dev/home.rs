//! The folder `.atta` of a project: its files and its locks.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::output::Failure;

const NAME: &str = ".atta";

/// The connection string of the server that runs for this project, for commands without another one.
pub(crate) fn running_connection(project: &Path) -> Option<String> {
    let text = fs::read_to_string(project.join(NAME).join("connection")).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The folder `.atta`, by its full path.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    folder: PathBuf,
}

impl Home {
    /// Creates the folder if it does not exist, in such a way that git ignores it.
    pub(crate) fn open(project: &Path) -> Result<Home, Failure> {
        let folder = project.join(NAME);
        let failed = |error| Failure::new(format!("can't create the folder {}: {error}", folder.display()));
        fs::create_dir_all(&folder).map_err(failed)?;
        let folder = fs::canonicalize(&folder).map_err(failed)?;
        let home = Home { folder };
        let ignore = home.folder.join(".gitignore");
        if !ignore.exists() {
            home.write(".gitignore", "*\n")?;
        }
        Ok(home)
    }

    /// Where the server's files are. If we run as root, the server runs as another user. If that user can't enter the
    /// project's folder, this is a link to a folder that it can enter.
    pub(crate) fn cluster(&self) -> Result<PathBuf, Failure> {
        let link = self.folder.join("postgres");
        let failed = |error| Failure::new(format!("can't create the folder {}: {error}", link.display()));
        if link.exists() {
            return fs::canonicalize(&link).map_err(failed);
        }
        let can_reach =
            atta_cluster::can_reach(&self.folder).map_err(|error| Failure::new(error.to_string()))?;
        if can_reach {
            return Ok(link);
        }
        let elsewhere = PathBuf::from(format!("/var/tmp/atta-dev-{:016x}", fastrand::u64(..)));
        fs::create_dir(&elsewhere).map_err(failed)?;
        // A broken link leads to a folder that somebody removed.
        let _ = fs::remove_file(&link);
        symlink(&elsewhere, &link).map_err(failed)?;
        Ok(elsewhere)
    }

    /// Removes the server's files, wherever they are, and its saved address.
    pub(crate) fn remove_cluster(&self) -> Result<(), Failure> {
        let cluster = self.cluster()?;
        let failed = |error| Failure::new(format!("can't remove {}: {error}", cluster.display()));
        if cluster.exists() {
            fs::remove_dir_all(&cluster).map_err(failed)?;
        }
        for name in ["postgres", "address", "connection"] {
            self.remove(name)?;
        }
        Ok(())
    }

    pub(crate) fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(name)).ok()
    }

    /// Readable for the owner only: connection strings contain passwords.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.folder.join(name);
        let mut options = File::options();
        let written = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| Failure::new(format!("can't write {}: {error}", path.display())))
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), Failure> {
        let path = self.folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Failure::new(format!("can't remove {}: {error}", path.display())))
            }
            _ => Ok(()),
        }
    }

    /// Waits for the lock. While it is held, nobody else starts or stops the server.
    pub(crate) fn lock_start(&self) -> Result<Lock, Failure> {
        self.lock("start", FlockOperation::LockExclusive).map(|lock| Lock { _file: lock })
    }

    /// Marks the server as used.
    pub(crate) fn lock_users(&self) -> Result<Lock, Failure> {
        self.lock("users", FlockOperation::LockShared).map(|lock| Lock { _file: lock })
    }

    /// Whether nobody uses the server.
    pub(crate) fn is_unused(&self) -> bool {
        self.lock("users", FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    fn lock(&self, name: &str, kind: FlockOperation) -> Result<File, Failure> {
        let path = self.folder.join(format!("{name}.lock"));
        let failed = |error| Failure::new(format!("can't lock {}: {error}", path.display()));
        let file = File::options().write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        loop {
            match flock(&file, kind) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
                Ok(()) => return Ok(file),
            }
        }
    }
}

/// Released when this value is dropped, or when the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}
