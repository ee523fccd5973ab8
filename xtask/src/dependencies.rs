//! The rules for dependencies, which are in `deny.toml`: licences, origins, crates that are refused by name, and security
//! advisories. cargo-deny checks them.

use std::path::Path;
use std::process::Command;

use crate::{Result, install, root, run, say};

/// A check for which cargo-deny may have to be built first, while other steps run.
pub(crate) struct Pending(Option<install::CargoDenyBuild>);

impl Pending {
    /// Checks at once if cargo-deny is installed. Otherwise starts to build it, which takes minutes.
    pub(crate) fn start() -> Result<Pending> {
        match install::find_cargo_deny() {
            Some(program) => check(&program).map(|()| Pending(None)),
            None => install::CargoDenyBuild::start().map(Some).map(Pending),
        }
    }

    /// Checks, if that was not possible before. Fails without cargo-deny: nothing else would stop a wrong licence.
    pub(crate) fn finish(self) -> Result {
        let Some(build) = self.0 else { return Ok(()) };
        build.finish()?;
        let program = install::find_cargo_deny().ok_or("cargo-deny was built and can't be found")?;
        check(&program)
    }
}

/// Checks if cargo-deny is installed, and otherwise prints that nothing was checked.
pub(crate) fn check_if_installed() -> Result {
    if let Some(program) = install::find_cargo_deny() {
        return check(&program);
    }
    say("NOT checked: licences, origins and advisories of dependencies, since cargo-deny is not installed");
    say(&format!("hint: cargo install {} --locked", install::CARGO_DENY));
    Ok(())
}

/// The database of advisories is on the internet: if it can't be reached, the advisories are not checked, and a message
/// says so.
fn check(program: &Path) -> Result {
    let deny = |words: &[&str]| run(Command::new(program).args(words).current_dir(root()));
    deny(&["check", "licenses", "bans", "sources"])?;
    if deny(&["fetch", "db"]).is_err() {
        say("NOT checked: security advisories, since their database can't be reached");
        return Ok(());
    }
    deny(&["check", "--disable-fetch", "advisories"])
}
