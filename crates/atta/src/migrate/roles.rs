//! Database roles with fewer rights than the owner of the tables: a producer role, a worker role and a reader role.
//!
//! This module only generates the SQL, for the owner of the database to read and run. A migration must not decide who
//! gets which rights.

use crate::db::{quote_identifier, quote_literal};
use crate::{Error, Result, Schema};

/// The suffixes of the role names. The longest one limits the length of the prefix.
const PRODUCER: &str = "_producer";
const WORKER: &str = "_worker";
const READER: &str = "_reader";
const ADD_SCHEMA: &str = "_add";

/// The error handler of the producer role's functions, and its variables.
const HANDLER: &str = include_str!("../../sql/roles/handler.sql");
const HANDLER_VARIABLES: &str = include_str!("../../sql/roles/handler_variables.sql");

/// PostgreSQL truncates longer names.
const LONGEST_NAME: usize = 63;

/// The SQL that creates three roles for an installed schema and grants them their rights. Needs no database. The SQL
/// may be run any number of times, and must be run again after a migration that created new tables.
///
/// The role names begin with `role_prefix`; the name of the schema is a good choice. These roles can't log in: grant
/// them to roles that can.
///
/// - `…_producer` (producer role) adds jobs, by functions in a separate schema `…_add`. The functions have Graphile's
///   names and arguments and run as the owner of the tables. The role has no rights on the tables, and sees nothing of
///   a job except the values that it passed itself.
/// - `…_worker` (worker role) may do everything that a worker does, and may not alter tables.
/// - `…_reader` (reader role) reads everything and changes nothing.
pub fn roles_sql(schema: &Schema, role_prefix: &str) -> Result<String> {
    check(role_prefix)?;
    let name = |suffix: &str| format!("{role_prefix}{suffix}");
    let (producer, worker, reader, add_schema) =
        (name(PRODUCER), name(WORKER), name(READER), name(ADD_SCHEMA));
    let values = [
        ("{producer}", quote_identifier(&producer)),
        ("{worker}", quote_identifier(&worker)),
        ("{reader}", quote_identifier(&reader)),
        ("{producer_text}", quote_literal(&producer)),
        ("{worker_text}", quote_literal(&worker)),
        ("{reader_text}", quote_literal(&reader)),
        ("{add_schema}", quote_identifier(&add_schema)),
        ("{add_schema_text}", quote_literal(&add_schema)),
        ("{add_schema_in_text}", quote_identifier(&add_schema).replace('\'', "''")),
        ("{handler_variables}", HANDLER_VARIABLES.trim_end().to_owned()),
        ("{handler}", HANDLER.trim_end().to_owned()),
    ];
    let parts = [
        include_str!("../../sql/roles/prepare.sql"),
        include_str!("../../sql/roles/worker_and_reader.sql"),
        include_str!("../../sql/roles/producer.sql"),
    ];
    let filled: Vec<String> = parts.iter().map(|part| schema.fill_with(part, &values)).collect();
    Ok(filled.join("\n"))
}

fn check(role_prefix: &str) -> Result<()> {
    let most = LONGEST_NAME - WORKER.len();
    let wrong = if role_prefix.is_empty() {
        "it is empty".to_owned()
    } else if role_prefix.len() > most {
        format!("it has {} bytes, but only {most} fit beside the rest of the names", role_prefix.len())
    } else if role_prefix.contains('\0') {
        "it contains a NUL character".to_owned()
    } else if role_prefix.starts_with("pg_") {
        "names that start with pg_ are reserved by PostgreSQL".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::config(format!("invalid role prefix {role_prefix:?}: {wrong}"))
        .with_hint("choose another one: --role-prefix NAME"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_always_quoted_and_never_in_a_comment() {
        let name = "a\"; drop table x; --\n'$atta$";
        let schema = Schema::new(name).unwrap();
        let sql = roles_sql(&schema, name).unwrap();
        assert!(sql.contains(r#""a""; drop table x; --"#) && !sql.contains(r#" "a"; drop"#), "{sql}");
        for line in sql.lines().filter(|line| line.trim_start().starts_with("--")) {
            assert!(!line.contains("drop table"), "{line}");
        }
        assert!(sql.contains("$xatta$"), "{sql}");
    }

    #[test]
    fn refuses_prefixes_that_postgres_would_cut_or_refuse() {
        for prefix in ["", "pg_jobs", "a\0b", &"x".repeat(57)] {
            let error = roles_sql(&Schema::default(), prefix).unwrap_err();
            assert!(error.is_config() && error.hint().unwrap().contains("--role-prefix"), "{prefix:?}");
        }
        roles_sql(&Schema::default(), &"x".repeat(56)).unwrap();
    }
}
