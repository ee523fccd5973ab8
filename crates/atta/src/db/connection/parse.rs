//! Parses the text of a connection string into keys and values. Which keys exist is not known here.
//!
//! No message repeats a part of the text except for the names of keys: the part that was read as a port may be half of
//! a password.

use crate::{Error, Result};

/// In the order of the text; the last value of a key counts.
pub(super) type Pairs = Vec<(String, String)>;

/// Reads `postgres://…`, `key=value …`, or only the name of a database.
pub(super) fn parse(text: &str) -> Result<Pairs> {
    if text.contains('\0') {
        return Err(invalid("it contains a NUL character"));
    }
    let text = text.trim_ascii();
    if let Some(rest) = text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://")) {
        return parse_url(rest);
    }
    // A key=value string may hold anything in quotes, so `://` counts only before the first `=`.
    let start = text.split('=').next().unwrap_or_default();
    if start.contains("://") {
        return Err(invalid("a URL must begin with postgres:// or postgresql://"));
    }
    if start.len() < text.len() {
        return parse_pairs(text);
    }
    // The text is a URL that is broken or lacks its beginning. As a database name it would be displayed, with the
    // password in it.
    if text.contains(':') && text.contains('@') {
        return Err(invalid("a URL must begin with postgres:// or postgresql://"));
    }
    Ok(if text.is_empty() { Vec::new() } else { vec![("dbname".into(), text.into())] })
}

fn invalid(what: &str) -> Error {
    Error::config(format!("invalid connection string: {what}"))
        .with_hint("use the form postgres://user:password@host:5432/database")
}

/// The part after `postgres://`: `[user[:password]@][host[:port],…][/database][?key=value&…]`.
fn parse_url(rest: &str) -> Result<Pairs> {
    let mut pairs = Pairs::new();
    let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = before.split_once('/').unwrap_or((before, ""));
    // In this case the first / or ? was not the end of the host, but belongs to the password.
    if database.contains('@') || query.split('=').next().is_some_and(|key| key.contains('@')) {
        return Err(invalid("there is an @ after the host").with_hint(
            "write special characters percent-encoded: @ is %40, / is %2F, ? is %3F, # is %23, : is %3A",
        ));
    }
    // The last @ counts, as in browsers and Node: a host contains none.
    let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let mut put = |key: &str, value: String| {
        if !value.is_empty() {
            pairs.push((key.into(), value));
        }
    };
    put("user", decode(user)?);
    put("password", decode(password)?);
    let (hosts, ports) = parse_hosts(hosts)?;
    put("host", hosts);
    put("port", ports);
    put("dbname", decode(database)?);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| invalid("a parameter after the ? has no ="))?;
        pairs.push(named(&decode(key)?, decode(value)?));
    }
    Ok(pairs)
}

/// JDBC and Node have their own parameter for TLS.
fn named(key: &str, value: String) -> (String, String) {
    match (key, value.as_str()) {
        ("ssl", "true" | "1") => ("sslmode".into(), "require".into()),
        ("ssl", "false" | "0") => ("sslmode".into(), "disable".into()),
        _ => (key.into(), value),
    }
}

/// The list of hosts and the list of ports; empty if all their entries are.
fn parse_hosts(text: &str) -> Result<(String, String)> {
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for entry in text.split(',') {
        let (host, port) = split_port(entry)?;
        hosts.push(decode(host)?);
        ports.push(decode(port)?);
    }
    let listed = |values: Vec<String>| {
        let are_empty = values.iter().all(String::is_empty);
        if are_empty { String::new() } else { values.join(",") }
    };
    Ok((listed(hosts), listed(ports)))
}

/// `host`, `host:port`, `[address]` or `[address]:port`.
fn split_port(entry: &str) -> Result<(&str, &str)> {
    let Some(rest) = entry.strip_prefix('[') else { return Ok(entry.split_once(':').unwrap_or((entry, ""))) };
    let (address, after) =
        rest.split_once(']').ok_or_else(|| invalid("an address that begins with [ has no closing ]"))?;
    match after.strip_prefix(':') {
        Some(port) => Ok((address, port)),
        None if after.is_empty() => Ok((address, "")),
        None => Err(invalid("only a port may follow the ] of an address")),
    }
}

/// `%2F` becomes `/`; a plus sign stays one.
fn decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digit = |at: usize| rest.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(invalid("a % must be followed by two hexadecimal digits")
                .with_hint("write a % itself as %25"));
        };
        let decoded = u8::try_from(high * 16 + low).unwrap_or_default();
        if decoded == 0 {
            return Err(invalid("it contains a NUL character"));
        }
        bytes.push(decoded);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| invalid("its percent-encoded bytes are not valid UTF-8"))
}

/// `key=value key = 'other \'value\''`.
fn parse_pairs(text: &str) -> Result<Pairs> {
    let mut pairs = Pairs::new();
    let mut rest = text.trim_ascii_start();
    while !rest.is_empty() {
        // A word without = after it may be the second word of a password that needs quotes, so it isn't repeated.
        let (key, after) = rest.split_once('=').ok_or_else(no_value)?;
        let key = key.trim_ascii_end();
        if key.is_empty() || key.contains(|character: char| character.is_ascii_whitespace()) {
            return Err(no_value());
        }
        let (value, after) = take_value(after.trim_ascii_start())?;
        pairs.push(named(key, value));
        rest = after.trim_ascii_start();
    }
    Ok(pairs)
}

fn no_value() -> Error {
    invalid("a word among the key=value pairs has no =")
        .with_hint("a value with spaces needs quotes: key='a value'")
}

/// A value up to a space, or in quotes. After a backslash, the next character is taken literally.
fn take_value(text: &str) -> Result<(String, &str)> {
    let is_quoted = text.starts_with('\'');
    let start = usize::from(is_quoted);
    let mut value = String::new();
    let mut characters = text[start..].char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            '\'' if is_quoted => return Ok((value, &text[start + at + 1..])),
            space if space.is_ascii_whitespace() && !is_quoted => return Ok((value, &text[start + at..])),
            other => value.push(other),
        }
    }
    if is_quoted { Err(invalid("a quote is not closed")) } else { Ok((value, "")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn urls_are_taken_apart() {
        for (text, expected) in [
            ("postgres://", &[][..]),
            ("postgresql:///app", &[("dbname", "app")]),
            ("postgres://db.example", &[("host", "db.example")]),
            ("postgres://me@/app", &[("user", "me"), ("dbname", "app")]),
            (
                "postgres://me:p%40ss%2Fw%3Frd@h:6432/app?sslmode=require&application_name=a%20b+c",
                &[
                    ("user", "me"),
                    ("password", "p@ss/w?rd"),
                    ("host", "h"),
                    ("port", "6432"),
                    ("dbname", "app"),
                    ("sslmode", "require"),
                    ("application_name", "a b+c"),
                ],
            ),
            (
                "postgres://me:p@ss@h/app",
                &[("user", "me"), ("password", "p@ss"), ("host", "h"), ("dbname", "app")],
            ),
            ("postgres://a:1,b,[::1]:3/x", &[("host", "a,b,::1"), ("port", "1,,3"), ("dbname", "x")]),
            ("postgres://%2Frun%2Fpg:5433/x", &[("host", "/run/pg"), ("port", "5433"), ("dbname", "x")]),
            (
                "postgres:///x?host=/run/pg&port=5433",
                &[("dbname", "x"), ("host", "/run/pg"), ("port", "5433")],
            ),
            ("postgres://h?ssl=true", &[("host", "h"), ("sslmode", "require")]),
            ("postgres://h/x?options=-c%20a=b", &[("host", "h"), ("dbname", "x"), ("options", "-c a=b")]),
            ("postgres://h/x?user=a@b", &[("host", "h"), ("dbname", "x"), ("user", "a@b")]),
        ] {
            assert_eq!(parsed(text), pairs(expected), "{text}");
        }
    }

    #[test]
    fn key_value_pairs_are_taken_apart() {
        for (text, expected) in [
            ("host=h", &[("host", "h")][..]),
            ("  host = h   port=1 ", &[("host", "h"), ("port", "1")]),
            (r"password='it\'s \\ here' user=me", &[("password", r"it's \ here"), ("user", "me")]),
            (r"password=a\ b\'c user=''", &[("password", "a b'c"), ("user", "")]),
            ("password=postgres://x dbname=a=b", &[("password", "postgres://x"), ("dbname", "a=b")]),
            ("password='x'user=me", &[("password", "x"), ("user", "me")]),
        ] {
            assert_eq!(parsed(text), pairs(expected), "{text}");
        }
    }

    #[test]
    fn anything_else_is_the_name_of_a_database() {
        assert_eq!(parsed(" my_app "), pairs(&[("dbname", "my_app")]));
        assert_eq!(parsed(""), []);
    }

    #[test]
    fn invalid_text_is_rejected_without_being_quoted() {
        for text in [
            "mysql://me:hunter2@h/app",
            "postgres:/me:hunter2@h/app",
            "postgres:me:hunter2@h/app",
            "me:hunter2@h/app",
            "postgres://me:hunt/er2@h/app",
            "postgres://me:12?hunter2@h/app",
            "postgres://h/app?hunter2",
            "postgres://me:hunter2%@h/app",
            "postgres://me:hunter2%0@h/app",
            "postgres://me:hunter2%00@h/app",
            "postgres://me:hunter2%ff@h/app",
            "postgres://me:hunter2@[::1/app",
            "postgres://me:hunter2@[::1]x/app",
            "password=my hunter2",
            "password='hunter2",
            "password=my hunter2 user=x",
            "=hunter2",
            "dbname=a\0hunter2",
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.is_config(), "{error}");
            assert!(!error.to_string().contains("hunt") && !error.to_string().contains("er2"), "{error}");
        }
    }
}
