//! `cargo xtask chaos`: faults at random, by a seed; what they do is in crates/atta/tests/chaos.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Result, cargo, install};

const MINUTES: &str = "5";

/// Takes `--seed N` and `--minutes M`.
pub(crate) fn run(options: &[&str]) -> Result {
    let (mut seed, mut minutes) = (random_seed(), MINUTES);
    for option in options.chunks(2) {
        match option {
            ["--seed", number] => {
                seed = number.parse().map_err(|_| format!("--seed takes a number, not {number:?}"))?;
            }
            ["--minutes", number] if number.parse().is_ok_and(|minutes: f64| minutes > 0.0) => {
                minutes = number
            }
            _ => {
                return Err(format!(
                    "cargo xtask chaos takes --seed N and --minutes M, not {}",
                    option.join(" ")
                ));
            }
        }
    }
    install::postgres()?;
    install::node_packages()?;
    install::faketime()?;
    play(seed, minutes)
}

fn play(seed: u64, minutes: &str) -> Result {
    let mut command = cargo();
    command.args(["test", "--quiet", "--package", "atta", "--all-features", "--test", "chaos"]);
    command.env("ATTA_CHAOS", format!("{seed} {minutes}"));
    crate::run(&mut command).map_err(|error| {
        format!("{error}\nhint: the same faults again: cargo xtask chaos --seed {seed} --minutes {minutes}")
    })
}

/// Short enough to be typed.
fn random_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros());
    u64::try_from(now % 1_000_000).unwrap_or_default()
}
