//! `cargo xtask patroni`: a cluster under Patroni changes its leader while work is going on; what is done and checked is
//! in crates/atta/tests/it/faults/patroni.rs. By hand only: it takes minutes, and packages that nothing else needs.

use crate::{Result, cargo, install};

const ROUNDS: &str = "3";

/// Takes `--rounds N`: how often each fault is played.
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
