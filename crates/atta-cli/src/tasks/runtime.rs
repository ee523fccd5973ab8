//! The languages whose tasks are hosted, and the programs that host them.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::output::Failure;

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
    /// Passed in the environment variable `ATTA_HOST_SCRIPT`, so that the list of processes stays readable.
    pub(super) script: Option<&'static str>,
}

const NODE_SCRIPT: &str = include_str!("../../hosts/node.cjs");
const PYTHON_SCRIPT: &str = include_str!("../../hosts/python.py");

const START_NODE: &str = "const s = process.env.ATTA_HOST_SCRIPT; delete process.env.ATTA_HOST_SCRIPT; (0, eval)(s)(require, (m) => import(m))";
const START_PYTHON: &str =
    "import os; exec(compile(os.environ.pop('ATTA_HOST_SCRIPT'), 'atta-host.py', 'exec'))";

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
    pub(super) fn program(&self) -> Result<Program, Failure> {
        match self {
            Runtime::Node => Ok(Program {
                name: "node".into(),
                path: find("ATTA_NODE", &["node"], "JavaScript")?,
                arguments: vec!["-e".into(), START_NODE.into()],
                script: Some(NODE_SCRIPT),
            }),
            Runtime::Python => Ok(Program {
                name: "python".into(),
                path: find("ATTA_PYTHON", &["python3", "python"], "Python")?,
                arguments: vec!["-c".into(), START_PYTHON.into()],
                script: Some(PYTHON_SCRIPT),
            }),
            Runtime::Other { extension, words } => {
                let Some(path) = words.first().and_then(|word| on_path(word)) else {
                    let word = words.first().map_or("", String::as_str);
                    return Err(Failure::new(format!(
                        "the program of the host for .{extension} tasks was not found: {word}"
                    )));
                };
                let arguments = words[1..].to_vec();
                Ok(Program { name: extension.clone(), path, arguments, script: None })
            }
        }
    }
}

fn find(variable: &str, names: &[&str], language: &str) -> Result<PathBuf, Failure> {
    if let Some(given) = env::var(variable).ok().filter(|given| !given.is_empty()) {
        return on_path(&given).ok_or_else(|| {
            let name = names.first().copied().unwrap_or_default();
            Failure::new(format!("{variable} is not the path of an executable program: {given}"))
                .with_hint(format!("set it to the path of {name}, or unset it to use the one on the PATH"))
        });
    }
    names.iter().find_map(|name| on_path(name)).ok_or_else(|| {
        let name = names.first().copied().unwrap_or_default();
        Failure::new(format!("there are {language} tasks, but {name} was not found on the PATH"))
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
