//! `cargo xtask fuzz`: runs the targets of `fuzz/`, for a short while each, guided by code coverage.
//!
//! `cargo fuzz` could do this, but it has to be installed, and needs a nightly compiler for its sanitizers. Those find
//! misuse of memory, which code without `unsafe` does not have. Without sanitizers, these flags are all that is needed,
//! and every compiler supports them.

use std::env;
use std::fs;
use std::process::Command;

use crate::{Result, cargo, install, root};

/// Counts each branch, and reports compared values to the fuzzer, which then tries to make them equal.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Clink-dead-code --cfg fuzzing";

/// The targets, each with its share of the time.
const TARGETS: [(&str, u32); 6] = [
    ("crontab", 4),
    ("time_phrase", 1),
    ("settings_file", 2),
    ("connection_string", 3),
    ("host_protocol", 4),
    ("notice", 1),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long to run, all targets together
    #[arg(default_value_t = 60)]
    seconds: u32,
}

pub(crate) fn run(options: &Options) -> Result {
    run_for(options.seconds)
}

pub(crate) fn run_for(seconds: u32) -> Result {
    install::cpp_compiler()?;
    let host = host()?;
    let folder = root().join("fuzz");
    let mut build = cargo();
    // The target is named explicitly, so that build scripts and macros, which contain no fuzzer, are built without the
    // flags.
    build.current_dir(&folder).args(["build", "--quiet", "--release", "--locked", "--target", &host]);
    crate::run(build.env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", folder.join("target")))?;
    let shares: u32 = TARGETS.iter().map(|(_, share)| share).sum();
    for (target, share) in TARGETS {
        let (corpus, artifacts) = (folder.join("corpus").join(target), folder.join("artifacts").join(target));
        for made in [&corpus, &artifacts] {
            fs::create_dir_all(made).map_err(|error| format!("creating {}: {error}", made.display()))?;
        }
        let mut fuzzer = Command::new(folder.join(format!("target/{host}/release/{target}")));
        fuzzer
            .arg(format!("-max_total_time={}", (seconds.saturating_mul(share) / shares).max(1)))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg(format!("-dict={}", folder.join(format!("{target}.dict")).display()))
            .args(["-max_len=2000", "-timeout=5", "-verbosity=0", "-print_final_stats=1"])
            .args([corpus, folder.join("seeds").join(target)]);
        crate::run(&mut fuzzer)?;
    }
    Ok(())
}

/// The target triple of this machine.
fn host() -> Result<String> {
    let output = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("-vV").output();
    let output = output.map_err(|error| format!("rustc -vV: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV does not name its host".to_owned())
}
