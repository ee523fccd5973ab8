//! The settings that result from a string, files and an environment, without connecting.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::values::SILENCE;
use super::*;

/// Resolves with the given variables only, and without a home directory.
fn resolve(text: &str, variables: &[(&str, &str)]) -> Result<ConnectionSettings> {
    let variables: HashMap<&str, &str> = variables.iter().copied().collect();
    ConnectionSettings::with_variables(text, |name| variables.get(name).map(|value| (*value).to_owned()))
}

fn shown(text: &str, variables: &[(&str, &str)]) -> String {
    resolve(text, variables).unwrap_or_else(|error| panic!("{text}: {error}")).to_string()
}

fn password(settings: &ConnectionSettings) -> &str {
    str::from_utf8(settings.config().get_password().unwrap_or_default()).unwrap()
}

/// A folder that is removed with the test.
struct Home(PathBuf);

impl Home {
    fn new() -> Home {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("atta-home-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let home = Home(std::env::temp_dir().join(name));
        fs::create_dir_all(home.0.join(".postgresql")).unwrap();
        home
    }

    fn write(&self, file: &str, text: &str) -> String {
        let path = self.0.join(file);
        fs::write(&path, text).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        path.display().to_string()
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_string_wins_over_the_environment() {
    let environment = [
        ("PGHOST", "other"),
        ("PGPORT", "6432"),
        ("PGUSER", "you"),
        ("PGDATABASE", "theirs"),
        ("PGPASSWORD", "from-environment"),
        ("PGSSLMODE", "disable"),
    ];
    assert_eq!(shown("", &environment), "postgres://you@other:6432/theirs?sslmode=disable");
    assert_eq!(shown("mine", &environment), "postgres://you@other:6432/mine?sslmode=disable");
    assert_eq!(shown("postgres://me@h/x", &environment), "postgres://me@h:6432/x?sslmode=disable");
    let all = "postgres://me:own@h:1/x?sslmode=require";
    assert_eq!(shown(all, &environment), "postgres://me@h:1/x?sslmode=require");
    assert_eq!(password(&resolve(all, &environment).unwrap()), "own");
    assert_eq!(password(&resolve("x", &environment).unwrap()), "from-environment");
}

#[test]
fn a_service_overrides_the_environment_but_not_the_string() {
    let home = Home::new();
    home.write(".pg_service.conf", "[app]\nhost=service-host\nuser=service\nport=7000\nsslmode=disable\n");
    let environment = [("HOME", home.path()), ("PGSERVICE", "app"), ("PGHOST", "no"), ("PGDATABASE", "d")];
    assert_eq!(shown("", &environment), "postgres://service@service-host:7000/d?sslmode=disable");
    assert_eq!(shown("user=me", &environment), "postgres://me@service-host:7000/d?sslmode=disable");
    let by_string = [("HOME", home.path())];
    let text = "postgres:///x?service=app";
    assert_eq!(shown(text, &by_string), "postgres://service@service-host:7000/x?sslmode=disable");

    let file = home.write("services", "[machine]\nhost=m\nuser=u\ndbname=d\n");
    let given = [("PGSERVICEFILE", file.as_str())];
    assert_eq!(shown("service=machine", &given), "postgres://u@m:5432/d?sslmode=prefer");
    home.write("pg_service.conf", "[shared]\nhost=s\nuser=u\ndbname=d\n");
    let shared = [("PGSYSCONFDIR", home.path()), ("HOME", home.path())];
    assert_eq!(shown("service=shared", &shared), "postgres://u@s:5432/d?sslmode=prefer");

    let missing = resolve("service=nobody", &shared).unwrap_err();
    assert_eq!(missing.message(), "service \"nobody\" is not defined");
    let no_file = resolve("service=x", &[("PGSERVICEFILE", "/nowhere/services")]).unwrap_err();
    assert!(no_file.message().starts_with("can't read the service file /nowhere/services"), "{no_file}");
}

#[test]
fn settings_have_defaults() {
    let settings = resolve("postgres://me@h", &[]).unwrap();
    assert_eq!(settings.database(), "me", "the database is called like the user");
    assert_eq!(settings.to_string(), "postgres://me@h:5432/me?sslmode=prefer");
    assert_eq!(settings.connect_timeout(), Some(CONNECT_TIMEOUT));
    assert_eq!(settings.config().get_keepalives_idle(), SILENCE);
    let nothing = resolve("", &[]).unwrap();
    assert_eq!(nothing.servers().len(), 1);
    assert!(!nothing.user().is_empty());
}

#[test]
fn several_hosts_have_a_port_each_or_one_for_all() {
    for (text, expected) in [
        ("postgres://a,b:2/d?user=u", "postgres://u@a:5432,b:2/d?sslmode=prefer"),
        ("host=a,b port=7 user=u dbname=d", "postgres://u@a:7,b:7/d?sslmode=prefer"),
        ("host=a,b port=7,8 user=u dbname=d", "postgres://u@a:7,b:8/d?sslmode=prefer"),
        ("postgres://u@[::1]:3,[fe80::1]/d", "postgres://u@[::1]:3,[fe80::1]:5432/d?sslmode=prefer"),
    ] {
        assert_eq!(shown(text, &[]), expected, "{text}");
    }
    for (text, wrong) in [
        ("host=a,b port=1,2,3", "port has 3 entries for 2 hosts"),
        ("host=a,b hostaddr=127.0.0.1", "hostaddr has 1 entries for 2 hosts"),
        ("host=a hostaddr=a.example", "hostaddr is not an IP address: \"a.example\""),
    ] {
        assert_eq!(resolve(text, &[]).unwrap_err().message(), wrong, "{text}");
    }
}

#[test]
fn an_address_replaces_the_lookup_of_its_own_host_only() {
    let settings = resolve("host=db.example hostaddr=10.0.0.1 user=u", &[]).unwrap();
    assert_eq!(settings.servers()[0].address, Some("10.0.0.1".parse().unwrap()));
    assert_eq!(settings.servers()[0].host, Host::Tcp("db.example".into()));
    let alone = resolve("hostaddr=10.0.0.1 user=u", &[]).unwrap();
    assert_eq!(alone.servers()[0].host, Host::Tcp("10.0.0.1".into()));
    let environment = [("PGHOSTADDR", "10.0.0.1")];
    assert_eq!(resolve("host=elsewhere user=u", &environment).unwrap().servers()[0].address, None);
    let both = [("PGHOSTADDR", "10.0.0.1"), ("PGHOST", "db.example"), ("PGUSER", "u")];
    assert_eq!(resolve("d", &both).unwrap().servers()[0].address, Some("10.0.0.1".parse().unwrap()));
}

#[cfg(unix)]
#[test]
fn sockets_are_folders() {
    for text in ["postgres://u@%2Frun%2Fpg:6000/d", "postgres:///d?host=/run/pg&port=6000&user=u"] {
        let settings = resolve(text, &[]).unwrap();
        assert_eq!(settings.servers()[0].host, Host::Unix("/run/pg".into()), "{text}");
        assert_eq!(settings.to_string(), "postgres://u@%2Frun%2Fpg:6000/d?sslmode=prefer");
    }
}

#[test]
fn passwords_come_from_the_passfile_for_each_host() {
    let home = Home::new();
    home.write(".pgpass", "a:5432:d:u:first\nb:*:*:u:second\nlocalhost:5432:d:u:socket\n");
    let environment = [("HOME", home.path())];
    let settings = resolve("postgres://u@a,b,c/d", &environment).unwrap();
    let found: Vec<_> =
        settings.servers().iter().map(|server| settings.look_up_password(server).password).collect();
    assert_eq!(found, [Some("first".into()), Some("second".into()), None]);
    let socket = resolve("host=/run/pg user=u dbname=d", &environment).unwrap();
    assert_eq!(socket.look_up_password(&socket.servers()[0]).password.unwrap(), "socket");
    let other = home.write("other", "*:*:*:*:third\n");
    let by_variable = resolve("postgres://u@a/d", &[("HOME", home.path()), ("PGPASSFILE", &other)]).unwrap();
    assert_eq!(by_variable.look_up_password(&by_variable.servers()[0]).password.unwrap(), "third");
    assert!(by_variable.warnings().is_empty());
    assert!(!format!("{settings:?} {by_variable} {socket:?}").contains("first"));
}

#[cfg(unix)]
#[test]
fn an_open_passfile_is_warned_of_once() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let file = home.write(".pgpass", "*:*:*:*:x\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let environment = [("HOME", home.path())];
    let settings = resolve("postgres://u@a,b/d", &environment).unwrap();
    assert_eq!(settings.warnings().len(), 1, "{:?}", settings.warnings());
    let not_needed = resolve("postgres://u:own@a,b/d", &environment).unwrap();
    assert!(not_needed.warnings().is_empty());
}

#[test]
fn numbers_and_keywords_are_checked() {
    for (text, wrong) in [
        ("sslmode=maybe", "sslmode is \"maybe\", and must be one of: prefer, disable, allow"),
        ("target_session_attrs=writable", "target_session_attrs is \"writable\", and must be one of: any"),
        ("channel_binding=yes", "channel_binding is \"yes\""),
        ("load_balance_hosts=1", "load_balance_hosts is \"1\""),
        ("gssencmode=require", "gssencmode is \"require\""),
        ("client_encoding=latin1", "client_encoding is \"latin1\""),
        ("connect_timeout=soon", "connect_timeout is not a whole number"),
        ("keepalives_idle=-1", "keepalives_idle is not a whole number"),
        ("port=99999", "invalid connection string: the port is not a number"),
        ("port=0", "invalid connection string: the port is not a number"),
        ("nonsense=1", "unknown connection option nonsense"),
        ("postgres://h/d?schema=public", "unknown connection option schema"),
        ("requirepeer=postgres", "connection option requirepeer is not supported"),
        ("sslpassword=x", "connection option sslpassword is not supported"),
        ("sslmode=verify-full", "sslmode=verify-full needs a root certificate"),
        ("sslrootcert=system sslmode=require", "sslmode=require is too weak for sslrootcert=system"),
        ("sslnegotiation=direct", "sslmode=prefer is too weak for sslnegotiation=direct"),
        ("sslrootcert=/nowhere/root.crt", "sslrootcert: can't read /nowhere/root.crt"),
        ("sslcert=/nowhere/my.crt", "sslcert: can't read /nowhere/my.crt"),
        (
            "ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.2",
            "no TLS version is within the limits",
        ),
    ] {
        let error = resolve(text, &[]).expect_err(text);
        assert!(error.is_config() && error.message().starts_with(wrong), "{text}: {error}");
    }
    let unsafe_variable = resolve("d", &[("PGREQUIREPEER", "postgres")]).unwrap_err();
    assert_eq!(unsafe_variable.message(), "environment variable PGREQUIREPEER is not supported");
    assert_eq!(
        resolve("d", &[("PGTARGETSESSIONATTRS", "read-write")]).unwrap().session(),
        SessionKind::ReadWrite
    );
    let endless = resolve("connect_timeout=0 keepalives=0 tcp_user_timeout=1500", &[]).unwrap();
    assert_eq!((endless.connect_timeout(), endless.config().get_keepalives()), (None, false));
    assert_eq!(endless.config().get_tcp_user_timeout(), Some(&Duration::from_millis(1500)));
}

#[test]
fn without_tls_its_files_do_not_matter() {
    let text = "sslmode=disable sslrootcert=/nowhere/root.crt sslcert=/nowhere/my.crt user=u host=h";
    resolve(text, &[]).unwrap();
}

#[test]
fn the_system_s_certificates_mean_full_verification() {
    let settings = resolve("host=h user=u dbname=d sslrootcert=system", &[]);
    // A bare machine has no root certificates.
    if let Ok(settings) = settings {
        assert_eq!(settings.to_string(), "postgres://u@h:5432/d?sslmode=verify-full");
    }
}

#[test]
fn settings_survive_being_written_as_text() {
    let text = r"host=/run/a\ b,h port=1,2 user='o\'neill' password='back\\slash \'quote\'' dbname=x=y
        options='-c work_mem=4MB' sslmode=require application_name=mine target_session_attrs=read-write";
    let settings = resolve(text, &[("PGCONNECT_TIMEOUT", "3")]).unwrap();
    let again = resolve(&settings.to_string_with_password(), &[]).unwrap();
    assert!(again.options == settings.options);
    assert_eq!(again.config(), settings.config());
    assert_eq!(again.servers(), settings.servers());
    assert_eq!(password(&again), r"back\slash 'quote'");
    let moved = settings.with_database("other").with_application_name("bench");
    let again = resolve(&moved.to_string_with_password(), &[]).unwrap();
    assert_eq!((again.database(), again.config().get_application_name()), ("other", Some("bench")));
}

fn data(text: &str) -> serde_json::Value {
    let settings = resolve(text, &[]).unwrap_or_else(|error| panic!("{text}: {error}"));
    serde_json::to_value(settings.to_data_with_password()).unwrap()
}

#[test]
fn data_for_other_clients_need_no_parser() {
    let text = r"host=/run/a,h,10.0.0.1 port=1,2,3 user=u password='it\'s' dbname=d options='-c a=b' sslmode=prefer
        target_session_attrs=read-write fallback_application_name=f application_name=mine keepalives=0";
    let data = data(text);
    let attempts: Vec<_> = data["attempts"].as_array().unwrap().iter().collect();
    let servers: Vec<_> = attempts
        .iter()
        .map(|attempt| {
            (attempt["host"].as_str(), attempt["port"].as_u64(), attempt["tls"]["server_name"].as_str())
        })
        .collect();
    let with_tls: Vec<bool> = attempts.iter().map(|attempt| !attempt["tls"].is_null()).collect();
    // A socket has no TLS. An address has no name.
    assert_eq!(
        servers,
        [
            (Some("/run/a"), Some(1), None),
            (Some("h"), Some(2), Some("h")),
            (Some("h"), Some(2), None),
            (Some("10.0.0.1"), Some(3), None),
            (Some("10.0.0.1"), Some(3), None),
        ]
    );
    assert_eq!(with_tls, [false, true, false, true, false]);
    assert!(attempts.iter().all(|attempt| attempt["password"] == "it's" && attempt["options"] == "-c a=b"));
    assert!(
        attempts
            .iter()
            .all(|attempt| attempt["application_name"] == "mine" && attempt["keepalives"] == false)
    );
    assert_eq!(
        (&data["session"], &data["libpq"]["host"]),
        (&"read-write".into(), &"/run/a,h,10.0.0.1".into())
    );
    assert!(data["libpq"].get("fallback_application_name").is_none());
}

#[test]
fn data_for_other_clients_have_what_each_sslmode_means() {
    let home = Home::new();
    let key = rcgen::generate_simple_self_signed(vec!["h".into()]).unwrap();
    let root = home.write("root.crt", &key.cert.pem());
    // Whether an attempt has TLS, and then what is checked: the chain, and the name.
    let (none, blind) = (None, Some((false, false)));
    let (chain, full) = (Some((true, false)), Some((true, true)));
    for (mode, has_root, expected) in [
        ("disable", false, vec![none]),
        ("allow", false, vec![none, blind]),
        ("prefer", false, vec![blind, none]),
        ("require", false, vec![blind]),
        ("require", true, vec![chain]),
        ("no-verify", true, vec![blind]),
        ("verify-ca", true, vec![chain]),
        ("verify-full", true, vec![full]),
    ] {
        let root = if has_root { format!("sslrootcert='{root}'") } else { String::new() };
        let data = data(&format!("host=h user=u dbname=d sslmode={mode} {root}"));
        let is = |tls: &serde_json::Value, name: &str| tls[name].as_bool().unwrap();
        let attempts = data["attempts"].as_array().unwrap().iter().map(|attempt| &attempt["tls"]);
        let found: Vec<_> = attempts
            .map(|tls| (!tls.is_null()).then(|| (is(tls, "checks_chain"), is(tls, "checks_name"))))
            .collect();
        assert_eq!(found, expected, "{mode}, root certificate {has_root}");
        let is_libpq_s = data["libpq"]["sslmode"] == if mode == "no-verify" { "require" } else { mode };
        assert!(is_libpq_s, "{mode}");
        assert_eq!(data["libpq"].get("sslrootcert").is_some(), has_root && mode != "no-verify", "{mode}");
    }
}

#[test]
fn the_environment_names_a_database_or_none() {
    let from = |name: &'static str| in_environment(move |asked| (asked == name).then(|| "x".to_owned()));
    assert_eq!(from("DATABASE_URL").as_deref(), Some("x"));
    assert_eq!(from("PGDATABASE").as_deref(), Some(""));
    assert_eq!(from("PGSERVICE").as_deref(), Some(""));
    assert_eq!(from("PGUSER"), None);
}

/// Texts that are likely to be misread.
fn tricky() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "(postgres://|postgresql://|host=|password=)?[a-z0-9:@/?&=%,'\\\\ \\[\\]#.+-]{0,60}",
        "postgres://[a-z]{0,3}(:[a-z@%/?]{0,5})?@?[a-z0-9,:\\[\\]%]{0,12}(/[a-z@]{0,5})?(\\?[a-z=&_%]{0,20})?",
    ]
}

/// Percent-encodes everything.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_text_is_settings_or_a_clear_error(text in tricky()) {
        match resolve(&text, &[("PGUSER", "u")]) {
            Ok(settings) => prop_assert!(!settings.servers().is_empty()),
            Err(error) => prop_assert!(error.is_config() && !error.message().is_empty()),
        }
    }

    #[test]
    fn a_password_is_kept_and_never_shown(secret in "[^\\x00]{1,20}", key in "[a-z_]{1,12}") {
        // Marked, so that it can't be part of a message by chance.
        let secret = format!("☃{secret}☃");
        let quoted = secret.replace('\\', "\\\\").replace('\'', "\\'");
        for text in [
            format!("postgres://me:{}@h/d", encoded(&secret)),
            format!("host=h user=me dbname=d password='{quoted}'"),
        ] {
            let settings = resolve(&text, &[]).unwrap();
            prop_assert_eq!(password(&settings), &secret);
            let shown = format!("{settings:?}{settings}{:?}", settings.warnings());
            prop_assert!(!shown.contains('☃'), "{}", shown);
        }
        for text in [
            format!("postgres://me:{secret}@h/d"),
            format!("postgres://me:{secret}@h/d?{key}=1"),
            format!("password={secret} {key}=1"),
            format!("password='{secret}' {key}=1"),
        ] {
            match resolve(&text, &[]) {
                Ok(settings) => {
                    // If the parser took it for something other than the password, it may be displayed.
                    let shown = format!("{settings:?}{settings}");
                    prop_assert!(password(&settings) != secret || !shown.contains('☃'), "{}", shown);
                }
                Err(error) => {
                    let shown = format!("{error:?}{error}");
                    prop_assert!(!shown.contains('☃'), "{}", shown);
                }
            }
        }
    }
}
