//! The basis of atta's tests: one private PostgreSQL server for the run, a database for each test, and waiting with a
//! deadline; and processes, network connections and poolers to break.
//!
//! The server is the one that `ATTA_TEST_SERVER` names (`cargo xtask test` starts it and sets the variable), or else
//! one that this process starts and that ends with it. `ATTA_TEST_PG_BIN` names the folder of another version's
//! binaries. A test's database is a copy of a migrated template, created in milliseconds and dropped with its handle.
//! With `ATTA_TEST_POOLER=transaction` or `session` its connection string leads through a PgBouncer in that mode.

pub mod book;
mod database;
mod fast_clock;
mod guarded;
pub mod matrix;
mod patroni;
mod pgbouncer;
mod process;
mod proxy;
mod sql;
mod wait;

pub use atta_cluster::{Binaries, Cluster};
pub use database::Database;
pub use fast_clock::{FastClock, SetClock};
pub use patroni::Patroni;
pub use pgbouncer::{PgBouncer, PoolMode, can_listen};
pub use process::{Process, Signal};
pub use proxy::Proxy;
pub use sql::fill_sql;
pub use wait::{DEADLINE, wait_for};

use std::env;
use std::sync::OnceLock;

/// A connection string for `database` on the run's server.
pub fn server_url(database: &str) -> String {
    static SERVER: OnceLock<Server> = OnceLock::new();
    match SERVER.get_or_init(Server::of_this_run) {
        Server::Given(port) => format!("postgres://postgres@127.0.0.1:{port}/{database}"),
        Server::Own(cluster) => cluster.url(database),
    }
}

/// The binaries of the tests' servers.
pub fn binaries() -> Binaries {
    match env::var_os("ATTA_TEST_PG_BIN") {
        Some(folder) => Binaries::at(folder).expect("ATTA_TEST_PG_BIN names a folder of PostgreSQL binaries"),
        None => Binaries::find().expect("PostgreSQL is installed (cargo xtask test does it)"),
    }
}

enum Server {
    /// Started by `cargo xtask test`; its port.
    Given(u16),
    Own(Cluster),
}

impl Server {
    fn of_this_run() -> Server {
        match env::var("ATTA_TEST_SERVER") {
            Ok(port) => Server::Given(port.parse().expect("ATTA_TEST_SERVER is a port on 127.0.0.1")),
            Err(_) => Server::Own(Cluster::temporary(&binaries()).expect("a private PostgreSQL starts")),
        }
    }
}
