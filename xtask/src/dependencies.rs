//! The rules for dependencies, which are in `deny.toml`: licences, origins, crates that are refused by name, and security
//! advisories. cargo-deny checks them.

use std::process::Command;

use crate::{Result, install, root, run, say};

/// What to do if cargo-deny is not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// Build it, which takes minutes. If that fails, so does the check: nothing else would stop a wrong licence.
    Required,
    /// Report that nothing was checked.
    IfInstalled,
}

/// Checks the rules. The database of advisories is on the internet: if it can't be reached, the advisories are not
/// checked, and a message says so.
pub(crate) fn check(tool: Tool) -> Result {
    if tool == Tool::Required {
        install::cargo_deny()?;
    }
    let Some(program) = install::find_cargo_deny() else {
        say(
            "NOT checked: licences, origins and advisories of dependencies, since cargo-deny is not installed",
        );
        say(&format!("hint: cargo install {} --locked", install::CARGO_DENY));
        return Ok(());
    };
    let deny = |words: &[&str]| run(Command::new(&program).args(words).current_dir(root()));
    deny(&["check", "licenses", "bans", "sources"])?;
    if deny(&["fetch", "db"]).is_err() {
        say("NOT checked: security advisories, since their database can't be reached");
        return Ok(());
    }
    deny(&["check", "--disable-fetch", "advisories"])
}
