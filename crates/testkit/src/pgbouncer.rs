//! PgBouncer in front of the run's server: for one test, or for all tests of the run.

use std::env;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use tokio::sync::OnceCell;

use crate::guarded::Guarded;
use crate::{server_url, wait_for};

/// A running PgBouncer. It is stopped when this value is dropped, or when this process ends.
#[derive(Debug)]
pub struct PgBouncer {
    /// Kept only to be dropped.
    _process: Guarded,
    port: u16,
}

/// How long PgBouncer assigns a server connection to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// For as long as the client stays connected.
    Session,
    /// For one transaction; the next transaction may get another server connection.
    Transaction,
}

impl PoolMode {
    /// The mode that `ATTA_TEST_POOLER` requests.
    fn of_this_run() -> Option<PoolMode> {
        let mode = env::var("ATTA_TEST_POOLER").ok()?;
        match mode.as_str() {
            "session" => Some(PoolMode::Session),
            "transaction" => Some(PoolMode::Transaction),
            _ => panic!("ATTA_TEST_POOLER is session or transaction, not {mode:?}"),
        }
    }

    /// The number of server connections for the database of one test: enough for each of its clients, or fewer than it
    /// has clients.
    fn size(self) -> usize {
        match self {
            PoolMode::Session => 100,
            PoolMode::Transaction => 10,
        }
    }
}

static OF_THIS_RUN: OnceCell<Option<PgBouncer>> = OnceCell::const_new();

/// Starts the pooler for all tests of this run, if one is requested.
pub(crate) async fn start_for_this_run() {
    let start = async || {
        let mode = PoolMode::of_this_run()?;
        Some(PgBouncer::before(&server_url("postgres"), mode, mode.size()).await)
    };
    OF_THIS_RUN.get_or_init(start).await;
}

/// The connection string of a database through that pooler, once it is started.
pub(crate) fn url_of_this_run(database: &str) -> Option<String> {
    OF_THIS_RUN.get()?.as_ref().map(|pooler| pooler.url(database))
}

/// Whether a worker of this run receives notifications of new jobs: not behind a pooler in transaction mode.
pub fn can_listen() -> bool {
    PoolMode::of_this_run() != Some(PoolMode::Transaction)
}

impl PgBouncer {
    /// Starts one in front of the server of this connection string, with up to `size` server connections per database.
    pub async fn before(url: &str, mode: PoolMode, size: usize) -> PgBouncer {
        let (_, rest) = url.split_once('@').expect("a connection string with a user");
        let (server, _) = rest.split_once('/').expect("a connection string with a database");
        let (host, server_port) = server.split_once(':').expect("a connection string with a port");
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("atta-pgbouncer-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for PgBouncer");
        // PgBouncer may run as another user.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("a folder of ours");
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        };
        let config = format!(
            "[databases]\n* = host={host} port={server_port} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n\
             default_pool_size = {size}\nmax_client_conn = 2000\nserver_login_retry = 1\n\
             server_idle_timeout = 10\nignore_startup_parameters = extra_float_digits\n"
        );
        let file = folder.join("pgbouncer.ini");
        fs::write(&file, config).expect("PgBouncer's settings are written");
        let mut command = Command::new(program());
        command.arg("--quiet");
        // PgBouncer refuses to run as root.
        if fs::metadata(&file).expect("the file is there").uid() == 0 {
            command.args(["--user", "nobody"]);
        }
        let end = r#"kill -9 $child; rm -rf -- "$0""#;
        let process = Guarded::start(command.arg(&file), &folder, end);
        wait_for("PgBouncer to answer", || async { TcpStream::connect(("127.0.0.1", port)).ok() }).await;
        PgBouncer { _process: process, port }
    }

    /// The connection string of one of the server's databases, through PgBouncer.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

/// Debian's place is not on every user's `PATH`.
fn program() -> &'static Path {
    ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/opt/homebrew/bin/pgbouncer", "/usr/local/bin/pgbouncer"]
        .map(Path::new)
        .into_iter()
        .find(|path| path.exists())
        .expect("PgBouncer is installed (cargo xtask test does it)")
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a listener has an address").port()
}
