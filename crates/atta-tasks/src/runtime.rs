//! The languages whose tasks are hosted, and the programs that host them.

use std::collections::BTreeMap;
use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use atta::{Error, Result};

/// A language with a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Runtime {
    Node,
    Python,
    /// A host that the user provides: its extension, and the words of `ATTA_HOST_<EXTENSION>`.
    Other {
        extension: String,
        words: Vec<String>,
    },
}

/// How a host is started.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Its name in messages.
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<String>,
    /// Passed in the environment variable `ATTA_HOST_SCRIPT`, so that the list of processes stays readable, and no file
    /// has to be written.
    pub(super) script: Option<String>,
}

/// The files of a host by their names. A single environment variable may have 128 KiB; each host has less than a third of
/// that.
type Parts = &'static [(&'static str, &'static str)];

const NODE_PARTS: Parts = &[
    ("start.cjs", include_str!("../hosts/node/start.cjs")),
    ("main.cjs", include_str!("../hosts/node/main.cjs")),
    ("transport.cjs", include_str!("../hosts/node/transport.cjs")),
    ("runs.cjs", include_str!("../hosts/node/runs.cjs")),
    ("helpers.cjs", include_str!("../hosts/node/helpers.cjs")),
    ("logger.cjs", include_str!("../hosts/node/logger.cjs")),
    ("errors.cjs", include_str!("../hosts/node/errors.cjs")),
    ("database.cjs", include_str!("../hosts/node/database.cjs")),
];

const PYTHON_PARTS: Parts = &[
    ("start.py", include_str!("../hosts/python/start.py")),
    ("main.py", include_str!("../hosts/python/main.py")),
    ("transport.py", include_str!("../hosts/python/transport.py")),
    ("tasks.py", include_str!("../hosts/python/tasks.py")),
    ("helpers.py", include_str!("../hosts/python/helpers.py")),
    ("jobs.py", include_str!("../hosts/python/jobs.py")),
    ("logger.py", include_str!("../hosts/python/logger.py")),
    ("errors.py", include_str!("../hosts/python/errors.py")),
    ("database.py", include_str!("../hosts/python/database.py")),
];

/// The arguments of the programs only take the texts out of the environment; the files named `start` do the rest.
const START_NODE: &str = "const t = JSON.parse(process.env.ATTA_HOST_SCRIPT); delete process.env.ATTA_HOST_SCRIPT; (0, eval)(t['start.cjs'])(t, require, (m) => import(m))";
const START_PYTHON: &str = "import json, os; t = json.loads(os.environ.pop('ATTA_HOST_SCRIPT')); exec(compile(t['start.py'], 'atta-host/start.py', 'exec'), {'texts': t})";

/// The files as one JSON object.
fn script(parts: Parts) -> String {
    let parts: BTreeMap<&str, &str> = parts.iter().copied().collect();
    serde_json::to_string(&parts).expect("a map of texts can always be written as JSON")
}

impl Runtime {
    /// The host for files with this extension, which begins with a dot.
    pub(super) fn of_extension(extension: &str) -> Option<Runtime> {
        match extension {
            ".js" | ".cjs" | ".mjs" | ".ts" | ".cts" | ".mts" => Some(Runtime::Node),
            ".py" => Some(Runtime::Python),
            _ => Runtime::other(extension.strip_prefix('.')?),
        }
    }

    fn other(extension: &str) -> Option<Runtime> {
        let name = extension.to_ascii_uppercase().replace(['.', '-'], "_");
        let words: Vec<String> =
            env::var(format!("ATTA_HOST_{name}")).ok()?.split_whitespace().map(str::to_owned).collect();
        (!words.is_empty()).then(|| Runtime::Other { extension: extension.to_owned(), words })
    }

    /// The program, if it is installed on this machine.
    pub(super) fn program(&self) -> Result<Program> {
        match self {
            Runtime::Node => Ok(Program {
                name: "node".into(),
                path: find("ATTA_NODE", &["node"], "JavaScript")?,
                arguments: vec!["-e".into(), START_NODE.into()],
                script: Some(script(NODE_PARTS)),
            }),
            Runtime::Python => Ok(Program {
                name: "python".into(),
                path: find("ATTA_PYTHON", &["python3", "python"], "Python")?,
                arguments: vec!["-c".into(), START_PYTHON.into()],
                script: Some(script(PYTHON_PARTS)),
            }),
            Runtime::Other { extension, words } => {
                let Some(path) = words.first().and_then(|word| on_path(word)) else {
                    let word = words.first().map_or("", String::as_str);
                    return Err(Error::config(format!(
                        "the program of the host for .{extension} tasks was not found: {word}"
                    )));
                };
                let arguments = words[1..].to_vec();
                Ok(Program { name: extension.clone(), path, arguments, script: None })
            }
        }
    }
}

fn find(variable: &str, names: &[&str], language: &str) -> Result<PathBuf> {
    if let Some(given) = env::var(variable).ok().filter(|given| !given.is_empty()) {
        return on_path(&given).ok_or_else(|| {
            let name = names.first().copied().unwrap_or_default();
            Error::config(format!("{variable} is not the path of an executable program: {given}"))
                .with_hint(format!("set it to the path of {name}, or unset it to use the one on the PATH"))
        });
    }
    names.iter().find_map(|name| on_path(name)).ok_or_else(|| {
        let name = names.first().copied().unwrap_or_default();
        Error::config(format!("there are {language} tasks, but {name} was not found on the PATH"))
            .with_hint(format!("install {name}, or set {variable} to the path of the program"))
    })
}

/// Finds a program as a shell would.
fn on_path(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return std::path::absolute(program).ok().filter(|path| can_run(path));
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|path| can_run(path))
}

fn can_run(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is missing in the list, or in the folder, would be noticed only by the host.
    #[test]
    fn every_file_of_a_host_is_passed_to_it_and_fits() {
        for (folder, parts) in [("node", NODE_PARTS), ("python", PYTHON_PARTS)] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("hosts").join(folder);
            let files = folder.read_dir().expect("the folder exists").map(|entry| entry.expect("an entry"));
            let mut files: Vec<String> = files
                .filter(|file| file.path().is_file())
                .map(|file| file.file_name().to_string_lossy().into_owned())
                .collect();
            let mut names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
            files.sort_unstable();
            names.sort_unstable();
            assert_eq!(files, names);
            assert!(script(parts).len() < 128 * 1024 - "ATTA_HOST_SCRIPT=".len() - 1);
        }
    }
}
