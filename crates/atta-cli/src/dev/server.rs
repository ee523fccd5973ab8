//! The server of a project: finding it, starting, stopping and deleting it.

use std::fs;
use std::time::Duration;

use atta_cluster::{Binaries, Cluster, Guard, Kept};

use super::{Home, guard};
use crate::output::Failure;

/// Settings for development data: a crash of the machine may lose the last moments, and nothing more.
const SETTINGS: &[&str] = &["synchronous_commit=off", "shared_buffers=64MB", "log_lock_waits=on"];

/// Names the folder of PostgreSQL's binaries, for users who have them elsewhere or want another version.
const BINARIES_VARIABLE: &str = "ATTA_POSTGRES_BIN";

/// How often to check whether the server still runs. It is started again only if it is down at two checks in a row,
/// since somebody may be restarting it.
const CHECK: Duration = Duration::from_secs(1);

/// How often a start is attempted. Processes of a server that was killed may take a moment to end.
const START_TRIES: u32 = 5;
const START_PAUSE: Duration = Duration::from_millis(500);

/// A server that we use. It does not stop before [`Server::leave`], and then only if we are its last user.
#[derive(Debug)]
pub(crate) struct Server {
    guard: Guard,
    pub(crate) url: String,
    /// Whether another process had already started it.
    pub(crate) is_joined: bool,
}

impl Server {
    /// Joins the running server, or starts it. Takes some seconds the first time.
    pub(crate) fn enter(home: &Home) -> Result<Server, Failure> {
        let binaries = binaries(home)?;
        let _start = home.lock_start()?;
        let guard = guard::start()?;
        let address = Address::of(home);
        let cluster = home.cluster()?;
        let running = Cluster::running(&binaries, &cluster, Some(&address.password)).map_err(plain)?;
        let is_joined = running.is_some();
        let cluster = match running {
            Some(cluster) => cluster,
            None => {
                // Written before there is a cluster with this password.
                home.write("address", &address.to_string())?;
                let kept = Kept { port: address.port, password: &address.password, settings: SETTINGS };
                Cluster::keep(&binaries, &cluster, &kept).map_err(plain)?
            }
        };
        let url = cluster.url("postgres");
        let address = Address { port: Some(cluster.port()), ..address };
        home.write("address", &address.to_string())?;
        home.write("connection", &format!("{url}\n"))?;
        Ok(Server { guard, url, is_joined })
    }

    /// Ends our use of the server. Returns whether it has stopped.
    pub(crate) fn leave(self, home: &Home) -> Result<bool, Failure> {
        guard::finish(self.guard)?;
        Ok(home.read("connection").is_none())
    }
}

/// Starts the server again whenever it has ended. Returns only if that is impossible. Cancel safe.
pub(crate) async fn keep_up(home: &Home, url: &str) -> Failure {
    let mut checks_down = 0;
    loop {
        tokio::time::sleep(CHECK).await;
        let (home, url) = (home.clone(), url.to_owned());
        let is_second = checks_down > 0;
        let checked = tokio::task::spawn_blocking(move || match is_running(&home)? {
            true => Ok(State::Up),
            false if is_second => start_again(&home, &url).map(|()| State::Started),
            false => Ok(State::Down),
        });
        checks_down = match checked.await {
            Ok(Ok(State::Up)) => 0,
            Ok(Ok(State::Down)) => checks_down + 1,
            Ok(Ok(State::Started)) => {
                tracing::warn!("PostgreSQL stopped unexpectedly and was started again");
                0
            }
            Ok(Err(failure)) => return failure,
            Err(error) => {
                return Failure::new(format!("the task that supervises the server panicked: {error}"));
            }
        };
    }
}

enum State {
    Up,
    Down,
    Started,
}

fn is_running(home: &Home) -> Result<bool, Failure> {
    let running = Cluster::running(&binaries(home)?, &home.cluster()?, None).map_err(plain)?;
    Ok(running.is_some())
}

/// Starts the server at the same address, since workers and tasks use it.
fn start_again(home: &Home, url: &str) -> Result<(), Failure> {
    let failed = |why: String| {
        Failure::new(format!("PostgreSQL stopped unexpectedly and can't be started again: {why}"))
    };
    let _start = home.lock_start()?;
    if is_running(home)? {
        // Another `atta dev` has already started it.
        return Ok(());
    }
    let (binaries, folder, address) = (binaries(home)?, home.cluster()?, Address::of(home));
    let kept = Kept { port: address.port, password: &address.password, settings: SETTINGS };
    let mut tries = 0;
    let cluster = loop {
        tries += 1;
        match Cluster::keep(&binaries, &folder, &kept) {
            Ok(cluster) => break cluster,
            Err(error) if tries == START_TRIES => return Err(failed(error.to_string())),
            Err(_) => std::thread::sleep(START_PAUSE),
        }
    };
    if cluster.url("postgres") != url {
        cluster.stop().map_err(plain)?;
        return Err(failed("its port is used by another program".into()));
    }
    Ok(())
}

/// Stops the server if it runs. The caller must hold the lock `start`.
pub(super) fn stop(home: &Home) -> Result<(), Failure> {
    let running = Cluster::running(&binaries(home)?, &home.cluster()?, None).map_err(plain)?;
    home.remove("connection")?;
    match running {
        Some(cluster) => cluster.stop().map_err(plain),
        None => Ok(()),
    }
}

/// Stops the server and deletes it with all its data, unless somebody uses it.
pub(crate) fn reset(home: &Home) -> Result<(), Failure> {
    let _start = home.lock_start()?;
    if !home.is_unused() {
        return Err(Failure::new("another `atta dev` is running in this folder").with_hint("end it first"));
    }
    stop(home)?;
    home.remove_cluster()
}

/// The binaries that created the cluster, or else the newest ones.
fn binaries(home: &Home) -> Result<Binaries, Failure> {
    if let Some(folder) = std::env::var_os(BINARIES_VARIABLE) {
        return Binaries::at(folder)
            .map_err(|error| plain(error).with_hint(format!("the variable {BINARIES_VARIABLE} selects it")));
    }
    let Some(major) = made_by(home)? else { return Binaries::find().map_err(missing) };
    Binaries::find_version(major).ok_or_else(|| {
        Failure::new(format!(
            "the server of this project was created by PostgreSQL {major}, which is no longer installed"
        ))
        .with_hint("install that version again, or delete the data and start over: atta dev --reset")
    })
}

fn made_by(home: &Home) -> Result<Option<u32>, Failure> {
    let version = fs::read_to_string(home.cluster()?.join("data/PG_VERSION"));
    Ok(version.ok().and_then(|text| text.trim().parse().ok()))
}

fn missing(_: atta_cluster::Error) -> Failure {
    let how = match std::env::consts::OS {
        "macos" => "brew install postgresql@17",
        "freebsd" => "pkg install postgresql17-server",
        _ => {
            "Debian and Ubuntu: apt-get install postgresql; Fedora: dnf install postgresql-server; Arch: pacman -S \
             postgresql; Alpine: apk add postgresql"
        }
    };
    Failure::new("PostgreSQL's server binaries were not found on this machine").with_hint(format!(
        "install PostgreSQL ({how}); no running server is needed. To use another server, run: atta run --watch -c postgres://user@host/database"
    ))
}

fn plain(error: atta_cluster::Error) -> Failure {
    Failure::new(error.to_string())
}

/// Where the server is when it runs. It is the same each time, so that users can save the connection string.
#[derive(Debug)]
struct Address {
    port: Option<u16>,
    password: String,
}

impl Address {
    /// The saved address, or a new one.
    fn of(home: &Home) -> Address {
        let known = home.read("address").and_then(|text| {
            let (port, password) = text.trim().split_once(' ')?;
            let port = port.parse().ok().filter(|port| *port != 0);
            Some(Address { port, password: password.to_owned() })
        });
        known.unwrap_or_else(|| Address { port: None, password: random_password() })
    }
}

/// Port 0 means that the server has never run.
impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} {}", self.port.unwrap_or(0), self.password)
    }
}

fn random_password() -> String {
    format!("{:016x}", fastrand::u64(..))
}
