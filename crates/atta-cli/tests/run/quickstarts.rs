//! The quickstarts of the book, followed from an empty folder, exactly as they are printed.
//!
//! Blocks of shell code are run in the order of the page, and have to succeed. A comment before a block says what else to
//! do with it:
//!
//! - `file: PATH`: the block is the content of this file
//! - `run: in the background`: the block is one command that goes on running, in a terminal of its own
//! - `run: not in the test, because …`: the block is skipped
//! - `expect: in the log`: the log of that command gets lines that contain these lines, in this order
//! - `expect: in the output`: the same of the output of the last block
//!
//! The quickstart for Rust is checked in `crates/atta/tests/examples`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::book::{Block, blocks, read};
use testkit::{Signal, wait_for};

use crate::{Folder, Worker};

/// A version that runs on every Python version that a machine may have.
const PSYCOPG: &str = "psycopg[binary]==3.2.13";

#[tokio::test]
async fn any_language() {
    follow("docs/start/any-language.md", &[]).await;
}

#[tokio::test]
async fn node() {
    follow("docs/start/node.md", &[("NODE_PATH", node_packages())]).await;
}

#[tokio::test]
async fn python() {
    follow("docs/start/python.md", &[("PYTHONPATH", python_packages())]).await;
}

/// Follows a page, with variables that stand for the packages that it installs.
async fn follow(page: &str, packages: &[(&str, PathBuf)]) {
    let folder = Folder::new();
    let mut reader = Reader::new(&folder, packages);
    for block in blocks(&read(page)) {
        reader.follow(page, &block).await;
    }
    let mut worker = reader.worker.expect("the page starts a worker");
    worker.process.signal(Signal::Terminate);
    assert_eq!(worker.code().await, Some(0), "{}", worker.log());
}

/// A reader who follows the steps of a page.
struct Reader<'a> {
    folder: &'a Folder,
    packages: &'a [(&'a str, PathBuf)],
    /// Where `cd` has led to.
    place: PathBuf,
    worker: Option<Worker>,
    /// How much of the worker's log was expected so far, in bytes.
    read: usize,
    output: String,
}

impl<'a> Reader<'a> {
    fn new(folder: &'a Folder, packages: &'a [(&'a str, PathBuf)]) -> Reader<'a> {
        let place = folder.path.join("empty");
        fs::create_dir(&place).expect("an empty folder is made");
        Reader { folder, packages, place, worker: None, read: 0, output: String::new() }
    }

    async fn follow(&mut self, page: &str, block: &Block) {
        let at = format!("{page}:{}", block.line);
        match (block.comment.as_str(), block.language.as_str()) {
            (comment, "sh") if comment.starts_with("run: not in the test, because ") => {}
            ("run: in the background", "sh") => self.start(&block.code),
            ("", "sh") => self.run(&at, &block.code),
            ("expect: in the log", "text") => self.expect_in_log(&at, &block.code).await,
            ("expect: in the output", "text") => expect_lines(&at, &self.output, &block.code),
            (comment, _) => match comment.strip_prefix("file: ") {
                Some(name) => fs::write(self.place.join(name), &block.code).expect("a file is written"),
                None => panic!("{at}: unknown comment {comment:?} before a block of {:?}", block.language),
            },
        }
    }

    /// A shell in the current place, that finds `atta` and the programs of PostgreSQL.
    fn shell(&self, code: &str) -> Command {
        let mut command = self.folder.shell();
        let atta = Path::new(env!("CARGO_BIN_EXE_atta")).parent().expect("it is in a folder");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = [atta, testkit::binaries().folder()].map(Path::to_path_buf).into_iter();
        let path = std::env::join_paths(folders.chain(std::env::split_paths(&path))).expect("a PATH");
        command.args(["-ec", code]).current_dir(&self.place).env("PATH", path);
        command.envs(self.packages.iter().map(|(name, value)| (name, value)));
        command
    }

    fn run(&mut self, at: &str, code: &str) {
        let place = self.folder.path.join("place");
        let ended =
            self.shell(&format!("{code}\npwd > '{}'", place.display())).output().expect("a shell runs");
        self.output = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
        let log = self.worker.as_ref().map(Worker::log).unwrap_or_default();
        assert!(ended.status.success(), "{at}: {}\n{}\n{log}", ended.status, self.output);
        self.place = fs::read_to_string(place).expect("the shell has a place").trim().into();
    }

    fn start(&mut self, code: &str) {
        let mut command = self.shell(&format!("exec {}", code.trim()));
        self.worker = Some(self.folder.start("log", &mut command));
    }

    async fn expect_in_log(&mut self, at: &str, lines: &str) {
        let worker = self.worker.as_ref().expect("the page has started a worker");
        for line in lines.lines() {
            let from = self.read;
            self.read = wait_for(&format!("{at}: {line:?} in {}", worker.log.display()), || {
                let log = worker.log();
                let found = log.get(from..).and_then(|rest| rest.find(line)).map(|at| from + at + line.len());
                async move { found }
            })
            .await;
        }
    }
}

fn expect_lines(at: &str, output: &str, lines: &str) {
    let mut rest = output;
    for line in lines.lines() {
        let Some(place) = rest.find(line) else { panic!("{at}: {line:?} is not in\n{output}") };
        rest = &rest[place + line.len()..];
    }
}

/// The packages that `npm ci` has installed for the tests beside Graphile Worker; `pg` is one of them.
fn node_packages() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../atta/tests/compat/node");
    let packages = folder.canonicalize().expect("the folder exists").join("node_modules");
    if !packages.join("pg").exists() {
        let installed =
            Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&folder).status();
        assert!(installed.expect("npm is installed").success(), "npm ci in {}", folder.display());
    }
    packages
}

/// The folder that `pip install --target` filled, once for all runs; the tests of Python tasks use it too.
fn python_packages() -> PathBuf {
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-psycopg-3.2.13");
    if !made.exists() {
        let making = made.with_extension(std::process::id().to_string());
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PSYCOPG, "--target"]);
        let installed = pip.arg(&making).status();
        assert!(installed.expect("python3 is installed").success(), "pip install {PSYCOPG}");
        // Another process may have been quicker, and then its folder stays.
        let _ = fs::rename(&making, &made);
    }
    made
}
