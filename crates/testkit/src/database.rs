//! A database for one test.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use tokio_postgres::{Client, NoTls};

use crate::{pgbouncer, server_url};

/// The key of the advisory lock under which the template is created: the processes of a run share the template.
const TEMPLATE_LOCK: i64 = 0x6174_7461;
const TEMPLATE: &str = "atta_template";

/// A database for one test, dropped with this value.
#[derive(Debug)]
pub struct Database {
    name: String,
    /// Another value drops the database.
    is_shared: bool,
}

impl Database {
    /// A database with atta's schema in it, under the default name.
    pub async fn migrated() -> Database {
        make_template().await;
        Database::create(Some(TEMPLATE)).await
    }

    /// An empty database.
    pub async fn empty() -> Database {
        Database::create(None).await
    }

    /// An empty database, in an encoding other than UTF-8.
    pub async fn encoded(encoding: &str) -> Database {
        Database::create(Some(&format!("template0 encoding '{encoding}' lc_collate 'C' lc_ctype 'C'"))).await
    }

    /// The connection string for the code under test: through the pooler, if the run uses one.
    pub fn url(&self) -> String {
        pgbouncer::url_of_this_run(&self.name).unwrap_or_else(|| self.direct_url())
    }

    /// The connection string of the server itself, for code that only observes.
    pub fn direct_url(&self) -> String {
        server_url(&self.name)
    }

    /// Another handle to the same database, which is dropped with the first value and not with this one.
    pub(crate) fn share(&self) -> Database {
        Database { name: self.name.clone(), is_shared: true }
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A new connection to the server itself, as the superuser.
    pub async fn client(&self) -> Client {
        connect(&self.direct_url()).await
    }

    /// A new connection to the server itself as `role`, which must be allowed to log in.
    pub async fn client_as(&self, role: &str) -> Client {
        connect(&self.direct_url().replace("postgres@", &format!("{role}@"))).await
    }

    async fn create(template: Option<&str>) -> Database {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        pgbouncer::start_for_this_run().await;
        let name = format!("test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let template = template.unwrap_or("template0");
        let admin = connect(&server_url("postgres")).await;
        admin
            .batch_execute(&format!("create database {name} template {template}"))
            .await
            .expect("a test's database is created");
        Database { name, is_shared: false }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.is_shared {
            return;
        }
        // The cluster is removed with the run anyway; this only saves disk space meanwhile.
        let _ = dropper().send(self.name.clone());
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the test server answers");
    // Ends with its client; a lost connection is reported as an error of the client's next call.
    tokio::spawn(connection);
    client
}

async fn make_template() {
    static DONE: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
    DONE.get_or_init(|| async {
        let admin = connect(&server_url("postgres")).await;
        admin.execute("select pg_advisory_lock($1)", &[&TEMPLATE_LOCK]).await.expect("the template's lock");
        let made = admin
            .query_opt("select 1 from pg_database where datname = $1", &[&TEMPLATE])
            .await
            .expect("the list of databases");
        if made.is_none() {
            let making = format!("{TEMPLATE}_making");
            admin
                .batch_execute(&format!("create database {making} template template0"))
                .await
                .expect("the template's database");
            let mut client = connect(&server_url(&making)).await;
            let schema = atta::Schema::default();
            atta::migrate(&mut client, &schema).await.expect("the template is migrated");
            drop(client);
            rename_when_free(&admin, &making).await;
        }
        admin.execute("select pg_advisory_unlock($1)", &[&TEMPLATE_LOCK]).await.expect("the template's lock");
    })
    .await;
}

/// A database can't be renamed while the server is still ending the connection that we dropped.
async fn rename_when_free(admin: &Client, making: &str) {
    crate::wait_for("the template's last connection to end", || async {
        admin.batch_execute(&format!("alter database {making} rename to {TEMPLATE}")).await.ok()
    })
    .await;
}

/// One thread drops the databases of finished tests, so that no test waits for it.
fn dropper() -> &'static mpsc::Sender<String> {
    static DROPPER: OnceLock<mpsc::Sender<String>> = OnceLock::new();
    DROPPER.get_or_init(|| {
        let (sender, names) = mpsc::channel::<String>();
        thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a small runtime");
            runtime.block_on(async {
                let admin = connect(&server_url("postgres")).await;
                while let Ok(name) = names.recv() {
                    let end = format!(
                        "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
                    );
                    // Best effort: a database that stays is removed with the cluster.
                    let _ = admin.batch_execute(&end).await;
                    let _ = admin.batch_execute(&format!("drop database if exists {name}")).await;
                }
            });
        });
        sender
    })
}
