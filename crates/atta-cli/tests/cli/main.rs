//! The real binary: its output and its exit codes.
#![allow(missing_docs)]

mod support;
mod migrate;
mod bench;
mod connect;
mod add;
mod jobs;
mod odd;
mod manage;
mod overview;
mod cron;
mod help;
mod terminal;
#[cfg(target_os = "linux")]
mod screens;
mod roles;

use std::process::{Command, Output};

/// Runs `atta` with these arguments, without the variables of our environment that it reads.
fn atta(words: &[&str]) -> Run {
    let Output { status, stdout, stderr } = command(words).output().expect("atta runs");
    Run {
        code: status.code().expect("no signal ended it"),
        out: String::from_utf8(stdout).expect("it prints UTF-8"),
        err: String::from_utf8(stderr).expect("it prints UTF-8"),
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atta"));
    for variable in
        ["DATABASE_URL", "GRAPHILE_WORKER_SCHEMA", "PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGSERVICE"]
    {
        command.env_remove(variable);
    }
    command.args(words);
    command
}

/// How a run ended.
#[derive(Debug)]
struct Run {
    code: i32,
    out: String,
    err: String,
}
