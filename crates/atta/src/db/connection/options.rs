//! The options of a connection, by libpq's names, and their sources: the string, then the service, then the
//! environment, then the defaults.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::parse::{self, Pairs};
use super::service;
use crate::{Error, Result};

/// Environment variables, by name.
pub(super) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Values by libpq's names of the options. None is empty.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Options {
    values: BTreeMap<&'static str, String>,
}

/// The options that we support, each with its environment variable.
const KNOWN: &[(&str, &str)] = &[
    ("application_name", "PGAPPNAME"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("client_encoding", ""),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("dbname", "PGDATABASE"),
    ("fallback_application_name", ""),
    ("gssencmode", "PGGSSENCMODE"),
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("keepalives", ""),
    ("keepalives_count", ""),
    ("keepalives_idle", ""),
    ("keepalives_interval", ""),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS"),
    ("options", "PGOPTIONS"),
    ("passfile", "PGPASSFILE"),
    ("password", "PGPASSWORD"),
    ("port", "PGPORT"),
    ("service", "PGSERVICE"),
    ("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION"),
    ("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION"),
    ("sslcert", "PGSSLCERT"),
    ("sslcertmode", "PGSSLCERTMODE"),
    ("sslcompression", "PGSSLCOMPRESSION"),
    ("sslcrl", "PGSSLCRL"),
    ("sslkey", "PGSSLKEY"),
    ("sslmode", "PGSSLMODE"),
    ("sslnegotiation", "PGSSLNEGOTIATION"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslsni", "PGSSLSNI"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("tcp_user_timeout", ""),
    ("user", "PGUSER"),
];

/// The options that libpq has and we do not support. Those with a variable request a security feature that would
/// otherwise be missing silently.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("gssdelegation", ""),
    ("gsslib", ""),
    ("krbsrvname", ""),
    ("max_protocol_version", ""),
    ("min_protocol_version", ""),
    ("replication", ""),
    ("require_auth", "PGREQUIREAUTH"),
    ("requirepeer", "PGREQUIREPEER"),
    ("requiressl", ""),
    ("sslcrldir", "PGSSLCRLDIR"),
    ("sslpassword", ""),
];

/// Where Debian's and most other packages put the socket.
const SOCKET_FOLDER: &str = "/var/run/postgresql";

impl Options {
    /// Everything that can be known before connecting.
    pub(super) fn resolve(text: &str, variables: Variables<'_>) -> Result<Options> {
        let mut options = Options { values: BTreeMap::new() };
        for (key, value) in parse::parse(text)? {
            options.values.insert(known(&key)?, value);
        }
        options.add_service(variables)?;
        options.add_environment(variables)?;
        options.values.retain(|_, value| !value.is_empty());
        options.add_defaults(variables)?;
        Ok(options)
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    pub(super) fn set(&mut self, key: &'static str, value: impl Into<String>) {
        self.values.insert(key, value.into());
    }

    /// All options, including the password, as libpq itself knows them, except for the default application name.
    pub(super) fn for_libpq(&self) -> BTreeMap<&'static str, String> {
        let mut values = self.values.clone();
        values.remove("fallback_application_name");
        // Node's name for an sslmode: any certificate is accepted, even if there is one to check it against.
        if self.get("sslmode") == Some("no-verify") {
            values.insert("sslmode", "require".into());
            values.remove("sslrootcert");
        }
        values
    }

    /// All options, including the password, as a connection string.
    pub(super) fn to_text(&self) -> String {
        let quote = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
        let pairs = self.values.iter().map(|(key, value)| format!("{key}='{}'", quote(value)));
        pairs.collect::<Vec<_>>().join(" ")
    }

    fn add_service(&mut self, variables: Variables<'_>) -> Result<()> {
        let named = self.values.remove("service").or_else(|| variables("PGSERVICE"));
        let Some(name) = named.filter(|name| !name.is_empty()) else { return Ok(()) };
        self.add(service::read(&name, variables)?)
    }

    /// Adds the options that are not set yet.
    fn add(&mut self, pairs: Pairs) -> Result<()> {
        // If a host is set, the address of another host must not be used for it.
        let has_host = self.values.contains_key("host");
        for (key, value) in pairs {
            let key = known(&key)?;
            if key == "hostaddr" && has_host {
                continue;
            }
            self.values.entry(key).or_insert(value);
        }
        Ok(())
    }

    fn add_environment(&mut self, variables: Variables<'_>) -> Result<()> {
        let set = |variable: &str| {
            let value = if variable.is_empty() { None } else { variables(variable) };
            value.filter(|value| !value.is_empty())
        };
        if let Some((_, variable)) = UNSUPPORTED.iter().find(|(_, variable)| set(variable).is_some()) {
            return Err(Error::config(format!("environment variable {variable} is not supported"))
                .with_hint(format!("unset {variable}")));
        }
        let pairs = KNOWN.iter().filter(|(key, _)| *key != "service");
        self.add(pairs.filter_map(|(key, variable)| Some(((*key).into(), set(variable)?))).collect())
    }

    fn add_defaults(&mut self, variables: Variables<'_>) -> Result<()> {
        if self.get("user").is_none() {
            let user = whoami::username().ok().or_else(|| variables("USER")).filter(|user| !user.is_empty());
            self.set(
                "user",
                user.ok_or_else(|| {
                    Error::config("no user was given, and the user of this process has no name")
                        .with_hint("give it in the connection string, or set PGUSER")
                })?,
            );
        }
        if self.get("dbname").is_none() {
            self.set("dbname", self.values["user"].clone());
        }
        if self.get("host").is_none() {
            let host = self.get("hostaddr").map_or_else(|| self.default_host(), str::to_owned);
            self.set("host", host);
        }
        if self.get("application_name").is_none()
            && let Some(name) = self.values.remove("fallback_application_name")
        {
            self.set("application_name", name);
        }
        self.add_default_files(variables);
        Ok(())
    }

    /// A Unix socket if there may be one, as in libpq; otherwise this machine.
    pub(super) fn default_host(&self) -> String {
        let port = self.get("port").unwrap_or("5432");
        if cfg!(unix) && Path::new(SOCKET_FOLDER).is_dir() {
            return SOCKET_FOLDER.into();
        }
        let is_in_tmp = cfg!(unix) && Path::new("/tmp").join(format!(".s.PGSQL.{port}")).exists();
        if is_in_tmp { "/tmp".into() } else { "localhost".into() }
    }

    /// Files at their default places, if they exist.
    fn add_default_files(&mut self, variables: Variables<'_>) {
        let Some(home) = variables("HOME").filter(|home| !home.is_empty()).map(PathBuf::from) else { return };
        let mut add = |key, path: PathBuf| {
            if !self.values.contains_key(key) && fs::exists(&path).unwrap_or(false) {
                self.values.insert(key, path.display().to_string());
            }
        };
        add("passfile", home.join(".pgpass"));
        add("sslrootcert", home.join(".postgresql/root.crt"));
        add("sslcrl", home.join(".postgresql/root.crl"));
        add("sslcert", home.join(".postgresql/postgresql.crt"));
        add("sslkey", home.join(".postgresql/postgresql.key"));
    }
}

/// The name under which an option is stored.
fn known(key: &str) -> Result<&'static str> {
    // The driver's own name for it.
    let key = if key == "keepalives_retries" { "keepalives_count" } else { key };
    if let Some((known, _)) = KNOWN.iter().find(|(known, _)| *known == key) {
        return Ok(known);
    }
    if UNSUPPORTED.iter().any(|(unsupported, _)| *unsupported == key) {
        return Err(Error::config(format!("connection option {key} is not supported")));
    }
    let is_plain = key.len() <= 40 && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    Err(match is_plain {
        true => Error::config(format!("unknown connection option {key}")),
        false => Error::config("unknown connection option"),
    }
    .with_hint("the options are libpq's: https://www.postgresql.org/docs/current/libpq-connect.html"))
}
