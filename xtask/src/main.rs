//! The project's own commands: `cargo xtask test`, `cargo xtask demo`.
//!
//! They work on a machine that has cargo and nothing else: missing programs are installed first, by the machine's own
//! package manager, and named before that.

mod bench;
mod book;
mod chaos;
mod demo;
mod dependencies;
mod fuzz;
mod install;
mod matrix;
mod package;
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

use clap::{Parser, Subcommand};

type Result<T = (), E = String> = std::result::Result<T, E>;

#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", about = "The project's own commands", disable_version_flag = true)]
struct Xtask {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// atta init and atta dev in a temporary folder: tasks in three languages and a crontab
    Demo(demo::Options),
    /// Format, lints, dependencies, documentation and every test: all that must pass before a change is merged
    Test(test::Options),
    /// The library's tests behind PgBouncer, in both of its modes
    Pooler,
    /// Checks the links of docs/ and builds the book in target/book
    Book(book::Options),
    /// The preprocessor that docs/book.toml names
    #[command(hide = true)]
    BookLinks(book::PreprocessorOptions),
    /// Format, lints, retired words, the licences and origins of dependencies, and the packages to publish
    Check,
    /// Workers under random faults, checked against a ledger of all jobs
    Chaos(chaos::Options),
    /// One fault per row, one promise per column: a stuck thing delays only itself; 5 minutes
    Matrix(matrix::Options),
    /// A change of leader under Patroni while jobs are running: switchover and kill
    Patroni(patroni::Options),
    /// Everything that reads input of users, with input that is made to break it
    Fuzz(fuzz::Options),
    /// The same work by atta and its peers, in turns: writes bench/RESULTS.md
    Bench(bench::Options),
    /// Two hours at half of full speed, drawn as docs/soak.svg; exit code 1 if anything grows
    Soak(soak::Options),
}

impl Task {
    /// The exit code is 1 if the task itself worked, and found something that should not be.
    fn run(self) -> Result<ExitCode> {
        let success = |()| ExitCode::SUCCESS;
        match self {
            Task::Demo(options) => demo::run(&options).map(success),
            Task::Test(options) => test::run(&options),
            Task::Pooler => pooler::run_alone().map(success),
            Task::Book(options) => book::run(&options).map(success),
            Task::BookLinks(options) => book::preprocess(&options).map(success),
            Task::Check => test::check().map(success),
            Task::Chaos(options) => chaos::run(&options).map(success),
            Task::Matrix(options) => matrix::run(&options).map(success),
            Task::Patroni(options) => patroni::run(&options).map(success),
            Task::Fuzz(options) => fuzz::run(&options).map(success),
            Task::Bench(options) => bench::run(&options).map(success),
            Task::Soak(options) => soak::run(&options),
        }
    }
}

fn main() -> ExitCode {
    Xtask::parse().command.run().unwrap_or_else(|error| {
        say(&format!("error: {error}"));
        ExitCode::from(2)
    })
}

/// Parses a number above 0, for options.
fn positive(text: &str) -> Result<f64> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "expected a number above 0".to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(words: &str) -> Result<Task> {
        let words = ["xtask"].into_iter().chain(words.split_whitespace());
        Xtask::try_parse_from(words).map(|parsed| parsed.command).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definitions_of_the_commands_are_consistent() {
        Xtask::command().debug_assert();
    }

    #[test]
    fn every_documented_form_is_accepted() {
        for words in [
            "demo",
            "demo --stay",
            "test",
            "test --all-postgres",
            "test --postgres 12",
            "test --repeat 3",
            "test --repeat 10 worker:: faults::",
            "pooler",
            "check",
            "chaos --seed 7 --minutes 0.5",
            "matrix",
            "matrix queue",
            "patroni --rounds 2",
            "fuzz",
            "fuzz 10",
            "bench --jobs 5000 --rounds 2 --only cost",
            "soak --minutes 0.5 --rate 100 --out a.svg",
            "soak --plot a.csv --out a.svg",
        ] {
            assert!(parse(words).is_ok(), "{words}: {:?}", parse(words));
        }
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for words in [
            "",
            "tests",
            "test worker::",
            "test --repeat",
            "test --repeat 0",
            "test --repeat many",
            "test --repeat 2 --skip=a",
            "test --repeat 2 --all-postgres",
            "test --postgres 11",
            "test --postgres 15 worker::",
            "chaos --minutes 0",
            "chaos --minutes inf",
            "patroni --rounds 0",
            "fuzz soon",
            "bench --jobs 0",
            "bench --rounds",
            "soak --minutes 0",
            "soak --rate",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
