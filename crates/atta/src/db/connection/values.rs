//! Reads the values of options: the servers, and the driver's configuration.

use std::net::IpAddr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host};

use super::options::Options;
use super::{Server, SessionKind};
use crate::{Error, Result};

/// The name of connections that neither belong to a worker nor have a name from the user.
const APPLICATION_NAME: &str = "atta";

/// After how long without an answer a connection counts as lost. It must be shorter than the default recovery threshold
/// of 30 seconds.
pub(super) const SILENCE: Duration = Duration::from_secs(20);

pub(super) fn config(options: &Options) -> Result<Config> {
    let mut config = Config::new();
    config.user(options.get("user").unwrap_or_default());
    config.dbname(options.get("dbname").unwrap_or_default());
    if let Some(password) = options.get("password") {
        config.password(password);
    }
    if let Some(more) = options.get("options") {
        config.options(more);
    }
    config.application_name(options.get("application_name").unwrap_or(APPLICATION_NAME));
    config.channel_binding(chosen(
        options,
        "channel_binding",
        &[
            ("prefer", ChannelBinding::Prefer),
            ("disable", ChannelBinding::Disable),
            ("require", ChannelBinding::Require),
        ],
    )?);
    // Neither option changes anything here, but values that can't be supported must be rejected.
    chosen(options, "gssencmode", &[("disable", ()), ("prefer", ())])?;
    chosen(
        options,
        "client_encoding",
        &[("auto", ()), ("utf8", ()), ("UTF8", ()), ("UTF-8", ()), ("utf-8", ())],
    )?;
    set_liveness(&mut config, options)?;
    Ok(config)
}

/// Sets how lost connections are detected.
fn set_liveness(config: &mut Config, options: &Options) -> Result<()> {
    let seconds = |key| Ok::<_, Error>(number::<u32>(options, key)?.map(|s| Duration::from_secs(s.into())));
    config.keepalives(number::<i32>(options, "keepalives")? != Some(0));
    // Zero selects the system's own default, as in libpq.
    let zero = |duration: &Duration| !duration.is_zero();
    config.keepalives_idle(seconds("keepalives_idle")?.filter(zero).unwrap_or(SILENCE));
    if let Some(interval) = seconds("keepalives_interval")?.filter(zero) {
        config.keepalives_interval(interval);
    }
    if let Some(count) = number::<u32>(options, "keepalives_count")?.filter(|count| *count > 0) {
        config.keepalives_retries(count);
    }
    match number::<u32>(options, "tcp_user_timeout")? {
        None => config.tcp_user_timeout(SILENCE),
        Some(0) => config,
        Some(milliseconds) => config.tcp_user_timeout(Duration::from_millis(milliseconds.into())),
    };
    Ok(())
}

pub(super) fn servers(options: &Options) -> Result<Vec<Server>> {
    let list = |key| options.get(key).map(|value| value.split(',').map(str::trim).collect::<Vec<_>>());
    let hosts = list("host").unwrap_or_else(|| vec![""]);
    let addresses = list("hostaddr").unwrap_or_else(|| vec![""; hosts.len()]);
    let ports = list("port").unwrap_or_else(|| vec![""]);
    if addresses.len() != hosts.len() {
        let (found, wanted) = (addresses.len(), hosts.len());
        return Err(Error::config(format!("hostaddr has {found} entries for {wanted} hosts")));
    }
    if ports.len() != 1 && ports.len() != hosts.len() {
        let (found, wanted) = (ports.len(), hosts.len());
        return Err(Error::config(format!("port has {found} entries for {wanted} hosts")));
    }
    let mut servers = Vec::with_capacity(hosts.len());
    for (index, (host, address)) in hosts.iter().zip(&addresses).enumerate() {
        let host = match (*host, *address) {
            ("", "") => options.default_host(),
            ("", address) => address.to_owned(),
            (host, _) => host.to_owned(),
        };
        let port = ports.get(index).or_else(|| ports.first()).copied().unwrap_or_default();
        servers.push(Server { host: to_host(&host), address: to_address(address)?, port: to_port(port)? });
    }
    Ok(servers)
}

fn to_host(text: &str) -> Host {
    #[cfg(unix)]
    if text.starts_with('/') {
        return Host::Unix(text.into());
    }
    Host::Tcp(text.into())
}

fn to_address(text: &str) -> Result<Option<IpAddr>> {
    if text.is_empty() {
        return Ok(None);
    }
    let address =
        text.parse().map_err(|_| Error::config(format!("hostaddr is not an IP address: {text:?}")))?;
    Ok(Some(address))
}

/// The text in the place of a port may be half of a password, so the error does not repeat it.
fn to_port(text: &str) -> Result<u16> {
    match text.parse() {
        _ if text.is_empty() => Ok(5432),
        Ok(port) if port > 0 => Ok(port),
        _ => Err(Error::config("invalid connection string: the port is not a number from 1 to 65535").with_hint(
            "if the password has special characters, write them percent-encoded: @ is %40, / is %2F, : is %3A",
        )),
    }
}

pub(super) fn session(options: &Options) -> Result<SessionKind> {
    use SessionKind::{Any, PreferStandby, Primary, ReadOnly, ReadWrite, Standby};
    chosen(
        options,
        "target_session_attrs",
        &[
            ("any", Any),
            ("read-write", ReadWrite),
            ("read-only", ReadOnly),
            ("primary", Primary),
            ("standby", Standby),
            ("prefer-standby", PreferStandby),
        ],
    )
}

/// Chooses one of a few words; the first of them if none is given.
pub(crate) fn choose<T: Copy>(key: &str, given: Option<&str>, choices: &[(&str, T)]) -> Result<T> {
    let given = given.unwrap_or(choices[0].0);
    choices.iter().find(|(word, _)| *word == given).map(|(_, choice)| *choice).ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        Error::config(format!("{key} is {given:?}, and must be one of: {}", words.join(", ")))
    })
}

pub(super) fn chosen<T: Copy>(options: &Options, key: &str, choices: &[(&str, T)]) -> Result<T> {
    choose(key, options.get(key), choices)
}

pub(super) fn number<T: std::str::FromStr>(options: &Options, key: &str) -> Result<Option<T>> {
    options
        .get(key)
        .map(|text| text.trim().parse())
        .transpose()
        .map_err(|_| Error::config(format!("{key} is not a whole number, or out of range")))
}
