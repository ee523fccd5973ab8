//! PgBouncer before the run's server.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Process, wait_for};

/// A running PgBouncer, stopped with this value.
#[derive(Debug)]
pub struct PgBouncer {
    process: Process,
    folder: PathBuf,
    port: u16,
}

/// What PgBouncer hands out a server connection for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// As long as the client stays.
    Session,
    /// A transaction; then the next client may have it.
    Transaction,
}

impl PgBouncer {
    /// Starts one before the server of this connection string, with up to `size` server connections a database.
    pub async fn before(url: &str, mode: PoolMode, size: usize) -> PgBouncer {
        let (_, rest) = url.split_once('@').expect("a connection string with a user");
        let (server, _) = rest.split_once('/').expect("a connection string with a database");
        let (host, server_port) = server.split_once(':').expect("a connection string with a port");
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("atta-pgbouncer-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for PgBouncer");
        // It may run as another user.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("a folder of ours");
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        };
        let config = format!(
            "[databases]\n* = host={host} port={server_port} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n\
             default_pool_size = {size}\nmax_client_conn = 200\nserver_login_retry = 1\n\
             ignore_startup_parameters = extra_float_digits\n"
        );
        let file = folder.join("pgbouncer.ini");
        fs::write(&file, config).expect("PgBouncer's settings are written");
        let mut command = Command::new(program());
        command.arg("--quiet");
        // It refuses to run as root.
        if fs::metadata(&file).expect("the file is there").uid() == 0 {
            command.args(["--user", "nobody"]);
        }
        let process = Process::start(command.arg(&file).current_dir("/"));
        wait_for("PgBouncer to answer", || async { TcpStream::connect(("127.0.0.1", port)).ok() }).await;
        PgBouncer { process, folder, port }
    }

    /// The connection string of a database of the server's, through PgBouncer.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.process.kill();
        // What stays is small, and in a folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
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

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a listener has an address").port()
}
