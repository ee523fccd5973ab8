//! A private PostgreSQL cluster in a folder, made by the binaries that are installed on the machine.
//!
//! It is used by `atta dev`, the demo and the tests. It listens only on loopback, and never touches a cluster that it
//! did not create. PostgreSQL refuses to run as root, so root starts it as another user.
//!
//! A cluster's folder is in one of three states: absent, created (`initdb` is done), or running (a postmaster owns it).
//! [`Cluster::start`] leads from any of them to running, [`Cluster::stop`] back to created. A temporary cluster also
//! has a guard: a process that waits until this process has ended for any reason, and then stops the cluster and
//! removes the folder.

mod binaries;
mod postmaster;
mod process;
mod standby;
mod user;

use std::fmt;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub use binaries::Binaries;
use postmaster::Postmaster;
pub use process::{Guard, OwnedChild};
use user::ServerUser;
pub use user::{can_reach, give_to_server, run_unprivileged};

/// A running PostgreSQL server that we started.
#[derive(Debug)]
pub struct Cluster {
    binaries: Binaries,
    folder: PathBuf,
    port: u16,
    /// The server's options, kept for its next start.
    options: String,
    /// Without a password, everybody on this machine may connect.
    password: Option<String>,
    user: Option<ServerUser>,
    guard: Option<Guard>,
}

/// Settings of a server whose data may be lost.
const THROW_AWAY: &[&str] = &[
    "fsync=off",
    "full_page_writes=off",
    "synchronous_commit=off",
    "max_connections=1000",
    "max_prepared_transactions=10",
    "shared_buffers=128MB",
    "log_lock_waits=on",
];

/// The script of a temporary cluster's guard. Its arguments are pg_ctl and the folder.
const CLEAN_UP: &str = r#"
read -r _
"$1" -D "$2/data" stop -m immediate -w -t 30 >/dev/null 2>&1
rm -rf -- "$2"
"#;

/// Options of a cluster that is kept.
#[derive(Clone, Debug)]
pub struct Kept<'a> {
    /// The port of the last run, which is used again if it is free.
    pub port: Option<u16>,
    /// The password of the superuser, which is needed because other users of the machine can reach the port as well.
    pub password: &'a str,
    /// Settings of the server, in the form `name=value`.
    pub settings: &'a [&'a str],
}

impl Cluster {
    /// Starts a cluster for the lifetime of this process: in the folder for temporary files, with `fsync` off. It is
    /// removed when this process ends, also by a panic or a signal.
    pub fn temporary(binaries: &Binaries) -> Result<Cluster, Error> {
        Cluster::temporary_with(binaries, &[], &[])
    }

    /// [`Cluster::temporary`] with additional server settings (`name=value`), and with files, given by names and texts,
    /// that are written into the data folder before the start. Only the server may read them.
    pub fn temporary_with(
        binaries: &Binaries,
        settings: &[&str],
        files: &[(&str, &str)],
    ) -> Result<Cluster, Error> {
        let mut cluster = Cluster::made_temporary(binaries)?;
        for (name, text) in files {
            cluster.put(name, text)?;
        }
        cluster.launch(&[THROW_AWAY, settings].concat(), None)?;
        Ok(cluster)
    }

    /// A temporary cluster with PostgreSQL's own defaults, `fsync` included, and `settings`: for measurements.
    pub fn temporary_durable(binaries: &Binaries, settings: &[&str]) -> Result<Cluster, Error> {
        let mut cluster = Cluster::made_temporary(binaries)?;
        cluster.launch(settings, None)?;
        Ok(cluster)
    }

    /// Starts a cluster whose data are kept in `folder`, and creates it first if necessary.
    ///
    /// `settings` are server settings in the form `name=value`.
    pub fn start(binaries: &Binaries, folder: &Path, settings: &[&str]) -> Result<Cluster, Error> {
        let mut cluster = Cluster::made(binaries, folder, None)?;
        cluster.launch(settings, None)?;
        Ok(cluster)
    }

    /// The same for a cluster that people use for a long time. Files that a crash left do not prevent the start.
    pub fn keep(binaries: &Binaries, folder: &Path, kept: &Kept<'_>) -> Result<Cluster, Error> {
        let mut cluster = Cluster::made(binaries, folder, Some(kept.password))?;
        Postmaster::forget_dead(&cluster.data());
        cluster.launch(kept.settings, kept.port)?;
        Ok(cluster)
    }

    /// The cluster in `folder`, if it is running, whoever started it.
    pub fn running(
        binaries: &Binaries,
        folder: &Path,
        password: Option<&str>,
    ) -> Result<Option<Cluster>, Error> {
        let mut cluster = Cluster::unmade(binaries, folder, password)?;
        let Some(postmaster) = Postmaster::alive(&cluster.data()) else { return Ok(None) };
        cluster.port = postmaster.port;
        Ok(Some(cluster))
    }

    /// Stops the server. Open transactions are rolled back, committed data are safe.
    pub fn stop(mut self) -> Result<(), Error> {
        if let Some(mut guard) = self.guard.take() {
            let waited = guard.finish();
            return waited.map_err(|error| Error::new("waiting for the guard of a cluster".into(), error));
        }
        self.run(self.pg_ctl().args(["stop", "-w", "-m", "fast"]), "stopping PostgreSQL")
    }

    /// Ends the server as a crash would, without notifying its clients, and starts it again on the same port.
    pub fn crash_and_restart(&self) -> Result<(), Error> {
        self.run(self.pg_ctl().args(["stop", "-w", "-m", "immediate"]), "crashing PostgreSQL")?;
        self.run(&mut self.start_command(), "starting PostgreSQL")
    }

    /// Ends the server and all its processes by `kill -9`.
    pub fn kill(&self) -> Result<(), Error> {
        let postmaster = Postmaster::alive(&self.data())
            .ok_or_else(|| Error::text(format!("no server is running in {}", self.folder.display())))?;
        postmaster.kill().map_err(|error| Error::new("killing PostgreSQL".into(), error))
    }

    /// Starts a server again that has ended, on the same port. A killed server leaves its pid file, whose number may
    /// belong to a process that is not reaped yet, and its port may be in use for a moment.
    pub fn start_again(&self) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            Postmaster::forget_dead(&self.data());
            let Err(error) = self.run(&mut self.start_command(), "starting PostgreSQL") else {
                return Ok(());
            };
            tries += 1;
            if tries == 10 {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                return Err(Error { context: format!("{error}\n{}", tail(&log)), source: None });
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }

    /// Restarts the server in an orderly way, on the same port.
    pub fn restart(&self) -> Result<(), Error> {
        self.run(
            self.pg_ctl().args(["restart", "-w", "-m", "fast"]).arg("-l").arg(self.log()),
            "restarting PostgreSQL",
        )
    }

    /// A connection string for `database` over TCP, as the superuser `postgres`.
    pub fn url(&self, database: &str) -> String {
        let password = self.password.as_ref().map_or(String::new(), |password| format!(":{password}"));
        format!("postgres://postgres{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// The TCP port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder with the unix socket, the data and the server's log.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The binaries of this cluster.
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The server's log.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn unmade(binaries: &Binaries, folder: &Path, password: Option<&str>) -> Result<Cluster, Error> {
        Ok(Cluster {
            binaries: binaries.clone(),
            folder: folder.into(),
            port: 0,
            options: String::new(),
            password: password.map(str::to_owned),
            user: ServerUser::needed()?,
            guard: None,
        })
    }

    fn made_temporary(binaries: &Binaries) -> Result<Cluster, Error> {
        let mut cluster = Cluster::made(binaries, &temporary_folder(), None)?;
        cluster.start_guard()?;
        Ok(cluster)
    }

    /// Starts the guard of a temporary cluster.
    fn start_guard(&mut self) -> Result<(), Error> {
        let mut command = Guard::shell(CLEAN_UP);
        command.arg("atta-cluster-guard").arg(self.pg_ctl().get_program()).arg(&self.folder);
        // As the server's user it may signal the server, and empty the folder; only the folder's own entry in a
        // sticky /tmp needs its owner, which it is.
        if let Some(user) = &self.user {
            user.become_in(&mut command);
        }
        let guard = Guard::start(command.stderr(Stdio::null()))
            .map_err(|error| Error::new("starting the guard of a temporary cluster".into(), error))?;
        self.guard = Some(guard);
        Ok(())
    }

    fn made(binaries: &Binaries, folder: &Path, password: Option<&str>) -> Result<Cluster, Error> {
        let cluster = Cluster::unmade(binaries, folder, password)?;
        let mark = folder.join("made");
        if mark.exists() {
            return Ok(cluster);
        }
        let context = || format!("creating the folder {}", folder.display());
        fs::create_dir_all(folder).map_err(|error| Error::new(context(), error))?;
        if let Some(user) = &cluster.user {
            user.give(folder).map_err(|error| Error::new(context(), error))?;
        }
        if cluster.data().exists() {
            // The creation was interrupted.
            fs::remove_dir_all(cluster.data()).map_err(|error| Error::new(context(), error))?;
        }
        let mut initdb = cluster.command("initdb");
        initdb.args(["--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"]);
        initdb.arg(cluster.data());
        match password {
            None => cluster.run(initdb.arg("--auth=trust"), "creating the cluster")?,
            Some(password) => {
                let file = cluster.write_secret(password)?;
                initdb.arg("--auth=scram-sha-256").arg("--pwfile").arg(&file);
                let made = cluster.run(&mut initdb, "creating the cluster");
                fs::remove_file(&file).map_err(|error| Error::new(context(), error))?;
                made?;
            }
        }
        fs::write(&mark, "").map_err(|error| Error::new(context(), error))?;
        Ok(cluster)
    }

    /// A file with the password that only the server's user can read.
    fn write_secret(&self, password: &str) -> Result<PathBuf, Error> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let file = self.folder.join("password");
        let context = |error| Error::new(format!("writing {}", file.display()), error);
        let mut open = fs::File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&file)
            .map_err(context)?;
        open.write_all(password.as_bytes()).map_err(context)?;
        if let Some(user) = &self.user {
            user.give(&file).map_err(context)?;
        }
        Ok(file)
    }

    /// Another program may take a free port at any moment, so a lost race is repeated.
    fn launch(&mut self, settings: &[&str], wanted: Option<u16>) -> Result<(), Error> {
        let mut tries = 0;
        let mut wanted = wanted.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
        // The path of a user's folder may be too long for a socket, and may have any name.
        let sockets = if self.password.is_some() { String::new() } else { self.folder.display().to_string() };
        loop {
            self.port = match wanted.take() {
                Some(port) => port,
                None => free_port()?,
            };
            self.options = format!(
                "-c listen_addresses=127.0.0.1 -c port={} -c unix_socket_directories='{sockets}'",
                self.port
            );
            for setting in settings {
                self.options.push_str(" -c ");
                self.options.push_str(setting);
            }
            let Err(error) = self.run(&mut self.start_command(), "starting PostgreSQL") else {
                return Ok(());
            };
            tries += 1;
            let log = fs::read_to_string(self.log()).unwrap_or_default();
            if tries == 5 || !log.contains("could not bind") {
                return Err(Error {
                    context: format!("{}\n{}", error.context, tail(&log)),
                    source: error.source,
                });
            }
        }
    }

    /// Writes a file into the server's data folder.
    fn put(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.data().join(name);
        let write = || {
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            self.user.as_ref().map_or(Ok(()), |user| user.give(&path))
        };
        write().map_err(|error| Error::new(format!("writing {}", path.display()), error))
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn pg_ctl(&self) -> Command {
        let mut command = self.command("pg_ctl");
        command.arg("-D").arg(self.data());
        command
    }

    fn start_command(&self) -> Command {
        let mut start = self.pg_ctl();
        start.args(["start", "-w", "-t", "60", "-o", &self.options, "-l"]).arg(self.log());
        start
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.binaries.command(program);
        if let Some(user) = &self.user {
            user.become_in(&mut command);
        }
        // The server's user may not be allowed to enter our working directory.
        command.current_dir(&self.folder);
        command
    }

    fn run(&self, command: &mut Command, doing: &str) -> Result<(), Error> {
        // A daemon that inherits our pipes would make `output` wait forever; the server of pg_ctl writes to its log
        // instead.
        let Output { status, stdout, stderr } =
            command.output().map_err(|error| Error::new(doing.to_owned(), error))?;
        if status.success() {
            return Ok(());
        }
        let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        Err(Error { context: format!("{doing} failed ({status})\n{}", tail(&said)), source: None })
    }
}

/// An error of a private cluster, and what was being done.
#[derive(Debug)]
pub struct Error {
    context: String,
    source: Option<io::Error>,
}

impl Error {
    pub(crate) fn new(context: String, source: io::Error) -> Error {
        Error { context, source: Some(source) }
    }

    pub(crate) fn text(context: impl Into<String>) -> Error {
        Error { context: context.into(), source: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.context),
            None => f.write_str(&self.context),
        }
    }
}

impl std::error::Error for Error {}

fn free_port() -> Result<u16, Error> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| Error::new("finding a free port".into(), error))
}

fn temporary_folder() -> PathBuf {
    std::env::temp_dir().join(format!("atta-pg-{}-{}", std::process::id(), unique()))
}

/// Distinguishes the clusters of one process.
fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
