//! `cargo xtask patroni`: a cluster under Patroni changes its leader while jobs are running;
//! crates/atta/tests/it/faults/patroni.rs has the test. Run only by hand: it takes minutes, and needs packages that
//! nothing else needs.

use crate::{Result, cargo, install};

const ROUNDS: &str = "3";

/// Accepts `--rounds N`: how often each fault is repeated.
pub(crate) fn run(options: &[&str]) -> Result {
    let rounds = match options {
        [] => ROUNDS,
        ["--rounds", number] if number.parse().is_ok_and(|rounds: u32| rounds > 0) => number,
        _ => return Err(format!("cargo xtask patroni takes --rounds N, not {}", options.join(" "))),
    };
    let binaries = install::postgres()?;
    install::patroni()?;
    let mut command = cargo();
    command.args(["test", "--quiet", "--package", "atta", "--all-features", "--test", "it", "--"]);
    command.args(["--ignored", "--nocapture", "faults::patroni"]);
    command.env("ATTA_PATRONI_ROUNDS", rounds).env("ATTA_TEST_PG_BIN", binaries.folder());
    crate::run(&mut command)
}
