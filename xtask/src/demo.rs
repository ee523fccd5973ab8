//! `cargo xtask demo`: the first steps of a new user, in one command.
//!
//! Runs `atta init` and `atta dev` in a temporary folder, adds a job for each kind of task, and uses a crontab. The
//! demo waits for lines in the worker's log, which is shown as it arrives.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use atta_cluster::OwnedChild;

use crate::{Result, cargo, install, root, say};

/// How long the demo waits for a line of the log.
const PATIENCE: Duration = Duration::from_secs(60);

/// Due every minute, and backfilled at once for missed minutes.
const CRONTAB: &str = "* * * * *  disk_space  ?id=every_minute&fill=5m  {from: \"the crontab\"}\n";

/// As if a worker had registered the item three minutes ago and been away since.
const KNOWN_BEFORE: &str = "insert into graphile_worker._private_known_crontabs (identifier, known_since) \
                            values ('every_minute', now() - interval '3 minutes')";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Keep the worker and the server up until Enter is pressed
    #[arg(long)]
    stay: bool,
}

/// From an empty folder to finished jobs. Ends by itself, or stays up on request.
pub(crate) fn run(options: &Options) -> Result {
    let binaries = install::postgres()?;
    install::runtimes()?;
    say("Building atta; the first time this takes some minutes.");
    crate::run(cargo().args(["build", "--package", "atta-cli"]))?;
    let start = Instant::now();
    let folder = Folder::make()?;
    say(&format!("\nAn empty folder: {}", folder.path.display()));
    step("A first folder of tasks.", folder.atta(&["init"]))?;
    // Written again later, so that the demo does not have to wait for the next full minute.
    fs::remove_file(folder.path.join("crontab")).map_err(|error| error.to_string())?;

    say("--- A worker, with its own PostgreSQL.\n\n$ atta dev");
    let worker = Worker::start(&folder)?;
    let up = worker.wait_for("worker started")?;
    let url = folder.connection()?;

    let psql = |sql: &str| {
        say(&format!("\npsql> {sql}"));
        quietly(binaries.command("psql").args(["-q", "-o", "/dev/null", &url, "-c", sql]))
    };
    say("\n--- A job for each kind of task, added by SQL as a trigger or any program would.");
    psql("select graphile_worker.add_job('hello', '{\"name\": \"Bobby\"}')")?;
    let javascript = worker.wait_for("Hello, Bobby!")?;
    psql("select graphile_worker.add_job('count_words', '{\"text\": \"to be or not to be\"}')")?;
    let python = worker.wait_for("6 words, 4 different ones")?;
    psql("select graphile_worker.add_job('disk_space', '{\"from\": \"SQL\"}')")?;
    let shell = worker.wait_for("with the input {\"payload\":{\"from\"")?;

    say("\n--- A crontab. The worker loads it and backfills the missed minutes.");
    psql(KNOWN_BEFORE)?;
    say(&format!("\n$ cat crontab\n{CRONTAB}"));
    fs::write(folder.path.join("crontab"), CRONTAB).map_err(|error| error.to_string())?;
    let cron = worker.wait_for("\"_cron\":{")?;

    let seconds = |time: Instant| time.duration_since(start).as_secs_f64();
    say(&format!(
        "\nFrom an empty folder, in seconds: worker up {:.1}, JavaScript {:.1}, Python {:.1}, shell {:.1}, cron {:.1}.",
        seconds(up),
        seconds(javascript),
        seconds(python),
        seconds(shell),
        seconds(cron),
    ));
    if options.stay {
        say(&format!("\nStill up, in {}: change a task, or connect to\n  {url}", folder.path.display()));
        say("Press Enter to end it.");
        // The end of the input ends the demo as well.
        let _ = std::io::stdin().read(&mut [0]);
    }
    worker.stop()
}

/// A folder that is removed with the demo.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn make() -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("atta-demo-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("creating {}: {error}", path.display()))?;
        Ok(Folder { path })
    }

    /// The program that was just built, without environment variables that would affect it.
    fn atta(&self, words: &[&str]) -> Command {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
        let mut command = Command::new(target.join("debug/atta"));
        for variable in ["DATABASE_URL", "GRAPHILE_WORKER_SCHEMA", "PGHOST", "PGDATABASE", "PGSERVICE"] {
            command.env_remove(variable);
        }
        command.args(words).current_dir(&self.path).stdin(Stdio::null());
        command
    }

    fn connection(&self) -> Result<String> {
        fs::read_to_string(self.path.join(".atta/connection"))
            .map(|text| text.trim().to_owned())
            .map_err(|error| format!("reading the connection string: {error}"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Anything that remains is in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A running `atta dev`. Its server stops with it, however it ends.
struct Worker {
    process: OwnedChild,
    lines: Receiver<String>,
}

impl Worker {
    fn start(folder: &Folder) -> Result<Worker> {
        let mut command = folder.atta(&["dev", "-j", "4"]);
        let mut process =
            OwnedChild::spawn(command.stderr(Stdio::piped())).map_err(|error| error.to_string())?;
        let Some(log) = process.stderr.take() else { return Err("the worker has no log".into()) };
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(log).lines().map_while(|line| line.ok()) {
                say(&format!("    {line}"));
                // An error means that nobody waits for lines any more.
                let _ = sender.send(line);
            }
        });
        Ok(Worker { process, lines })
    }

    /// Waits for a line with this text, and returns when it arrived.
    fn wait_for(&self, text: &str) -> Result<Instant> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(text) => return Ok(Instant::now()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("the worker did not log {text:?} in time"));
                }
                Err(RecvTimeoutError::Disconnected) => return Err("the worker ended".into()),
            }
        }
    }

    /// Stops it as Ctrl-C does.
    fn stop(mut self) -> Result {
        let id = self.process.id().to_string();
        quietly(Command::new("/bin/sh").args(["-c", "kill -INT \"$1\"", "kill", &id]))?;
        let status = self.process.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("atta dev: {status}")) }
    }
}

fn step(title: &str, mut command: Command) -> Result {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    say(&format!("--- {title}\n\n$ atta {}", words.join(" ")));
    quietly(&mut command)?;
    say("");
    Ok(())
}

/// Runs a command without announcing it; only its own output is shown.
fn quietly(command: &mut Command) -> Result {
    let name = Path::new(command.get_program()).display().to_string();
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}")),
        Err(error) => Err(format!("{name}: {error}")),
    }
}
