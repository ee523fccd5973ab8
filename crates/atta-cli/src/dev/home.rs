//! The folder `.atta` of a project: what is in it, and its locks.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::output::Failure;

const NAME: &str = ".atta";

/// The connection string of the server that runs for this project, for commands that were told no other.
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
    /// Makes it, if it is not there, in such a way that git does not see it.
    pub(crate) fn open(project: &Path) -> Result<Home, Failure> {
        let folder = project.join(NAME);
        let failed = |error| Failure::new(format!("can't make the folder {}: {error}", folder.display()));
        fs::create_dir_all(&folder).map_err(failed)?;
        let folder = fs::canonicalize(&folder).map_err(failed)?;
        let home = Home { folder };
        let ignore = home.folder.join(".gitignore");
        if !ignore.exists() {
            home.write(".gitignore", "*\n")?;
        }
        Ok(home)
    }

    /// Where the server's files are. From root, the server runs as another user; where that one can't enter the
    /// project's folder, this is a link to one that it can.
    pub(crate) fn cluster(&self) -> Result<PathBuf, Failure> {
        let link = self.folder.join("postgres");
        let failed = |error| Failure::new(format!("can't make the folder {}: {error}", link.display()));
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
        // A link that leads nowhere is from a folder that somebody removed.
        let _ = fs::remove_file(&link);
        symlink(&elsewhere, &link).map_err(failed)?;
        Ok(elsewhere)
    }

    /// Removes the server's files, wherever they are, and what was known of it.
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

    /// Only for our own eyes: connection strings have passwords in them.
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

    /// Nobody else starts or stops the server while this lock lives. Waits for it.
    pub(crate) fn lock_start(&self) -> Result<Lock, Failure> {
        self.lock("start", FlockOperation::LockExclusive).map(|lock| Lock { _file: lock })
    }

    /// Says that somebody uses the server.
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

/// Given back with this value, or when the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}
