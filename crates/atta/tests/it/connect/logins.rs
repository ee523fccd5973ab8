//! Where passwords come from, which of several servers is chosen, and the errors if none accepts the login.

use std::collections::HashMap;
use std::net::TcpListener;

use atta::{ConnectionSettings, JobSpec, WorkerOptions, WorkerUtils};

use super::support::{PASSWORD, settings, tls_server};

fn closed_port() -> u16 {
    // The port is free again when the listener is dropped; the next caller gets another one.
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

async fn port_of(settings: &ConnectionSettings) -> i32 {
    let client = settings.connect().await.unwrap_or_else(|error| panic!("{error}"));
    client.query_one("select inet_server_port()", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_service_and_a_passfile_are_all_that_is_needed() {
    let server = tls_server().with_users().await;
    let port = server.cluster.port();
    let home = server.file("home");
    server.make_folder("home");
    server.make_folder("home/.postgresql");
    std::fs::copy(server.file("root.crt"), format!("{home}/.postgresql/root.crt")).unwrap();
    let password = PASSWORD.replace('\\', "\\\\").replace(':', "\\:");
    server.write("home/.pgpass", &format!("db.example:{port}:postgres:tls_only:{password}\n"));
    let service = format!(
        "[app]\nhost=db.example\nhostaddr=127.0.0.1\nport={port}\nuser=tls_only\ndbname=postgres\nsslmode=verify-full\n"
    );
    server.write("home/.pg_service.conf", &service);
    let variables = HashMap::from([("HOME", home.as_str()), ("PGSERVICE", "app")]);
    let settings =
        ConnectionSettings::with_variables("", |name| variables.get(name).map(|value| (*value).to_owned()))
            .unwrap();
    assert_eq!(port_of(&settings).await, i32::from(port));

    // A password that is changed while a worker runs is used from then on.
    server.write("home/.pgpass", "*:*:*:*:wrong\n");
    let error = settings.connect().await.unwrap_err();
    assert_eq!(error.db_code(), Some("28P01"), "{error:?}");
    assert!(error.hint().unwrap().contains(".pgpass"), "{error}");
    server.write("home/.pgpass", &format!("*:*:*:*:{password}\n"));
    settings.connect().await.unwrap();
}

#[tokio::test]
async fn of_two_servers_the_one_that_answers_is_taken() {
    let server = tls_server().with_users().await;
    let (closed, port) = (closed_port(), server.cluster.port());
    let text = server.text("either", "").replace("hostaddr=127.0.0.1", "hostaddr=127.0.0.1,127.0.0.1");
    let text = text.replace("host=db.example", "host=down.example,db.example");
    let two = settings(&text.replace(&format!("port={port}"), &format!("port={closed},{port}")));
    assert_eq!(port_of(&two).await, i32::from(port));
    let none = text.replace(&format!("port={port}"), &format!("port={closed},{closed}"));
    let error = settings(&none).connect().await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    let wanted = format!(
        "can't connect to down.example:{closed},db.example:{closed}/postgres: down.example:{closed}: Connection refused"
    );
    assert!(error.message().starts_with(&wanted), "{error}");
}

#[tokio::test]
async fn the_right_kind_of_server_is_taken() {
    let server = tls_server().with_users().await;
    // The server is shared with other test runs.
    let role = format!("reader_{}", std::process::id());
    let make = format!("create role {role} login");
    let admin = server.admin().await;
    admin
        .batch_execute(&format!("{make}; alter role {role} set default_transaction_read_only = on"))
        .await
        .unwrap();
    let other = settings(&testkit::server_url("postgres"));
    let other = other.connect().await.unwrap();
    other.batch_execute(&make).await.unwrap();
    let (socket, port) = (server.cluster.folder().display(), server.cluster.port());
    let url = testkit::server_url("postgres");
    let (_, other_port) = url.trim_end_matches("/postgres").rsplit_once(':').unwrap();
    let with = |kind: &str| {
        settings(&format!(
            "host='{socket},127.0.0.1' port={port},{other_port} user={role} dbname=postgres target_session_attrs={kind}"
        ))
    };
    for (kind, takes_first) in [
        ("any", true),
        ("read-only", true),
        ("read-write", false),
        ("primary", true),
        ("prefer-standby", true),
    ] {
        let client = with(kind).connect().await.unwrap_or_else(|error| panic!("{kind}: {error}"));
        let by: Option<std::net::IpAddr> =
            client.query_one("select inet_client_addr()", &[]).await.unwrap().get(0);
        assert_eq!(by.is_none(), takes_first, "{kind}");
    }
    let error = with("standby").connect().await.unwrap_err();
    assert!(error.is_transient() && error.message().contains("the server is not a standby"), "{error:?}");
    let one = settings(&format!(
        "host='{socket}' port={port} user={role} dbname=postgres target_session_attrs=read-write"
    ));
    let error = one.connect().await.unwrap_err();
    assert!(error.message().ends_with("the server is read-only"), "{error}");
    other.batch_execute(&format!("drop role {role}")).await.unwrap();
}

#[tokio::test]
async fn errors_name_the_server_and_a_hint_and_never_the_password() {
    let server = tls_server().with_users().await;
    let port = server.cluster.port();
    for (text, code, says, hint) in [
        (
            server.text("either", "password=hunter2"),
            Some("28P01"),
            "password authentication failed",
            "check the password",
        ),
        (server.text("stranger", ""), Some("28000"), "no pg_hba.conf entry", "pg_hba.conf decides"),
        (server.text("either", "dbname=nowhere"), Some("3D000"), "does not exist", "createdb nowhere"),
        (server.text("either", "password=''"), None, "requires a password", "PGPASSWORD"),
        (server.text("either", "options='-c nonsense=1'"), Some("42704"), "nonsense", "options"),
    ] {
        let settings = settings(&text);
        let error = settings.connect().await.unwrap_err();
        assert!(error.is_config() && !error.is_transient(), "{error:?}");
        assert_eq!(error.db_code(), code, "{error}");
        let place = format!("can't connect to db.example:{port}/{}: ", settings.database());
        assert!(error.message().starts_with(&place) && error.message().contains(says), "{error}");
        assert!(error.hint().unwrap().contains(hint), "{error}");

        // The same through a pool, which opens its own connections.
        let utils = WorkerUtils::connect(&settings.to_string_with_password()).unwrap();
        let pooled = utils.add_raw_job("noop", 1, JobSpec::default()).await.unwrap_err();
        assert_eq!(pooled.message(), format!("adding a job: {}", error.message()));
        assert_eq!((pooled.hint(), pooled.db_code()), (error.hint(), code));
        assert!(pooled.is_config() && !pooled.is_transient(), "{pooled:?}");
        for shown in
            [format!("{error:?}{error}"), format!("{pooled:?}{pooled}"), format!("{:?}", utils.pool())]
        {
            assert!(!shown.contains("hunter2") && !shown.contains("swordfish"), "{shown}");
        }
    }
}

#[tokio::test]
async fn a_server_without_a_free_connection_is_not_taken_for_one_that_does_not_run() {
    let db = testkit::Database::empty().await;
    let client = db.client().await;
    let role = format!("limited_on_{}", db.name());
    client.batch_execute(&format!("create role {role} login connection limit 0")).await.unwrap();
    let limited = settings(&db.direct_url().replace("postgres@", &format!("{role}@")));
    let error = limited.connect().await.unwrap_err();
    assert_eq!((error.db_code(), error.is_transient()), (Some("53300"), true), "{error}");
    assert!(error.hint().unwrap().contains("max_connections"), "{error}");
    client.batch_execute(&format!("drop role {role}")).await.unwrap();
}

/// People who debug print whole structs, and a failed `unwrap` prints them too.
#[tokio::test]
async fn nothing_that_can_be_printed_shows_the_password() {
    let db = testkit::Database::migrated().await;
    let url = db.url().replace("postgres@", "postgres:hunter2@");
    let with_parameters = format!("{}?password=hunter2", db.url());
    let with_pairs = "host=h user=me dbname=d password='hunter2 \\' hunter2' application_name=x";
    for text in [url.as_str(), &with_parameters, with_pairs] {
        let found = settings(text);
        let utils = WorkerUtils::connect(text).unwrap();
        let options = WorkerOptions::default().database_url(text);
        let pool = found.pool(3).unwrap();
        let by_pool = WorkerOptions::default().pg_pool(pool.clone());
        for shown in [
            format!("{found:?} {found:#?} {found}"),
            format!("{options:?} {options:#?} {by_pool:?}"),
            format!("{utils:?} {pool:?} {:?}", utils.pool()),
        ] {
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
    let variables = |name: &str| (name == "PGPASSWORD").then(|| "hunter2".to_owned());
    let found = ConnectionSettings::with_variables("host=h", variables).unwrap();
    assert!(!format!("{found:?}{found}").contains("hunter2"));

    let worker = WorkerOptions::default().database_url(&url).define_raw_job("t", |_| async {}).init().await;
    let worker = worker.unwrap();
    let shown = format!("{worker:?} {:?} {:?}", worker.handle(), worker.create_utils());
    assert!(!shown.contains("hunter2"), "{shown}");

    let wrong = format!("{url}?nonsense=1");
    let error = ConnectionSettings::with_variables(&wrong, |_| None).unwrap_err();
    let panic = std::panic::catch_unwind(|| {
        ConnectionSettings::with_variables(&wrong, |_| None).unwrap();
    });
    let said = panic.unwrap_err().downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(said.contains("nonsense") && !said.contains("hunter2"), "{said}");
    assert!(!format!("{error:?} {error:#?} {error}").contains("hunter2"), "{error:?}");
}

#[tokio::test]
async fn a_host_that_does_not_answer_is_left_in_time() {
    // It accepts connections and never replies.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let text = format!("host=127.0.0.1 port={port} user=u dbname=d connect_timeout=1");
    let error = settings(&text).connect().await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert!(error.message().ends_with("no response within 1 s (connect_timeout)"), "{error}");
}

#[tokio::test]
async fn an_unknown_host_is_reported_as_unknown() {
    let error = settings("host=nobody.invalid user=u dbname=d").connect().await.unwrap_err();
    assert!(error.message().starts_with("can't connect to nobody.invalid:5432/d: "), "{error}");
    assert_eq!(error.hint(), Some("check the host name"));
}
