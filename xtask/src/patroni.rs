//! `cargo xtask patroni`: a cluster under Patroni changes its leader while jobs are running;
//! crates/atta/tests/it/faults/patroni.rs has the test. Run only by hand: it takes minutes, and needs packages that
//! nothing else needs.

use std::num::NonZeroU32;

use crate::{Result, cargo, install};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How often each fault is repeated
    #[arg(long, value_name = "N", default_value = "3")]
    rounds: NonZeroU32,
}

pub(crate) fn run(options: &Options) -> Result {
    let binaries = install::postgres()?;
    install::patroni()?;
    let mut command = cargo();
    command.args(["test", "--quiet", "--workspace", "--all-features", "--test", "it", "--"]);
    command.args(["--ignored", "--nocapture", "faults::patroni"]);
    command.env("ATTA_PATRONI_ROUNDS", options.rounds.to_string()).env("ATTA_TEST_PG_BIN", binaries.folder());
    crate::run(&mut command)
}
