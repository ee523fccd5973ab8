//! What can be said on the command line.

use clap::{Args as ClapArgs, Parser, Subcommand};

/// Background jobs in the PostgreSQL that you already have.
#[derive(Debug, Parser)]
#[command(name = "atta", version, about)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Migrate(Migrate),
}

/// Where the jobs are.
#[derive(Debug, ClapArgs)]
pub(crate) struct Connection {
    /// Database: a connection string (postgres://user@host/name, or key=value pairs) or a database's name
    ///
    /// Without it, DATABASE_URL is used, and without that the variables PGHOST, PGPORT, PGUSER, PGPASSWORD and
    /// PGDATABASE.
    #[arg(short, long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) connection: Option<String>,

    /// Schema that the jobs are in
    #[arg(short, long, env = "GRAPHILE_WORKER_SCHEMA", default_value = "graphile_worker")]
    pub(crate) schema: String,
}

/// Install or upgrade the schema, also one that Graphile Worker left behind
///
/// Safe to run at any time, from any number of places at once: it does nothing when nothing is to be done, and all or
/// nothing otherwise.
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
}
