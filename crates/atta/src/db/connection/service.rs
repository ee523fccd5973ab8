//! Service files: connection options under a name, in sections like those of an INI file.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::options::Variables;
use super::parse::Pairs;
use crate::{Error, Result};

/// Where packages put the file of the whole machine: Debian's place, Red Hat's, and the usual one.
const MACHINE_FOLDERS: &[&str] = &["/etc/postgresql-common", "/etc/sysconfig/pgsql", "/etc"];

/// The options of a service, from the user's file or else the machine's.
pub(super) fn read(name: &str, variables: Variables<'_>) -> Result<Pairs> {
    let set = |variable: &str| variables(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let given = set("PGSERVICEFILE");
    let mut files: Vec<PathBuf> = given.clone().into_iter().collect();
    if given.is_none() {
        files.extend(set("HOME").map(|home| home.join(".pg_service.conf")));
    }
    let folders = match set("PGSYSCONFDIR") {
        Some(folder) => vec![folder],
        None => MACHINE_FOLDERS.iter().map(PathBuf::from).collect(),
    };
    files.extend(folders.into_iter().map(|folder| folder.join("pg_service.conf")));
    for file in &files {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            // Only a file that was named explicitly must exist.
            Err(error) if error.kind() == ErrorKind::NotFound && given.as_ref() != Some(file) => continue,
            Err(error) => {
                return Err(Error::config(format!(
                    "can't read the service file {}: {error}",
                    file.display()
                )));
            }
        };
        if let Some(pairs) = find(&text, name, file)? {
            return Ok(pairs);
        }
    }
    Err(Error::config(format!("service {name:?} is not defined"))
        .with_hint("define it in ~/.pg_service.conf, or in the file that PGSERVICEFILE names"))
}

/// The section of that name, if there is one.
fn find(text: &str, name: &str, file: &Path) -> Result<Option<Pairs>> {
    let mut found: Option<Pairs> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(section) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            found = (section.split(']').next() == Some(name)).then(Pairs::new);
            continue;
        }
        let Some(pairs) = &mut found else { continue };
        let at = || format!("{}, line {}", file.display(), index + 1);
        let (key, value) =
            line.split_once('=').ok_or_else(|| Error::config(format!("{}: the line has no =", at())))?;
        let key = key.trim_end();
        if key == "service" || key.starts_with("ldap") {
            return Err(Error::config(format!("{}: a service can't refer to another service or file", at())));
        }
        // In a file, too, the last value of a key counts.
        pairs.retain(|(known, _)| known != key);
        pairs.push((key.into(), value.trim_start().into()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# ours\n[other]\nhost=no\n\n[app]\nhost = db.example\n port=6432\npassword= a=b \n\
                        # more\nport=6433\n[app]\nhost=never\n[bad]\nnonsense\n";

    fn section(name: &str) -> Result<Option<Pairs>> {
        find(FILE, name, Path::new("/x/pg_service.conf"))
    }

    #[test]
    fn a_service_is_one_section() {
        let pairs = section("app").unwrap().unwrap();
        let expected = [("host", "db.example"), ("password", "a=b"), ("port", "6433")];
        assert_eq!(pairs, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert!(section("nobody").unwrap().is_none());
    }

    #[test]
    fn an_error_names_file_and_line() {
        let error = section("bad").unwrap_err();
        assert_eq!(error.message(), "/x/pg_service.conf, line 14: the line has no =");
    }
}
