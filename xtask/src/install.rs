//! Programs that the commands need on the machine, installed if they are missing.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use atta_cluster::{Binaries, OwnedChild};

use crate::{Result, cargo, root, run, say};

/// Installs packages and prevents their services from starting: we need only the programs, and nothing left running.
/// The first argument is `update` if the lists of packages have to be read anew.
const APT_SCRIPT: &str = r#"
set -e
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' > "$policy"
  chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
if [ "$1" = update ]; then apt-get update -qq; fi
shift
apt-get install -y -qq --no-install-recommends "$@"
"#;

/// PostgreSQL's binaries.
pub(crate) fn postgres() -> Result<Binaries> {
    if Binaries::find().is_err() {
        packages("PostgreSQL", &["postgresql"])?;
    }
    Binaries::find().map_err(|error| error.to_string())
}

/// The pooler for the tests.
pub(crate) fn pgbouncer() -> Result {
    if Path::new("/usr/sbin/pgbouncer").exists() || answers("pgbouncer") {
        return Ok(());
    }
    packages("PgBouncer", &["pgbouncer"])
}

/// Patroni, which manages a cluster of servers; etcd, in which it stores who leads; and the library that connects the
/// two.
pub(crate) fn patroni() -> Result {
    if ["patroni", "etcd"].iter().all(|program| answers(program)) {
        return Ok(());
    }
    packages("Patroni or etcd", &["patroni", "etcd-server", "python3-etcd"])
}

/// libfaketime: a clock that runs as fast as a test needs, for programs that do not know about it.
pub(crate) fn faketime() -> Result {
    let library = "faketime/libfaketime.so.1";
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    if folders.iter().any(|folder| Path::new(folder).join(library).exists()) {
        return Ok(());
    }
    packages("libfaketime", &["libfaketime"])
}

/// The C++ compiler for the fuzzer itself.
pub(crate) fn cpp_compiler() -> Result {
    if env::var_os("CXX").is_some() || answers("c++") {
        return Ok(());
    }
    packages("A C++ compiler", &["g++"])
}

/// The version that `deny.toml` is written for.
pub(crate) const CARGO_DENY: &str = "cargo-deny@0.20.2";

/// A build of cargo-deny, in the background of other steps. It ends when this value is dropped.
pub(crate) struct CargoDenyBuild {
    child: OwnedChild,
    /// The file with its output.
    log: PathBuf,
}

impl CargoDenyBuild {
    /// Builds it from source; without optimisation, since it runs only for a second, and without debug symbols, which
    /// would take half of the time. Its lower priority lets it use the cores while tests wait for the database. With the
    /// lowest one it took half an hour on a busy machine, for 100 seconds of work.
    pub(crate) fn start() -> Result<CargoDenyBuild> {
        let log = root().join("target/cargo-deny.log");
        say(&format!("==> cargo-deny is missing: building it in the background: {}", log.display()));
        let failed = |error| format!("building cargo-deny: {error}");
        let output = File::create(&log).map_err(failed)?;
        let mut command = Command::new("nice");
        command.args(["-n", "5"]).arg(cargo().get_program());
        command.args(["install", CARGO_DENY, "--locked", "--debug", "--root"]).arg(tools());
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").current_dir(root()).stdin(Stdio::null());
        command.stdout(output.try_clone().map_err(failed)?).stderr(output);
        Ok(CargoDenyBuild { child: OwnedChild::spawn(&mut command).map_err(failed)?, log })
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) -> Result {
        say("==> waiting for cargo-deny to be built");
        let status = self.child.wait().map_err(|error| format!("building cargo-deny: {error}"))?;
        if status.success() {
            return Ok(());
        }
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        Err(format!(
            "dependencies are not checked, since cargo-deny can't be built ({status}):\n{log}\n\
             hint: put cargo-deny on the PATH"
        ))
    }
}

/// Finds it on the PATH, or in our own folder.
pub(crate) fn find_cargo_deny() -> Option<PathBuf> {
    let own = tools().join("bin/cargo-deny");
    ["cargo-deny".into(), own].into_iter().find(|program: &PathBuf| answers(&program.to_string_lossy()))
}

/// The version that `docs/book.toml` is written for.
const MDBOOK: &str = "mdbook@0.5.4";

/// mdBook, which builds the book; built from source, once, like cargo-deny. Without the search index, and without the
/// server unless that is asked for: they would take most of the time. None if it can't be built here.
pub(crate) fn mdbook(with_server: bool) -> Option<PathBuf> {
    let own = tools().join("bin/mdbook");
    let question = if with_server { &["serve", "--help"][..] } else { &["--version"] };
    let can = |program: &PathBuf| {
        let asked = Command::new(program).args(question).stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    if let Some(program) = ["mdbook".into(), own.clone()].into_iter().find(can) {
        return Some(program);
    }
    say("mdbook is missing: building it, which takes a while");
    let mut install = cargo();
    install.args(["install", MDBOOK, "--locked", "--debug", "--force", "--quiet", "--root"]).arg(tools());
    install.args(if with_server { &["--features", "watch,serve"][..] } else { &["--no-default-features"] });
    install.env("CARGO_PROFILE_DEV_DEBUG", "0");
    run(&mut install).is_ok().then_some(own)
}

/// A folder in which nobody else can put a program.
fn tools() -> PathBuf {
    root().join("target/tools")
}

/// The runtimes of JavaScript and Python tasks.
pub(crate) fn runtimes() -> Result {
    if !answers("node") {
        packages("Node.js", &["nodejs"])?;
    }
    if !answers("python3") {
        packages("Python", &["python3"])?;
    }
    Ok(())
}

/// Node and npm, and the published versions of graphile-worker with which we compare.
pub(crate) fn node_packages() -> Result {
    if !answers("node") || !answers("npm") {
        packages("Node.js and npm", &["nodejs", "npm"])?;
    }
    let folder = root().join("crates/atta/tests/compat/node");
    if is_newer(&folder.join("node_modules/.package-lock.json"), &folder.join("package-lock.json")) {
        return Ok(());
    }
    run(Command::new("npm").args(["ci", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(&folder))
}

/// Python and pip: the tests of Python tasks install a database driver, as users do.
pub(crate) fn python_packages() -> Result {
    let has_pip = Command::new("python3").args(["-m", "pip", "--version"]).output();
    if has_pip.is_ok_and(|asked| asked.status.success()) {
        return Ok(());
    }
    packages("Python with pip", &["python3", "python3-pip"])
}

/// A folder that the user of a private server can access too: the project's own folder may be closed to it.
pub(crate) fn downloads() -> Result<PathBuf> {
    let folder = env::temp_dir().join("atta-xtask");
    fs::create_dir_all(&folder).map_err(|error| format!("creating {}: {error}", folder.display()))?;
    Ok(folder)
}

fn packages(what: &str, names: &[&str]) -> Result {
    let list = names.join(" ");
    if !answers("apt-get") {
        return Err(format!(
            "{what} is missing; install it with your package manager (Debian's names: {list})"
        ));
    }
    say(&format!("{what} is missing: installing {list} with apt-get"));
    let mut command = if am_root() { Command::new("sh") } else { as_root(what, &list)? };
    // Reading the lists takes longer than most packages do, so once must be enough.
    static IS_UPDATED: AtomicBool = AtomicBool::new(false);
    let update = if IS_UPDATED.swap(true, Ordering::Relaxed) { "keep" } else { "update" };
    run(command.args(["-c", APT_SCRIPT, "apt", update]).args(names))
}

fn as_root(what: &str, list: &str) -> Result<Command> {
    if !answers("sudo") {
        return Err(format!("{what} is missing; as root run: apt-get install {list}"));
    }
    let mut command = Command::new("sudo");
    command.arg("sh");
    Ok(command)
}

fn am_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

fn answers(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

fn is_newer(made: &Path, source: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    matches!((modified(made), modified(source)), (Some(made), Some(source)) if made >= source)
}
