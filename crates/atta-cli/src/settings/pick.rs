//! Picks one value among flag, variable, file and default, and records which it was.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use clap::parser::ValueSource;
use serde::Serialize;
use serde_json::Value;

use super::{Sources, Span, without_secrets};
use crate::args::Connection;
use crate::output::Failure;

/// One setting, for display.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: &'static str,
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(&'static str),
    Environment(String),
    File(PathBuf),
    Dev,
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(name) => f.write_str(name),
            Origin::Environment(name) => write!(f, "${name}"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Dev => f.write_str(".atta/connection"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// The values of a setting from flag and file.
pub(super) struct Given<T> {
    name: &'static str,
    flag: Option<T>,
    file: Option<T>,
}

impl<T> Given<T> {
    pub(super) fn flag(name: &'static str, flag: Option<T>) -> Given<T> {
        Given { name, flag, file: None }
    }

    pub(super) fn file_only(file: Option<T>) -> Given<T> {
        Given { name: "", flag: None, file }
    }

    pub(super) fn file(mut self, file: Option<T>) -> Given<T> {
        self.file = file;
        self
    }
}

pub(super) struct Picker {
    file: PathBuf,
    pub(super) entries: Vec<Entry>,
}

impl Picker {
    pub(super) fn new(file: PathBuf) -> Picker {
        Picker { file, entries: Vec::new() }
    }

    /// Records the connection and the schema, which were picked while the command line was parsed.
    pub(super) fn note_connection(&mut self, connection: &Connection, sources: &Sources) {
        let origin = |source, flag, variable: &str| match source {
            Some(ValueSource::CommandLine) => Origin::Flag(flag),
            Some(ValueSource::EnvVariable) => Origin::Environment(variable.into()),
            _ => Origin::Default,
        };
        let mut from = origin(sources.connection, "--connection", "DATABASE_URL");
        if from == Origin::Default && connection.connection.is_some() {
            from = if sources.is_dev { Origin::Dev } else { Origin::File(self.file.clone()) };
        } else if from == Origin::Default && env::var_os("PGDATABASE").is_some() {
            from = Origin::Environment("PGDATABASE".into());
        }
        let shown = connection.connection.as_deref().map(without_secrets);
        self.note("connection", &shown, from);
        let mut from = origin(sources.schema, "--schema", "GRAPHILE_WORKER_SCHEMA");
        if from == Origin::Default && sources.schema_is_from_file {
            from = Origin::File(self.file.clone());
        }
        self.note("schema", &connection.schema, from);
    }

    pub(super) fn pick<T: Clone + FromStr<Err: fmt::Display> + Serialize>(
        &mut self,
        key: &'static str,
        given: Given<T>,
        default: T,
    ) -> Result<T, Failure> {
        self.pick_by(key, given, default, |text| text.parse().map_err(|error: T::Err| error.to_string()))
    }

    /// Picks one of a few words.
    pub(super) fn choice<T: Clone + ValueEnum + Serialize>(
        &mut self,
        key: &'static str,
        given: Given<T>,
        default: T,
    ) -> Result<T, Failure> {
        self.pick_by(key, given, default, |text| T::from_str(text, true))
    }

    pub(super) fn at_least_one(
        &mut self,
        key: &'static str,
        given: Given<usize>,
        default: usize,
    ) -> Result<usize, Failure> {
        match self.pick(key, given, default)? {
            0 => {
                let origin = self.entries.last().map_or(Origin::Default, |entry| entry.origin.clone());
                Err(Failure::new(format!("{key} must be at least 1 (from {origin})")))
            }
            number => Ok(number),
        }
    }

    pub(super) fn span(
        &mut self,
        key: &'static str,
        given: Given<Span>,
        default: Duration,
    ) -> Result<Duration, Failure> {
        self.pick(key, given, Span(default)).map(|span| span.0)
    }

    /// Picks a duration that may be absent.
    pub(super) fn optional(
        &mut self,
        key: &'static str,
        file: Option<Span>,
    ) -> Result<Option<Duration>, Failure> {
        let parse = |text: &str| text.parse().map(Some).map_err(|error: &str| error.to_owned());
        let picked: Option<Span> = self.pick_by(key, Given::file_only(file.map(Some)), None, parse)?;
        Ok(picked.map(|span| span.0))
    }

    /// Picks a path, whose default has the name of the key.
    pub(super) fn path(
        &mut self,
        key: &'static str,
        flag_name: &'static str,
        flag: &Option<PathBuf>,
        file: &Option<PathBuf>,
    ) -> Result<PathBuf, Failure> {
        self.pick(key, Given::flag(flag_name, flag.clone()).file(file.clone()), key.into())
    }

    /// Picks a list. In a variable, it is separated by commas.
    pub(super) fn list(
        &mut self,
        key: &'static str,
        given: Given<Vec<String>>,
    ) -> Result<Vec<String>, Failure> {
        let split = |text: &str| {
            Ok(text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect())
        };
        self.pick_by(key, given, Vec::new(), split)
    }

    /// Picks a table, which only the file can contain.
    pub(super) fn time_limits(&mut self, file: Option<BTreeMap<String, Span>>) -> BTreeMap<String, Duration> {
        let origin = if file.is_some() { Origin::File(self.file.clone()) } else { Origin::Default };
        let table = file.unwrap_or_default();
        self.note("time_limits", &table, origin);
        table.into_iter().map(|(task, span)| (task, span.0)).collect()
    }

    /// Picks the log filter. `RUST_LOG` is the usual variable of Rust programs; the others are Graphile's.
    pub(super) fn log(&mut self, file: Option<String>) -> String {
        let said = |name: &'static str| {
            let value = env::var(name).ok().filter(|value| !value.is_empty())?;
            Some((value, Origin::Environment(name.into())))
        };
        let debug = |name| said(name).map(|(_, origin)| ("debug".to_owned(), origin));
        let (value, origin) = ["ATTA_LOG", "RUST_LOG"]
            .into_iter()
            .find_map(said)
            .or_else(|| ["GRAPHILE_LOGGER_DEBUG", "GRAPHILE_WORKER_DEBUG"].into_iter().find_map(debug))
            .or_else(|| Some((file?, Origin::File(self.file.clone()))))
            .unwrap_or_else(|| ("info".into(), Origin::Default));
        self.note("log", &value, origin);
        value
    }

    /// Whether the last picked setting differs from the default.
    pub(super) fn last_is_given(&self) -> bool {
        self.entries.last().is_some_and(|entry| entry.origin != Origin::Default)
    }

    fn pick_by<T: Clone + Serialize>(
        &mut self,
        key: &'static str,
        given: Given<T>,
        default: T,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Failure> {
        let name = format!("ATTA_{}", key.to_ascii_uppercase());
        let (value, origin) = if let Some(value) = given.flag {
            (value, Origin::Flag(given.name))
        } else if let Some(text) = env::var(&name).ok().filter(|text| !text.is_empty()) {
            let value = parse(&text).map_err(|error| {
                Failure::new(format!("the variable {name} has an invalid value ({text:?}): {error}"))
            })?;
            (value, Origin::Environment(name))
        } else if let Some(value) = given.file {
            (value, Origin::File(self.file.clone()))
        } else {
            (default, Origin::Default)
        };
        self.note(key, &value, origin);
        Ok(value)
    }

    fn note(&mut self, key: &'static str, value: &impl Serialize, origin: Origin) {
        // Paths that are not UTF-8 can't be shown as JSON.
        let value = serde_json::to_value(value).unwrap_or(Value::Null);
        self.entries.push(Entry { key, value, origin });
    }
}
