//! Decides which files of the folder are tasks, and of what kind. Follows Graphile Worker's rules, with hosts for more
//! languages.
//!
//! A task's identifier is its path in the folder without the extension, which is everything from the first dot. Names
//! consist of ASCII letters, digits, `_` and `-`. Other files are skipped with a warning, or without one if they are
//! hidden files or backups. If several files have one identifier, the first of these is the task: `.js`, `.cjs`, `.mjs`
//! as a hosted task, a file that its owner may execute, then `.ts`, `.mts`, `.cts`, `.py` and the languages of hosts
//! that the user provides. So every file that Graphile Worker runs as an executable is one here as well.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use atta::{Error, Result};

use super::runtime::Runtime;

/// A task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) identifier: String,
    /// The file itself: for a symbolic link, its target.
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Executable,
    Hosted(Runtime),
}

/// A file that may be a task.
#[derive(Clone, Debug)]
struct Candidate {
    path: PathBuf,
    /// Everything from the first dot on; may be empty.
    extension: String,
    is_executable: bool,
}

/// Folders of other tools, with files that they make of tasks or need for them.
const NOT_OURS: [&str; 2] = ["__pycache__", "node_modules"];

/// Reads the folder. Logs which files are skipped, and why.
pub(super) fn discover(folder: &Path) -> Result<Vec<Found>> {
    let shown = folder.display();
    let folder = std::path::absolute(folder)
        .map_err(|error| Error::config(format!("can't find the tasks folder {shown}: {error}")))?;
    match fs::metadata(&folder) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(Error::config(format!("the tasks folder {shown} is a file"))),
        Err(error) => {
            let error = Error::config(format!("can't read the tasks folder {shown}: {error}"));
            return Err(error.with_hint("create it, or name another folder"));
        }
    }
    let mut groups = BTreeMap::new();
    walk(&folder, "", &mut groups)?;
    Ok(groups.into_iter().filter_map(|(identifier, files)| choose(identifier, files)).collect())
}

fn walk(folder: &Path, prefix: &str, groups: &mut BTreeMap<String, Vec<Candidate>>) -> Result<()> {
    let failed = |error| Error::config(format!("can't read the folder {}: {error}", folder.display()));
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        entries.push(entry.map_err(failed)?);
    }
    // The system returns them in any order.
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let kind = entry.file_type().map_err(failed)?;
        if name.to_str().is_some_and(|name| NOT_OURS.contains(&name)) {
            continue;
        }
        if kind.is_dir() {
            match name.to_str() {
                Some(name) if is_plain(name) => walk(&entry.path(), &format!("{prefix}{name}/"), groups)?,
                _ => report_skipped(&entry, "folder"),
            }
            continue;
        }
        let Some((base, extension)) = name.to_str().and_then(split_name) else {
            report_skipped(&entry, "file");
            continue;
        };
        if let Some(candidate) = candidate(entry.path(), extension, kind.is_symlink()) {
            groups.entry(format!("{prefix}{base}")).or_default().push(candidate);
        }
    }
    Ok(())
}

/// Hidden files and backups of editors are not tasks, and nobody expects them to be, so they are not reported.
fn report_skipped(entry: &fs::DirEntry, kind: &str) {
    let (name, path) = (entry.file_name(), entry.path());
    let name = name.to_string_lossy();
    if name.starts_with(['.', '~', '#']) || name.ends_with('~') {
        return tracing::debug!("skipped the {kind} {}: hidden, or a backup", path.display());
    }
    tracing::warn!(
        "skipped the {kind} {}: the name of a task consists of ASCII letters, digits, _ and -",
        path.display()
    );
}

/// None if it is not a regular file in the end: a folder behind a link, a socket, a broken link.
fn candidate(path: PathBuf, extension: &str, is_link: bool) -> Option<Candidate> {
    let metadata = match fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() => metadata,
        Ok(metadata) if metadata.is_dir() => return skip_link(&path, "a link to a folder is not followed"),
        Ok(_) => return None,
        Err(error) => return skip_link(&path, &error.to_string()),
    };
    let path = if is_link { fs::canonicalize(&path).ok()? } else { path };
    let is_executable = metadata.permissions().mode() & 0o100 != 0;
    Some(Candidate { path, extension: extension.to_owned(), is_executable })
}

fn skip_link(path: &Path, why: &str) -> Option<Candidate> {
    tracing::warn!("skipped {}: {why}", path.display());
    None
}

/// The base name and the extension, which begins with the first dot.
fn split_name(name: &str) -> Option<(&str, &str)> {
    let (base, extension) = name.split_at(name.find('.').unwrap_or(name.len()));
    let parts_are_plain = extension.split('.').skip(1).all(is_plain);
    (is_plain(base) && parts_are_plain).then_some((base, extension))
}

fn is_plain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    !name.is_empty() && name.bytes().all(is_plain)
}

/// Chooses which file of an identifier is the task.
fn choose(identifier: String, files: Vec<Candidate>) -> Option<Found> {
    let mut ways: Vec<(u8, Found)> = files
        .iter()
        .filter_map(|file| {
            let (rank, kind) = way(file)?;
            Some((rank, Found { identifier: identifier.clone(), path: file.path.clone(), kind }))
        })
        .collect();
    // A stable sort, so files of one rank stay in the order of their names.
    ways.sort_by_key(|(rank, _)| *rank);
    let mut ways = ways.into_iter().map(|(_, found)| found);
    let Some(chosen) = ways.next() else {
        let file = files.first().map(|file| file.path.display().to_string()).unwrap_or_default();
        tracing::warn!(
            task = identifier,
            "not a task: its extension has no host, and it is not executable. If it is a program, run: chmod +x {file}"
        );
        return None;
    };
    for other in ways.filter(|other| !is_source_of(&other.path, &chosen.path)) {
        tracing::warn!(
            task = chosen.identifier,
            "two files for one task: {} is used, {} is not",
            chosen.path.display(),
            other.path.display()
        );
    }
    Some(chosen)
}

/// The rank and kind of a file; the lowest rank is chosen.
fn way(file: &Candidate) -> Option<(u8, Kind)> {
    let javascript = [".js", ".cjs", ".mjs"].iter().position(|known| *known == file.extension);
    if let Some(position) = javascript {
        return Some((u8::try_from(position).unwrap_or(u8::MAX), Kind::Hosted(Runtime::Node)));
    }
    if file.is_executable {
        return Some((10, Kind::Executable));
    }
    Runtime::of_extension(&file.extension).map(|runtime| (20, Kind::Hosted(runtime)))
}

/// A TypeScript file next to the JavaScript that it was compiled to needs no warning.
fn is_source_of(source: &Path, compiled: &Path) -> bool {
    let has = |path: &Path, wanted: &[&str]| {
        path.extension().and_then(|extension| extension.to_str()).is_some_and(|it| wanted.contains(&it))
    };
    has(source, &["ts", "mts", "cts"]) && has(compiled, &["js", "mjs", "cjs"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_is_everything_from_the_first_dot() {
        assert_eq!(split_name("hello.js"), Some(("hello", ".js")));
        assert_eq!(split_name("hello.test.js"), Some(("hello", ".test.js")));
        assert_eq!(split_name("hello"), Some(("hello", "")));
        for name in [".hidden", "hello world.js", "hello..js", "hello.", "grüße.js", "hello~", ""] {
            assert_eq!(split_name(name), None, "{name}");
        }
    }

    fn file(name: &str, is_executable: bool) -> Candidate {
        let (_, extension) = split_name(name).expect("a name for a task");
        Candidate { path: PathBuf::from(name), extension: extension.to_owned(), is_executable }
    }

    fn chosen(files: &[(&str, bool)]) -> Option<(String, Kind)> {
        let files = files.iter().map(|(name, is_executable)| file(name, *is_executable)).collect();
        choose("x".into(), files).map(|found| (found.path.display().to_string(), found.kind))
    }

    #[test]
    fn the_file_that_graphile_worker_would_run_has_precedence() {
        let node = Kind::Hosted(Runtime::Node);
        let python = Kind::Hosted(Runtime::Python);
        assert_eq!(
            chosen(&[("x.cjs", false), ("x.js", false), ("x.sh", true)]),
            Some(("x.js".into(), node.clone()))
        );
        assert_eq!(chosen(&[("x.js", true)]), Some(("x.js".into(), node.clone())));
        assert_eq!(chosen(&[("x.py", true)]), Some(("x.py".into(), Kind::Executable)));
        assert_eq!(chosen(&[("x.py", false)]), Some(("x.py".into(), python)));
        assert_eq!(chosen(&[("x.py", false), ("x.sh", true)]), Some(("x.sh".into(), Kind::Executable)));
        assert_eq!(chosen(&[("x.ts", false)]), Some(("x.ts".into(), node)));
        assert_eq!(chosen(&[("x.test.js", false)]), None);
        assert_eq!(chosen(&[("x", false)]), None);
    }
}
