//! A server with TLS, certificates of its own authority, and what tests need to log in.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::sync::OnceLock;

use atta::ConnectionSettings;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DistinguishedName,
    DnType, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use testkit::Cluster;
use tokio_postgres::Client;

/// Which users may log in, and how. Users that are not listed may not.
const HBA: &str = "
local     all  all                                trust
hostssl   all  postgres        127.0.0.1/32       trust
hostssl   all  tls_only        127.0.0.1/32       scram-sha-256
hostnossl all  plain_only      127.0.0.1/32       scram-sha-256
host      all  either          127.0.0.1/32       scram-sha-256
hostssl   all  certified       127.0.0.1/32       cert
";

/// The password of all users.
pub(super) const PASSWORD: &str = "swordfish \\' %";

/// A server with TLS whose certificate is for `db.example`.
pub(super) struct TlsServer {
    pub(super) cluster: Cluster,
    folder: PathBuf,
}

/// The server of this test run.
pub(super) fn tls_server() -> &'static TlsServer {
    static SERVER: OnceLock<TlsServer> = OnceLock::new();
    SERVER.get_or_init(TlsServer::start)
}

/// The years between which a certificate is valid.
const YEARS: (i32, i32) = (2000, 2100);

impl TlsServer {
    fn start() -> TlsServer {
        TlsServer::valid_between(YEARS)
    }

    /// A server whose certificate is valid between the first days of these years.
    pub(super) fn valid_between(years: (i32, i32)) -> TlsServer {
        let ours = authority("our authority");
        let (server, server_key) = certificate(&ours, &["db.example"], "somewhere else", 7, years);
        let (client, client_key) = certificate(&ours, &[], "certified", 8, YEARS);
        let root = ours.pem();
        let files = [
            ("server.crt", server.as_str()),
            ("server.key", server_key.as_str()),
            ("root.crt", root.as_str()),
            ("pg_hba.conf", HBA),
        ];
        let settings =
            ["ssl=on", "ssl_ca_file=root.crt", "shared_buffers=16MB", "password_encryption=scram-sha-256"];
        let cluster =
            Cluster::temporary_with(&testkit::binaries(), &settings, &files).expect("a server with TLS");
        let folder = cluster.folder().join("clients");
        let server = TlsServer { cluster, folder };
        server.make_folder("");
        server.write("root.crt", &root);
        server.write("other.crt", &authority("another authority").pem());
        server.write("certified.crt", &client);
        server.write("certified.key", &client_key);
        server.write("revoked.crl", &revocations(&ours, 7));
        server.write("other-revoked.crl", &revocations(&ours, 99));
        server
    }

    /// Creates a folder for clients. It belongs to the server's user, who removes everything at the end.
    pub(super) fn make_folder(&self, name: &str) {
        let path = self.folder.join(name);
        fs::create_dir(&path).unwrap();
        let owner = fs::metadata(self.cluster.folder()).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }

    /// Writes a file that only we may read, and returns its path.
    pub(super) fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        self.file(name)
    }

    /// The path of a file for clients.
    pub(super) fn file(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    /// A connection string for a user, with the host name of the certificate.
    pub(super) fn text(&self, user: &str, more: &str) -> String {
        self.text_by_name("db.example", user, more)
    }

    /// A connection string with any host name, since the address is given separately.
    pub(super) fn text_by_name(&self, host: &str, user: &str, more: &str) -> String {
        let port = self.cluster.port();
        let password = PASSWORD.replace('\\', "\\\\").replace('\'', "\\'");
        format!(
            "host={host} hostaddr=127.0.0.1 port={port} user={user} password='{password}' dbname=postgres {more}"
        )
    }

    /// A connection as the superuser, over the socket.
    pub(super) async fn admin(&self) -> Client {
        let (folder, port) = (self.cluster.folder().display(), self.cluster.port());
        let text = format!("host={folder} port={port} user=postgres dbname=postgres");
        settings(&text).connect().await.expect("the superuser gets in by the socket")
    }

    /// Creates the users, once.
    pub(super) async fn with_users(&self) -> &TlsServer {
        static DONE: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
        DONE.get_or_init(|| async {
            let admin = self.admin().await;
            for user in ["tls_only", "plain_only", "either", "certified", "stranger"] {
                let password = PASSWORD.replace('\'', "''");
                let make = format!("create role {user} login superuser password '{password}'");
                admin.batch_execute(&make).await.expect("a role");
            }
        })
        .await;
        self
    }
}

/// Ignores the environment of the person who runs the tests.
pub(super) fn settings(text: &str) -> ConnectionSettings {
    ConnectionSettings::with_variables(text, |_| None).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Connects, and returns whether TLS is used.
pub(super) async fn uses_tls(text: &str) -> atta::Result<bool> {
    let client = settings(text).connect().await?;
    let ask = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    Ok(client.query_one(ask, &[]).await.expect("the server says so").get(0))
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = params(&[], name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key, as PEM.
fn certificate(
    issuer: &CertifiedIssuer<'static, KeyPair>,
    names: &[&str],
    common_name: &str,
    serial: u64,
    years: (i32, i32),
) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = params(names, common_name);
    params.serial_number = Some(SerialNumber::from(serial));
    (params.not_before, params.not_after) = (date_time_ymd(years.0, 1, 1), date_time_ymd(years.1, 1, 1));
    (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}

fn params(names: &[&str], common_name: &str) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

/// A revocation list with one serial number.
fn revocations(issuer: &CertifiedIssuer<'static, KeyPair>, serial: u64) -> String {
    let revoked = RevokedCertParams {
        serial_number: SerialNumber::from(serial),
        revocation_time: date_time_ymd(2024, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2024, 1, 1),
        next_update: date_time_ymd(2100, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(issuer).unwrap().pem().unwrap()
}
