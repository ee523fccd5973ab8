//! The schema that contains all tables and functions, and the one place where its name is inserted into a statement.
//! The modules below handle the access to the database: settings, TLS, connecting, pools, and poolers in between.

pub(crate) mod connection;
pub(crate) mod tls;
pub(crate) mod connect;
pub(crate) mod connect_failure;
mod fragments;
pub(crate) mod pool;
pub(crate) mod lease;
mod read_only;
pub(crate) mod link;

pub use connection::{ConnectionData, ConnectionSettings};

use chrono::{DateTime, Utc};
use deadpool_postgres::Object;

use crate::{Error, Result};

/// The marker in the body of every function of ours, by which a worker recognizes our functions in a schema.
pub(crate) const FUNCTIONS_MARKER: &str = "atta functions, revision 2";

/// The PostgreSQL schema that contains the jobs. Default: `graphile_worker`.
///
/// Any name that PostgreSQL allows is valid, including quotes and spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    name: String,
}

impl Default for Schema {
    fn default() -> Schema {
        Schema { name: "graphile_worker".into() }
    }
}

impl Schema {
    /// Rejects names that PostgreSQL would silently truncate or refuse later: 1 to 63 bytes, no NUL, not `pg_…`.
    pub fn new(name: impl Into<String>) -> Result<Schema> {
        let name = name.into();
        let wrong = if name.is_empty() {
            "it is empty".to_owned()
        } else if name.len() > 63 {
            format!("it has {} bytes, but PostgreSQL allows at most 63", name.len())
        } else if name.contains('\0') {
            "it contains a NUL character".to_owned()
        } else if name.starts_with("pg_") {
            "names that start with pg_ are reserved by PostgreSQL".to_owned()
        } else {
            return Ok(Schema { name });
        };
        Err(Error::config(format!("invalid schema name {name:?}: {wrong}")))
    }

    /// The name as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name as an identifier in SQL, in double quotes.
    pub fn quoted(&self) -> String {
        quote_identifier(&self.name)
    }

    /// Fills the placeholders of a statement from `sql/`: the name of a fragment becomes its text, `{schema}` the quoted
    /// name, `{schema_text}` the name as a text literal, `{schema_in_text}` the quoted name for use inside of a
    /// literal, `$atta$` the quotes around a function body.
    pub(crate) fn fill(&self, template: &str) -> String {
        self.fill_with(template, &[])
    }

    /// [`Schema::fill`] with additional placeholders.
    pub(crate) fn fill_with(&self, template: &str, more: &[(&str, String)]) -> String {
        let quoted = self.quoted();
        let mut tag = self.body_tag();
        while more.iter().any(|(_, value)| value.contains(&tag)) {
            tag.insert(1, 'x');
        }
        let usual = [
            ("$atta$", tag),
            ("{functions_marker}", FUNCTIONS_MARKER.to_owned()),
            ("{schema_text}", quote_literal(&self.name)),
            ("{schema_in_text}", quoted.replace('\'', "''")),
            ("{schema}", quoted),
        ];
        // One pass, so that a name that looks like a placeholder is not replaced in turn.
        let mut filled = String::with_capacity(template.len() + template.len() / 4);
        let template = fragments::expand(template);
        let mut rest = &*template;
        while let Some(at) = rest.find(['{', '$']) {
            filled.push_str(&rest[..at]);
            rest = &rest[at..];
            let mut values = usual.iter().chain(more);
            match values.find(|(placeholder, _)| rest.starts_with(placeholder)) {
                Some((placeholder, value)) => {
                    filled.push_str(value);
                    rest = &rest[placeholder.len()..];
                }
                None => {
                    filled.push_str(&rest[..1]);
                    rest = &rest[1..];
                }
            }
        }
        filled + rest
    }

    /// The quotes of function bodies: `$atta$`, or another tag if the name of the schema contains that one.
    pub(crate) fn body_tag(&self) -> String {
        let mut tag = "$atta$".to_owned();
        while self.name.contains(&tag) {
            tag.insert(1, 'x');
        }
        tag
    }
}

/// The time by the database's clock, which decides when a job is due.
pub(crate) async fn read_clock(client: &Object) -> Result<DateTime<Utc>, tokio_postgres::Error> {
    let row = client.query_typed_one(include_str!("../sql/queries/read_clock.sql"), &[]).await?;
    Ok(row.get("now"))
}

/// `a"b` becomes `"a""b"`.
pub(crate) fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `o'clock` becomes `'o''clock'`. A text with a backslash is written so that `standard_conforming_strings` does not
/// matter.
pub(crate) fn quote_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match text.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', r"\\")),
        false => format!("'{quoted}'"),
    }
}

#[cfg(test)]
mod query_files;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_in_a_name_with_quotes_and_dollars() {
        let schema = Schema::new("o'$atta$ \"x").unwrap();
        let filled = schema.fill("{schema} {schema_text} '{schema_in_text}' $atta$ $atta$");
        assert_eq!(filled, r#""o'$atta$ ""x" 'o''$atta$ "x' '"o''$atta$ ""x"' $xatta$ $xatta$"#);
    }

    #[test]
    fn a_name_like_a_placeholder_is_not_filled_again() {
        let schema = Schema::new("{schema}").unwrap();
        assert_eq!(schema.fill("{schema_text} {schema}"), "'{schema}' \"{schema}\"");
    }

    #[test]
    fn refuses_names_that_postgres_would_cut_or_refuse() {
        for name in ["", "pg_jobs", "a\0b", &"x".repeat(64)] {
            assert!(Schema::new(name).unwrap_err().is_config(), "{name:?}");
        }
    }
}
