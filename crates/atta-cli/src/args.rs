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
/// Without a command it is the worker, as `atta run` is: it runs the jobs of the tasks in ./tasks, and the crontab in
/// ./crontab if there is one.
#[derive(Debug, Parser)]
#[command(name = "atta", version)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) connection: Connection,

    /// Settings file; without it ./atta.toml, if there is one
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
    Complete(commands::steer::Complete),
    Fail(commands::steer::Fail),
    Reschedule(commands::steer::Reschedule),
    Retry(commands::steer::Retry),
    Remove(commands::steer::Remove),
    Unlock(commands::steer::Unlock),
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
    /// Without it, DATABASE_URL is used. What is not said there comes from where libpq looks: a service file, the
    /// variables PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE, PGSSLMODE and so on, ~/.pgpass and ~/.postgresql.
    /// When they name no database: `connection` of the settings file, or the server of an `atta dev` in this folder.
    #[arg(short, long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) connection: Option<String>,

    /// Schema that the jobs are in
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

/// Install or upgrade the schema, also one that Graphile Worker left behind
///
/// Safe to run at any time, from any number of places at once: it does nothing when nothing is to be done, and all or
/// nothing otherwise. If older releases of graphile-worker can't work with the schema afterwards, it says so, and on a terminal
/// it asks first.
#[derive(Debug, ClapArgs)]
pub(crate) struct Migrate {
    #[command(flatten)]
    pub(crate) connection: Connection,

    /// Show the SQL that this database needs, and touch nothing
    #[arg(long, conflicts_with = "print")]
    pub(crate) dry_run: bool,

    /// Show the SQL of a whole installation; needs no database
    #[arg(long)]
    pub(crate) print: bool,

    /// Show the SQL that makes three roles for the schema: one that adds, one that works, one that looks; needs no database
    ///
    /// What each may do is in docs/roles.md. Run it once the schema is installed, and again after each upgrade.
    #[arg(long, conflicts_with_all = ["print", "dry_run"])]
    pub(crate) print_roles: bool,

    /// Don't ask
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// What the names of these roles begin with [default: the schema's name]
    #[arg(long, value_name = "NAME", requires = "print_roles")]
    pub(crate) role_prefix: Option<String>,
}

/// Measure how fast jobs are added, started and run on your server
///
/// Makes a database of its own on the server of the connection, and drops it at the end; nothing else is touched. What
/// the figures mean is in docs/benchmarking.md.
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

    /// How a worker keeps others away from its jobs
    #[arg(long, value_enum, default_value_t = ClaimsChoice::Held, value_name = "KIND")]
    pub(crate) claims: ClaimsChoice,

    /// Jobs that a worker claims beyond those that run; without it, none
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) local_queue: Option<usize>,

    /// Size of a job's payload; the smallest is {}
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub(crate) payload_bytes: usize,

    /// Spread the jobs over so many queues; 0 is none
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) queues: usize,

    /// Part of the jobs that fail, from 0 to 1; they have one attempt
    #[arg(long, default_value_t = 0.0, value_name = "PART", value_parser = part)]
    pub(crate) fail_rate: f64,

    /// Keep a transaction open elsewhere during the drain, so that nothing can be vacuumed
    #[arg(long)]
    pub(crate) pin_xmin: bool,

    /// How long the steady state is watched
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,

    /// Use the database and schema of the connection itself; refused if there are jobs other than the benchmark's
    #[arg(long)]
    pub(crate) in_place: bool,

    /// Give the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Run the jobs that there are and say how much memory it took: the benchmark starts itself so.
    #[arg(long, hide = true)]
    pub(crate) memory_probe: bool,
}

/// See `atta::Claims`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClaimsChoice {
    /// By a row lock, within one short transaction
    Held,
    /// By the worker's name in the row
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
