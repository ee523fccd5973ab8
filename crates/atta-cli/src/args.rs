//! The arguments of the command line.

mod read;
mod worker;

use std::num::{IntErrorKind, ParseIntError};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

pub(crate) use read::{Said, read};
pub(crate) use worker::{CleanupChoice, Config, Dev, Init, LogFormat, Run};

use crate::commands;

/// Background jobs in the PostgreSQL that you already have
///
/// Without a command, it runs the worker, like `atta run`: the jobs of the tasks in ./tasks, and the crontab in
/// ./crontab if there is one.
#[derive(Debug, Parser)]
#[command(name = "atta", version)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) connection: Connection,

    /// Settings file [default: ./atta.toml, if it exists]
    #[arg(short = 'C', long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) run: Run,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Dev(Dev),
    Init(Init),
    Config(Config),
    Add(commands::add::Add),
    Jobs(commands::jobs::Jobs),
    Show(commands::show::Show),
    Complete(commands::manage::Complete),
    Fail(commands::manage::Fail),
    Reschedule(commands::manage::Reschedule),
    Retry(commands::manage::Retry),
    Remove(commands::manage::Remove),
    Unlock(commands::manage::Unlock),
    Queues(commands::queues::Queues),
    Tasks(commands::tasks::Tasks),
    Workers(commands::workers::Workers),
    Stats(commands::stats::Stats),
    Cleanup(commands::cleanup::Cleanup),
    Cron(commands::cron::Cron),
    Migrate(Migrate),
    Bench(Bench),
    Completions(commands::completions::Completions),
    Man(commands::man::Man),
}

/// Where the jobs are.
#[derive(Debug, ClapArgs)]
pub(crate) struct Connection {
    /// Database: a connection string (postgres://user@host/name, or key=value pairs) or a database's name
    ///
    /// The default is DATABASE_URL. Parts that are missing are taken from the same places as in libpq: a service file,
    /// the variables PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE, PGSSLMODE and so on, ~/.pgpass and ~/.postgresql.
    /// If none of these names a database: `connection` in the settings file, or the server of an `atta dev` in this
    /// folder.
    #[arg(short, long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) connection: Option<String>,

    /// Schema that contains the jobs
    #[arg(
        short,
        long,
        global = true,
        env = "GRAPHILE_WORKER_SCHEMA",
        value_name = "NAME",
        default_value = "graphile_worker"
    )]
    pub(crate) schema: String,
}

/// Install or upgrade the schema, including one that Graphile Worker installed
///
/// Safe to run at any time, also several times at once. It does nothing if the schema is up to date, and otherwise makes
/// all changes or none. If older releases of graphile-worker stop working with the new schema, it prints a warning, and
/// on a terminal it asks for confirmation.
#[derive(Debug, ClapArgs)]
pub(crate) struct Migrate {
    #[command(flatten)]
    pub(crate) connection: Connection,

    /// Print the SQL that this database needs, and change nothing
    #[arg(long, conflicts_with = "print")]
    pub(crate) dry_run: bool,

    /// Print the SQL of a whole installation; needs no database
    #[arg(long)]
    pub(crate) print: bool,

    /// Print the SQL that creates three roles for the schema: producer, worker and reader; needs no database
    ///
    /// docs/operating/roles.md lists what each role may do. Run the SQL after the schema was installed, and after each
    /// upgrade.
    #[arg(long, conflicts_with_all = ["print", "dry_run"])]
    pub(crate) print_roles: bool,

    /// Don't ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Prefix of the names of these roles [default: the schema's name]
    #[arg(long, value_name = "NAME", requires = "print_roles")]
    pub(crate) role_prefix: Option<String>,
}

/// Measure how fast jobs are added, started and run on your server
///
/// Creates a database on the server of the connection, and drops it at the end. Changes nothing else.
/// docs/operating/benchmarking.md explains the figures.
#[derive(Debug, ClapArgs)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) connection: Connection,

    /// Jobs to add and to drain
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = at_least_one)]
    pub(crate) jobs: usize,

    /// Workers, all in this process
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = at_least_one)]
    pub(crate) workers: usize,

    /// Jobs that a worker runs at a time
    #[arg(long, default_value_t = 24, value_name = "N", value_parser = at_least_one)]
    pub(crate) concurrency: usize,

    /// How a worker claims jobs
    #[arg(long, value_enum, default_value_t = ClaimsChoice::Held, value_name = "KIND")]
    pub(crate) claims: ClaimsChoice,

    /// Jobs that a worker claims in advance, beyond those that run [default: 0]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) local_queue: Option<usize>,

    /// Size of a job's payload; the smallest is {}
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub(crate) payload_bytes: usize,

    /// Number of queues to distribute the jobs over; 0: the jobs have no queue
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) queues: usize,

    /// Fraction of the jobs that fail, from 0 to 1; they have one attempt
    #[arg(long, default_value_t = 0.0, value_name = "PART", value_parser = part)]
    pub(crate) fail_rate: f64,

    /// Keep a transaction open in another database during the drain, so that vacuum can remove nothing
    #[arg(long)]
    pub(crate) pin_xmin: bool,

    /// Duration of the measurement of the steady state
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,

    /// Use the database and schema of the connection itself; refused if there are jobs other than the benchmark's
    #[arg(long)]
    pub(crate) in_place: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Run the existing jobs and print the memory that this used. The benchmark starts itself with this option.
    #[arg(long, hide = true)]
    pub(crate) memory_probe: bool,
}

/// See `atta::Claims`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClaimsChoice {
    /// By a row lock within a short transaction
    Held,
    /// By writing the worker's id into the row
    Durable,
}

/// A whole number within the range of its type, of either sign.
pub(crate) fn whole_number<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "is out of range".into(),
        _ => "is not a whole number".into(),
    })
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(_) => Err("is not a whole number".into()),
    }
}

fn part(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(part) if (0.0..=1.0).contains(&part) => Ok(part),
        _ => Err("must be a number from 0 to 1".into()),
    }
}
