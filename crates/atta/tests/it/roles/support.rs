//! A database with the three roles, and a login for each.

use atta::{ConnectionSettings, Schema, WorkerUtils, roles_sql};
use testkit::Database;
use tokio_postgres::Client;

use crate::sql_api::support::{refusal, run};

/// A database with its own roles: roles belong to the whole server, so their names begin with that of the database.
pub(super) struct Roles {
    pub(super) db: Database,
    /// The superuser, who owns the tables.
    pub(super) owner: Client,
    pub(super) schema: Schema,
    pub(super) prefix: String,
}

impl Roles {
    pub(super) async fn new() -> Roles {
        let db = Database::migrated().await;
        let prefix = db.name().to_owned();
        Roles::on(db, Schema::default(), prefix).await
    }

    /// In this schema, with roles whose names begin with `prefix`.
    pub(super) async fn on(db: Database, schema: Schema, prefix: String) -> Roles {
        let mut owner = db.client().await;
        atta::migrate(&mut owner, &schema).await.expect("the schema is installed");
        let roles = Roles { db, owner, schema, prefix };
        roles.apply().await;
        for kind in ["producer", "worker", "reader"] {
            let group = quoted(&format!("{}_{kind}", roles.prefix));
            let login = roles.login(kind);
            run(&roles.owner, &format!("create role {login} login in role {group}")).await;
        }
        roles
    }

    pub(super) async fn apply(&self) {
        run(&self.owner, &self.sql()).await;
    }

    pub(super) fn sql(&self) -> String {
        roles_sql(&self.schema, &self.prefix).expect("a prefix for roles")
    }

    /// The login that has the rights of a role.
    pub(super) fn login(&self, kind: &str) -> String {
        format!("{}_login_{kind}", self.db.name())
    }

    pub(super) fn url(&self, kind: &str) -> String {
        self.db.url().replace("postgres@", &format!("{}@", self.login(kind)))
    }

    pub(super) async fn client(&self, kind: &str) -> Client {
        self.db.client_as(&self.login(kind)).await
    }

    /// The library, connected with the rights of a role.
    pub(super) fn utils(&self, kind: &str, schema: Schema) -> WorkerUtils {
        let settings = ConnectionSettings::with_variables(&self.url(kind), |_| None).expect("a URL");
        WorkerUtils::new(settings.pool(4).expect("a pool"), schema)
    }

    /// The schema of the functions that add jobs.
    pub(super) fn add_schema(&self) -> Schema {
        Schema::new(format!("{}_add", self.prefix)).expect("a schema's name")
    }
}

pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Each of these must fail because of a missing privilege.
pub(super) async fn assert_denied(client: &Client, statements: &[&str]) {
    for statement in statements {
        let refusal = refusal(client, statement).await;
        assert_eq!(refusal.code().code(), "42501", "{statement}: {refusal}");
    }
}
