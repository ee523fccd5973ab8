//! Checks of third-party dependencies: their licences, their sources, and crates that we refuse by name.
//!
//! `deny.toml` contains the rules, in the format of cargo-deny. `cargo xtask test` installs cargo-deny, which takes a
//! while. For `cargo xtask check`, the rules that concern only the list of dependencies are checked here, with the data
//! that cargo itself provides. If cargo-deny is installed, it decides. Only cargo-deny knows security advisories, and
//! only if it can reach their database.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Result, cargo, install, root, run, say};

pub(crate) fn check() -> Result {
    let rules = Rules::read()?;
    say("==> licences and origins of dependencies");
    let mut faults = Vec::new();
    for package in packages()? {
        faults.extend(rules.faults(&package));
    }
    if !faults.is_empty() {
        return Err(format!("deny.toml does not allow:\n  {}", faults.join("\n  ")));
    }
    let Some(program) = install::find_cargo_deny() else {
        say(
            "cargo-deny is not installed, so advisories are not checked; to install it, run: cargo install cargo-deny --locked",
        );
        return Ok(());
    };
    let deny = |words: &[&str]| run(Command::new(&program).args(words).current_dir(root()));
    deny(&["check", "licenses", "bans", "sources"])?;
    if deny(&["fetch", "db"]).is_err() {
        say("the database of advisories can't be reached: advisories are NOT checked");
        return Ok(());
    }
    deny(&["check", "--disable-fetch", "advisories"])
}

/// A crate that is not ours.
#[derive(Debug)]
struct Package {
    name: String,
    licence: Option<String>,
    source: String,
}

/// All locked packages, on every platform and with every feature.
fn packages() -> Result<Vec<Package>> {
    let output = cargo()
        .args(["metadata", "--format-version=1", "--all-features", "--locked"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let text = |package: &Value, key: &str| package[key].as_str().map(str::to_owned);
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    // A package without a source is a folder of ours.
    let others = packages.iter().filter_map(|package| {
        let source = text(package, "source")?;
        Some(Package { name: text(package, "name")?, licence: text(package, "license"), source })
    });
    Ok(others.collect())
}

/// The rules of `deny.toml`.
struct Rules {
    licences: Vec<String>,
    registries: Vec<String>,
    refused: Vec<String>,
}

impl Rules {
    fn read() -> Result<Rules> {
        let file = root().join("deny.toml");
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let table: toml::Table = text.parse().map_err(|error| format!("deny.toml: {error}"))?;
        let list = |section: &str, key: &str| {
            table.get(section).and_then(|section| section.get(key)?.as_array().cloned()).unwrap_or_default()
        };
        let texts = |values: Vec<toml::Value>| {
            values.iter().filter_map(|it| it.as_str().map(str::to_owned)).collect()
        };
        let names = list("bans", "deny")
            .iter()
            .filter_map(|it| it.get("crate")?.as_str().map(str::to_owned))
            .collect();
        Ok(Rules {
            licences: texts(list("licenses", "allow")),
            registries: texts(list("sources", "allow-registry")),
            refused: names,
        })
    }

    fn faults(&self, package: &Package) -> Vec<String> {
        let name = &package.name;
        let mut faults = Vec::new();
        let is_known = self.registries.iter().any(|known| package.source == format!("registry+{known}"));
        if !is_known {
            faults.push(format!("{name}: comes from {}", package.source));
        }
        if self.refused.contains(name) {
            faults.push(format!("{name}: refused by name"));
        }
        match &package.licence {
            None => faults.push(format!("{name}: names no licence")),
            Some(licence) if !is_allowed(licence, &self.licences) => {
                faults.push(format!("{name}: {licence}"))
            }
            Some(_) => {}
        }
        faults
    }
}

/// Whether these licences alone satisfy an expression such as `(MIT OR Apache-2.0) AND Unicode-3.0`.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    // Older crates write a slash instead of OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words, allowed };
    let met = reader.either();
    met && reader.words.is_empty()
}

struct Reader<'a> {
    words: &'a [&'a str],
    allowed: &'a [String],
}

impl<'a> Reader<'a> {
    fn either(&mut self) -> bool {
        let mut met = self.all();
        while self.skip("OR") {
            met |= self.all();
        }
        met
    }

    fn all(&mut self) -> bool {
        let mut met = self.one();
        while self.skip("AND") {
            met &= self.one();
        }
        met
    }

    fn one(&mut self) -> bool {
        if self.skip("(") {
            let met = self.either();
            return self.skip(")") && met;
        }
        let Some(licence) = self.next() else { return false };
        let named = match self.skip("WITH") {
            true => format!("{licence} WITH {}", self.next().unwrap_or_default()),
            false => licence.to_owned(),
        };
        self.allowed.contains(&named)
    }

    fn next(&mut self) -> Option<&'a str> {
        let (word, rest) = self.words.split_first()?;
        self.words = rest;
        Some(word)
    }

    fn skip(&mut self, word: &str) -> bool {
        match self.words.split_first() {
            Some((first, rest)) if *first == word => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_met_by_what_is_allowed_and_by_nothing_less() {
        let allowed = ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        for (expression, is_met) in [
            ("MIT", true),
            ("MIT OR Apache-2.0", true),
            ("MIT/Apache-2.0", true),
            ("Apache-2.0", false),
            ("MIT AND Apache-2.0", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0", true),
            ("GPL-3.0 OR LGPL-3.0", false),
            ("MIT OR (Apache-2.0 AND GPL-3.0)", true),
            ("MIT AND (Apache-2.0 OR GPL-3.0)", false),
            ("(MIT", false),
            ("MIT ISC", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), is_met, "{expression:?}");
        }
    }

    #[test]
    fn another_registry_a_refused_name_and_no_licence_are_reported() {
        let rules = Rules {
            licences: vec!["MIT".into()],
            registries: vec!["https://here".into()],
            refused: vec!["bad".into()],
        };
        let package = |name: &str, licence: Option<&str>, source: &str| Package {
            name: name.into(),
            licence: licence.map(str::to_owned),
            source: source.into(),
        };
        assert_eq!(rules.faults(&package("good", Some("MIT"), "registry+https://here")), [""; 0]);
        let faults = rules.faults(&package("bad", None, "git+https://there"));
        assert_eq!(
            faults,
            ["bad: comes from git+https://there", "bad: refused by name", "bad: names no licence"]
        );
        assert_eq!(
            rules.faults(&package("good", Some("GPL-3.0"), "registry+https://here")),
            ["good: GPL-3.0"]
        );
    }
}
