//! `cargo xtask chaos`: random faults, determined by a seed; crates/atta/tests/chaos has the test.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use atta_cluster::OwnedChild;

use crate::{Result, cargo, install, positive, root, say};

const MINUTES: f64 = 5.0;

/// The seed of the run during `cargo xtask test`: every change is tested with the same faults.
const SEED: u64 = 7;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The seed of the faults; a failure prints it. Default: a random one
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How long to run
    #[arg(long, value_name = "M", default_value_t = MINUTES, value_parser = positive)]
    minutes: f64,
}

pub(crate) fn run(options: &Options) -> Result {
    let (seed, minutes) = (options.seed.unwrap_or_else(random_seed), options.minutes);
    install::postgres()?;
    install::node_packages()?;
    install::faketime()?;
    crate::run(&mut command(seed, minutes)).map_err(|error| format!("{error}\n{}", hint(seed, minutes)))
}

/// A run in the background of other steps: it mostly waits. Ends when this value is dropped; the processes that it has
/// started notice that, and end too.
pub(crate) struct Beside {
    seed: u64,
    child: OwnedChild,
    /// The file with its output.
    log: PathBuf,
}

impl Beside {
    pub(crate) fn start() -> Result<Beside> {
        let (seed, log) = (SEED, root().join("target/chaos.log"));
        // Built first, so that nobody waits for the lock of the target folder.
        crate::run(command(seed, MINUTES).arg("--no-run"))?;
        say(&format!("==> chaos by seed {seed} for {MINUTES} minutes, in the background: {}", log.display()));
        let failed = |error| format!("chaos: {error}");
        let out = File::create(&log).map_err(failed)?;
        let mut command = command(seed, MINUTES);
        command.stdout(out.try_clone().map_err(failed)?).stderr(out);
        Ok(Beside { seed, child: OwnedChild::spawn(&mut command).map_err(failed)?, log })
    }

    /// Waits for its end, and reports the result.
    pub(crate) fn finish(mut self) -> Result {
        say("==> waiting for the chaos to end");
        let status = self.child.wait().map_err(|error| format!("chaos: {error}"))?;
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        if status.success() {
            say(said.lines().rfind(|line| line.starts_with("chaos:")).unwrap_or_default());
            return Ok(());
        }
        say(&said);
        Err(format!("chaos: {status}\n{}", hint(self.seed, MINUTES)))
    }
}

/// Built with the features of the whole workspace, as the other tests are.
fn command(seed: u64, minutes: f64) -> Command {
    let mut command = cargo();
    command.args(["test", "--quiet", "--workspace", "--all-features", "--test", "chaos"]);
    command.env("ATTA_CHAOS", format!("{seed} {minutes}"));
    command
}

fn hint(seed: u64, minutes: f64) -> String {
    format!("hint: the same faults again: cargo xtask chaos --seed {seed} --minutes {minutes}")
}

/// A seed that is short enough to be typed.
fn random_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros());
    u64::try_from(now % 1_000_000).unwrap_or_default()
}
