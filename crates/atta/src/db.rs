//! The schema that everything lives in, and the one place where its name enters a statement; and below it, the way to
//! the database: settings, TLS, connecting, pools, and what lies in between.

pub(crate) mod connection;
pub(crate) mod tls;
pub(crate) mod connect;
pub(crate) mod connect_failure;
pub(crate) mod pool;
mod read_only;
pub(crate) mod link;

pub use connection::ConnectionSettings;

use crate::{Error, Result};

/// The marker in the body of every function of ours: with it a worker knows whose functions a schema has.
pub(crate) const FUNCTIONS_MARKER: &str = "atta functions, revision 2";

/// A job as JSON text: what many statements give back. They name the row `job`, and its names `names`. Times are in UTC,
/// whatever the session has: the offsets of old ones have seconds, or fall before the year 1. Those that chrono does not
/// know, infinity too, become the nearest that it does.
const JOB_JSON: &str = include_str!("../sql/queries/job_json.sql");

/// The name of a job's state. Besides `job` there is its `queue`, if it is in one.
const JOB_STATE: &str = include_str!("../sql/queries/job_state.sql");

/// Names and numbers of jobs by state, for an object; the state is `state.name`.
const JOB_COUNTS: &str = include_str!("../sql/queries/job_counts.sql");

/// The columns of a filter of jobs, and what a job must be like to get through it.
const JOB_FILTER: &str = include_str!("../sql/queries/job_filter.sql");
const JOB_MATCHES: &str = include_str!("../sql/queries/job_matches.sql");

/// The PostgreSQL schema with the jobs in it: `graphile_worker`, unless told otherwise.
///
/// Any name that PostgreSQL allows will do, quotes and spaces included.
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
    /// Checks what PostgreSQL would silently cut off or refuse later: 1 to 63 bytes, no NUL, not `pg_…`.
    pub fn new(name: impl Into<String>) -> Result<Schema> {
        let name = name.into();
        let wrong = if name.is_empty() {
            "it is empty".to_owned()
        } else if name.len() > 63 {
            format!("it has {} bytes, and PostgreSQL allows 63", name.len())
        } else if name.contains('\0') {
            "it contains a NUL character".to_owned()
        } else if name.starts_with("pg_") {
            "PostgreSQL keeps names that start with pg_ for itself".to_owned()
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

    /// Fills a statement of `sql/`: `{schema}` is the quoted name, `{schema_text}` the name as a text literal,
    /// `{schema_in_text}` the quoted name for use inside a literal, `$atta$` the quotes around a body.
    pub(crate) fn fill(&self, template: &str) -> String {
        self.fill_with(template, &[])
    }

    /// [`Schema::fill`] with more placeholders than the usual ones.
    pub(crate) fn fill_with(&self, template: &str, more: &[(&str, String)]) -> String {
        let quoted = self.quoted();
        let mut tag = self.body_tag();
        while more.iter().any(|(_, value)| value.contains(&tag)) {
            tag.insert(1, 'x');
        }
        let usual = [
            ("$atta$", tag),
            ("{functions_marker}", FUNCTIONS_MARKER.to_owned()),
            ("{job_json}", JOB_JSON.trim_end().to_owned()),
            ("{job_state}", JOB_STATE.trim_end().to_owned()),
            ("{job_counts}", JOB_COUNTS.trim_end().to_owned()),
            ("{job_filter}", JOB_FILTER.trim_end().to_owned()),
            ("{job_matches}", JOB_MATCHES.trim_end().to_owned()),
            ("{schema_text}", quote_literal(&self.name)),
            ("{schema_in_text}", quoted.replace('\'', "''")),
            ("{schema}", quoted),
        ];
        // One pass, so that a name that looks like a placeholder is not filled in its turn.
        let mut filled = String::with_capacity(template.len() + template.len() / 4);
        let mut rest = template;
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

    /// What quotes the bodies of functions: `$atta$`, or another tag if the name should happen to contain that one.
    pub(crate) fn body_tag(&self) -> String {
        let mut tag = "$atta$".to_owned();
        while self.name.contains(&tag) {
            tag.insert(1, 'x');
        }
        tag
    }
}

/// `a"b` becomes `"a""b"`.
pub(crate) fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `o'clock` becomes `'o''clock'`. A text with a backslash is written so that `standard_conforming_strings` does not matter.
pub(crate) fn quote_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match text.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', r"\\")),
        false => format!("'{quoted}'"),
    }
}

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
