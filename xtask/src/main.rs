//! The project's own commands: `cargo xtask test`, `cargo xtask demo`.
//!
//! They work on a machine that has cargo and nothing else: missing programs are installed first, by the machine's own
//! package manager, and named before that.

mod bench;
mod chaos;
mod demo;
mod deny;
mod fuzz;
mod install;
mod matrix;
mod patroni;
mod pooler;
mod postgres;
mod prose;
mod repeat;
mod soak;
mod test;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  demo [--stay]           atta init and atta dev in a temporary folder: tasks in three languages and a crontab
  test [--all-postgres]   format, lints, documentation and every test; --all-postgres: on versions 12 to 18
  test --repeat N [FILTER...]   all test binaries N times, with different thread counts and CPU load; lists the failures
                          by test, and exits with 1 if there are any. FILTER: only tests whose names contain it
  pooler                  the library's tests behind PgBouncer, in both of its modes
  check                   format, lints, retired words, and the licences and origins of dependencies
  chaos [--seed N] [--minutes M]   workers under random faults, and a ledger that shows whether all guarantees were kept; 5 minutes
  matrix [ROW]            one fault per row, one promise per column: a stuck thing delays only itself; 5 minutes.
                          ROW: only rows whose names contain it
  patroni [--rounds N]    a change of leader under Patroni while work is going on: switchover and kill; 3 rounds of each
  fuzz [SECONDS]          what is read from users, with whatever may break its reader; 60 seconds by default
  bench [--jobs N] [--rounds N] [--only NAME]   the same work by atta and its peers, in turns: bench/RESULTS.md
                          --only cost: only what a job costs PostgreSQL beside jobs that nobody can claim; 5 minutes
  soak [--minutes N] [--rate N] [--out FILE.svg]   two hours at half of full speed, drawn as docs/soak.svg; exit 1 if
                          anything grows. soak --plot FILE.csv [--out FILE.svg] draws the samples of a soak anew
";

type Result<T = (), E = String> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["demo"] => demo::run(false),
        ["demo", "--stay"] => demo::run(true),
        ["test"] => test::run(false),
        ["test", "--all-postgres"] => test::run(true),
        ["test", "--repeat", rounds, filters @ ..] => match repeat::run(rounds, filters) {
            Ok(repeat::Ended::Green) => Ok(()),
            Ok(repeat::Ended::Failed) => return ExitCode::from(1),
            Err(error) => Err(error),
        },
        ["test", "--repeat"] => Err("--repeat takes a number of rounds".to_owned()),
        ["check"] => test::check(),
        ["pooler"] => pooler::run_alone(),
        ["fuzz"] => fuzz::run(60),
        ["fuzz", seconds] => match seconds.parse() {
            Ok(seconds) => fuzz::run(seconds),
            Err(_) => Err(format!("cargo xtask fuzz takes a number of seconds, not {seconds:?}")),
        },
        ["chaos", options @ ..] => chaos::run(options),
        ["matrix"] => matrix::run(""),
        ["matrix", wanted] => matrix::run(wanted),
        ["patroni", options @ ..] => patroni::run(options),
        ["bench", options @ ..] => bench::run(options),
        ["soak", options @ ..] => match soak::run(options) {
            Ok(soak::Ended::Flat) => Ok(()),
            Ok(soak::Ended::NotFlat) => return ExitCode::from(1),
            Err(error) => Err(error),
        },
        ["help" | "--help" | "-h"] => {
            say(USAGE);
            Ok(())
        }
        _ => Err(format!("unknown command: cargo xtask {}\n\n{USAGE}", words.join(" "))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::from(2)
        }
    }
}

/// Prints progress to standard error.
fn say(text: &str) {
    eprintln!("{text}");
}

/// The project's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf()
}

/// The cargo that runs this program, in the project's folder.
fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Prints the command, runs it, and returns an error if it fails.
fn run(command: &mut Command) -> Result {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let program =
        Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let line = format!("{program} {}", words.join(" "));
    say(&format!("==> {line}"));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{line}: {status}")),
        Err(error) => Err(format!("{line}: {error}")),
    }
}
