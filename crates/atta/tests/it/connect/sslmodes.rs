//! Each sslmode, with servers and users that require TLS, forbid it, or allow both.

use super::support::{TlsServer, settings, tls_server, uses_tls};

/// A root certificate is given where the mode needs one.
const MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

/// Whether TLS was used, by mode; `None` if there was no connection.
async fn outcomes(user: &str) -> Vec<Option<bool>> {
    let server = tls_server().with_users().await;
    let mut outcomes = Vec::new();
    for mode in MODES {
        let root = if mode.starts_with("verify") { server.file("root.crt") } else { String::new() };
        let text = server.text(user, &format!("sslmode={mode} sslrootcert='{root}'"));
        outcomes.push(uses_tls(&text).await.ok());
    }
    outcomes
}

const PLAIN: Option<bool> = Some(false);
const TLS: Option<bool> = Some(true);

#[tokio::test]
async fn each_mode_on_a_server_with_tls() {
    assert_eq!(outcomes("either").await, [PLAIN, PLAIN, TLS, TLS, TLS, TLS]);
    assert_eq!(outcomes("tls_only").await, [None, TLS, TLS, TLS, TLS, TLS]);
    assert_eq!(outcomes("plain_only").await, [PLAIN, PLAIN, PLAIN, None, None, None]);
    assert_eq!(outcomes("stranger").await, [None; 6]);
}

#[tokio::test]
async fn each_mode_on_a_server_without_tls() {
    let url = testkit::server_url("postgres");
    let root = tls_server().file("root.crt");
    for (mode, expected) in MODES.iter().zip([PLAIN, PLAIN, PLAIN, None, None, None]) {
        let text = format!("{url}?sslmode={mode}&sslrootcert={root}");
        let outcome = uses_tls(&text).await;
        assert_eq!(outcome.as_ref().ok().copied(), expected, "{mode}");
        if let Err(error) = outcome {
            assert!(error.is_config() && !error.is_transient(), "{error:?}");
            assert!(error.message().ends_with("server does not support TLS"), "{error}");
            assert!(error.hint().unwrap().contains(&format!("sslmode is {mode}")), "{error}");
        }
    }
}

#[tokio::test]
async fn the_certificate_must_have_the_host_s_name_for_verify_full_only() {
    let server = tls_server().with_users().await;
    let root = server.file("root.crt");
    let by = |host: &str, mode: &str| {
        server.text_by_name(host, "tls_only", &format!("sslmode={mode} sslrootcert='{root}'"))
    };
    assert!(uses_tls(&by("db.example", "verify-full")).await.unwrap());
    for host in ["wrong.example", "127.0.0.1", "somewhere"] {
        let error = uses_tls(&by(host, "verify-full")).await.unwrap_err();
        assert!(error.is_config() && error.message().contains("not valid for"), "{error}");
        assert!(error.message().contains(&format!("can't connect to {host}:")), "{error}");
        assert!(uses_tls(&by(host, "verify-ca")).await.unwrap(), "{host}");
    }
}

#[tokio::test]
async fn another_authority_s_certificate_is_refused_wherever_a_root_is_given() {
    let server = tls_server().with_users().await;
    let other = server.file("other.crt");
    for mode in ["require", "verify-ca", "verify-full"] {
        let error = uses_tls(&server.text("either", &format!("sslmode={mode} sslrootcert='{other}'")))
            .await
            .unwrap_err();
        assert!(error.is_config() && !error.is_transient(), "{error:?}");
        assert!(error.message().contains("UnknownIssuer"), "{error}");
        assert!(error.hint().unwrap().contains("other.crt"), "{error}");
    }
    // A mode that only prefers TLS connects without it, as libpq does; and a mode that checks nothing accepts any
    // certificate.
    let lax = |mode: &str| server.text("either", &format!("sslmode={mode} sslrootcert='{other}'"));
    assert!(!uses_tls(&lax("prefer")).await.unwrap());
    assert!(uses_tls(&lax("no-verify")).await.unwrap());
    let both = uses_tls(&server.text("tls_only", &format!("sslmode=prefer sslrootcert='{other}'"))).await;
    let message = both.unwrap_err().to_string();
    // Older servers call it "SSL off".
    let is_refused = message.contains("no encryption") || message.contains("SSL off");
    assert!(is_refused && message.contains("UnknownIssuer"), "{message}");
}

#[tokio::test]
async fn an_expired_certificate_is_rejected_wherever_it_is_checked() {
    for (years, says) in [((2000, 2020), "expired"), ((2090, 2100), "not valid yet")] {
        let server = TlsServer::valid_between(years);
        let root = server.file("root.crt");
        for mode in ["require", "verify-ca", "verify-full"] {
            let text = server.text("postgres", &format!("sslmode={mode} sslrootcert='{root}'"));
            let error = uses_tls(&text).await.unwrap_err();
            assert!(error.is_config() && !error.is_transient(), "{error:?}");
            assert!(error.message().to_ascii_lowercase().contains(says), "{mode}: {error}");
        }
        // Where nothing is checked, the certificate is not read, as with libpq.
        assert!(uses_tls(&server.text("postgres", "sslmode=require")).await.unwrap());
    }
}

#[tokio::test]
async fn a_revoked_certificate_is_refused() {
    let server = tls_server().with_users().await;
    let root = server.file("root.crt");
    let with = |list: &str| {
        let list = server.file(list);
        server.text("either", &format!("sslmode=verify-full sslrootcert='{root}' sslcrl='{list}'"))
    };
    let error = uses_tls(&with("revoked.crl")).await.unwrap_err();
    assert!(error.is_config() && error.message().contains("Revoked"), "{error}");
    assert!(uses_tls(&with("other-revoked.crl")).await.unwrap());
}

#[tokio::test]
async fn a_client_certificate_is_a_login() {
    let server = tls_server().with_users().await;
    let (root, certificate, key) =
        (server.file("root.crt"), server.file("certified.crt"), server.file("certified.key"));
    let with = |user: &str| {
        let files = format!("sslrootcert='{root}' sslcert='{certificate}' sslkey='{key}'");
        server.text(user, &format!("sslmode=verify-full {files}"))
    };
    assert!(uses_tls(&with("certified")).await.unwrap());
    let without = server.text("certified", &format!("sslmode=verify-full sslrootcert='{root}'"));
    let error = uses_tls(&without).await.unwrap_err();
    assert!(error.is_config() && error.db_code() == Some("28000"), "{error:?}");
    let switched_off = with("certified") + " sslcertmode=disable";
    assert!(uses_tls(&switched_off).await.is_err());
}

#[tokio::test]
async fn a_key_that_others_may_read_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let server = tls_server().with_users().await;
    let key = server.write("open.key", &std::fs::read_to_string(server.file("certified.key")).unwrap());
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let certificate = server.file("certified.crt");
    let text = server.text("certified", &format!("sslmode=require sslcert='{certificate}' sslkey='{key}'"));
    let error = atta::ConnectionSettings::with_variables(&text, |_| None).unwrap_err();
    assert!(error.is_config() && error.hint().unwrap().starts_with("run: chmod 600"), "{error}");
}

#[tokio::test]
async fn a_login_can_be_bound_to_the_server_s_certificate() {
    let server = tls_server().with_users().await;
    assert!(uses_tls(&server.text("either", "sslmode=require channel_binding=require")).await.unwrap());
    assert!(uses_tls(&server.text("either", "sslmode=require channel_binding=disable")).await.unwrap());
    let error =
        uses_tls(&server.text("either", "sslmode=disable channel_binding=require")).await.unwrap_err();
    assert!(error.is_config() && error.message().contains("channel binding"), "{error}");
}

#[tokio::test]
async fn a_socket_needs_no_tls() {
    let server = tls_server();
    let (folder, port) = (server.cluster.folder().display(), server.cluster.port());
    for mode in ["require", "verify-full"] {
        let root = server.file("root.crt");
        let text = format!("host={folder} port={port} user=postgres sslmode={mode} sslrootcert='{root}'");
        let client = settings(&text).connect().await.unwrap();
        client.batch_execute("select 1").await.unwrap();
    }
}
