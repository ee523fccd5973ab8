//! The passfile (`~/.pgpass`): lines of `host:port:database:user:password`; the first match counts.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The login whose password is needed.
pub(crate) struct Login<'a> {
    /// Any of these may match: the folder of a socket, and `localhost`.
    pub(crate) hosts: &'a [&'a str],
    pub(crate) port: u16,
    pub(crate) database: &'a str,
    pub(crate) user: &'a str,
}

/// The result of reading a passfile.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lookup {
    pub(crate) password: Option<String>,
    /// Why the file was ignored.
    pub(crate) warning: Option<String>,
}

/// Looks the password up. Reads the file each time, so that the next connection uses a new password.
pub(crate) fn look_up(file: &Path, login: &Login<'_>) -> Lookup {
    let ignored = |why: String| {
        let warning = format!("the passfile {} is ignored: {why}", file.display());
        Lookup { password: None, warning: Some(warning) }
    };
    let metadata = match fs::metadata(file) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Lookup::default(),
        Err(error) => return ignored(error.to_string()),
    };
    if !metadata.is_file() {
        return ignored("it is not a regular file".into());
    }
    if is_open_to_others(&metadata) {
        return ignored("other users may read it; set its permissions to 600".into());
    }
    match fs::read_to_string(file) {
        Ok(text) => Lookup { password: find(&text, login), warning: None },
        Err(error) => ignored(error.to_string()),
    }
}

#[cfg(unix)]
pub(crate) fn is_open_to_others(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o077 != 0
}

#[cfg(not(unix))]
pub(crate) fn is_open_to_others(_: &fs::Metadata) -> bool {
    false
}

fn find(text: &str, login: &Login<'_>) -> Option<String> {
    let port = login.port.to_string();
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let (host, rest) = split_field(line)?;
        let (port_field, rest) = split_field(rest)?;
        let (database, rest) = split_field(rest)?;
        let (user, password) = split_field(rest)?;
        let fits = login.hosts.iter().any(|wanted| matches(host, wanted))
            && matches(port_field, &port)
            && matches(database, login.database)
            && matches(user, login.user);
        fits.then(|| unescape(password.trim_end_matches('\r'))).filter(|password| !password.is_empty())
    })
}

/// The text before the first colon that has no backslash before it, and the text after it.
fn split_field(text: &str) -> Option<(&str, &str)> {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b':' if !is_escaped => return Some((&text[..at], &text[at + 1..])),
            b'\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    None
}

fn matches(field: &str, wanted: &str) -> bool {
    field == "*" || unescape(field) == wanted
}

/// After a backslash, the next character is taken literally; a backslash at the end stands for itself.
fn unescape(field: &str) -> String {
    let mut plain = String::with_capacity(field.len());
    let mut characters = field.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.push(characters.next().unwrap_or('\\')),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, hosts: &[&str]) -> Option<String> {
        find(text, &Login { hosts, port: 5432, database: "app", user: "me" })
    }

    #[test]
    fn the_first_matching_line_is_used() {
        let text = "# h:5432:app:me:comment\nnonsense\nother:5432:app:me:a\nh:1:app:me:b\nh:5432:x:me:c\n\
                    h:5432:app:you:d\nh:5432:app:me:e\n*:*:*:*:f\n";
        assert_eq!(found(text, &["h"]).unwrap(), "e");
        assert_eq!(found(text, &["elsewhere"]).unwrap(), "f");
        assert_eq!(found("h:5432:app:you:d\n", &["h"]), None);
    }

    #[test]
    fn backslashes_take_colons_and_themselves() {
        assert_eq!(found(r"\:\:1:5432:app:me:a\:b\\c:d", &["::1"]).unwrap(), r"a:b\c:d");
        assert_eq!(found("h\\\\:5432:app:me:x\r\n", &["h\\"]).unwrap(), "x");
    }

    #[test]
    fn a_socket_goes_by_its_folder_or_as_localhost() {
        let hosts = &["/run/pg", "localhost"];
        assert_eq!(found("localhost:5432:app:me:x", hosts).unwrap(), "x");
        assert_eq!(found("/run/pg:5432:app:me:y", hosts).unwrap(), "y");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_may_read_is_ignored_with_a_warning() {
        use std::os::unix::fs::PermissionsExt;
        let file = std::env::temp_dir().join(format!("atta-passfile-{}", std::process::id()));
        fs::write(&file, "*:*:*:*:secret\n").unwrap();
        let login = Login { hosts: &["h"], port: 1, database: "d", user: "u" };
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let open = look_up(&file, &login);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let closed = look_up(&file, &login);
        fs::remove_file(&file).unwrap();
        assert_eq!(open.password, None);
        assert!(open.warning.unwrap().contains("permissions to 600"));
        assert_eq!(closed, Lookup { password: Some("secret".into()), warning: None });
        assert_eq!(look_up(&file, &login), Lookup::default());
    }
}
