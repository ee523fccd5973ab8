//! Finds PostgreSQL's programs on this machine.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// A folder that contains `initdb`, `pg_ctl` and `postgres`.
#[derive(Clone, Debug)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// The binaries in `folder`.
    pub fn at(folder: impl Into<PathBuf>) -> Result<Binaries, Error> {
        let folder = folder.into();
        if is_complete(&folder) {
            return Ok(Binaries { folder });
        }
        Err(Error::text(format!("no initdb, pg_ctl and postgres in {}", folder.display())))
    }

    /// The newest binaries on the machine: in the folders of Debian and Red Hat, then on the `PATH`, then those of
    /// Homebrew.
    pub fn find() -> Result<Binaries, Error> {
        let from_path = || env::var_os("PATH").map(|path| env::split_paths(&path).collect::<Vec<_>>());
        newest(&versioned("/usr/lib/postgresql", ""))
            .or_else(|| newest(&versioned("/usr", "pgsql-")))
            .or_else(|| from_path()?.into_iter().find_map(real_folder))
            .or_else(|| newest(&versioned("/opt/homebrew/opt", "postgresql@")))
            .or_else(|| newest(&versioned("/usr/local/opt", "postgresql@")))
            .map(|folder| Binaries { folder })
            .ok_or_else(|| {
                Error::text(
                    "no PostgreSQL server on this machine; install it (Debian and Ubuntu: apt-get install \
                     postgresql; Fedora: dnf install postgresql-server; macOS: brew install postgresql@17)",
                )
            })
    }

    /// The binaries of one major version: a cluster that version 15 created can't be used by version 16.
    pub fn find_version(major: u32) -> Option<Binaries> {
        let places = [
            ("/usr/lib/postgresql", ""),
            ("/usr", "pgsql-"),
            ("/opt/homebrew/opt", "postgresql@"),
            ("/usr/local/opt", "postgresql@"),
        ];
        let known = places.iter().flat_map(|(parent, prefix)| versioned(parent, prefix));
        known
            .filter(|(version, folder)| *version == major && is_complete(folder))
            .map(|(_, folder)| Binaries { folder })
            .next()
            .or_else(|| Binaries::find().ok().filter(|found| found.major_version() == Some(major)))
    }

    /// The major version, as reported by the programs.
    pub fn major_version(&self) -> Option<u32> {
        let said = self.command("postgres").arg("--version").output().ok()?;
        let text = String::from_utf8(said.stdout).ok()?;
        let digits = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
        digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A command for one of the programs, for example `psql`.
    pub fn command(&self, program: &str) -> Command {
        Command::new(self.folder.join(program))
    }
}

fn is_complete(folder: &Path) -> bool {
    ["initdb", "pg_ctl", "postgres"].iter().all(|program| folder.join(program).is_file())
}

/// Folders like `/usr/lib/postgresql/15/bin`, with their versions.
fn versioned(parent: &str, prefix: &str) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix(prefix)?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect()
}

fn newest(candidates: &[(u32, PathBuf)]) -> Option<PathBuf> {
    candidates.iter().filter(|(_, folder)| is_complete(folder)).max().map(|(_, folder)| folder.clone())
}

/// A folder on the `PATH` may contain only links; PostgreSQL finds its own files next to the real program.
fn real_folder(folder: PathBuf) -> Option<PathBuf> {
    let program = fs::canonicalize(folder.join("initdb")).ok()?;
    let folder = program.parent()?;
    is_complete(folder).then(|| folder.to_path_buf())
}
