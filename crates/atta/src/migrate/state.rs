//! The state of a schema, read without a lock and without relying on any object to exist.

use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};

use super::functions::{FUNCTIONS, FoundFunction, Function};
use super::{GRAPHILE_REVISION, plan};
use crate::Schema;
use crate::db::quote_identifier;

/// The revisions after which workers of earlier revisions can't go on.
pub(super) const BREAKING: [i32; 7] = [1, 3, 11, 13, 14, 16, 19];

#[derive(Default)]
pub(super) struct State {
    pub(super) server_version: i32,
    pub(super) database: String,
    pub(super) role: String,
    pub(super) schema_exists: bool,
    pub(super) may_use_schema: bool,
    pub(super) may_create_in_schema: bool,
    pub(super) may_create_schema: bool,
    /// Tables, views and valid indexes.
    pub(super) relations: Vec<String>,
    /// Indexes whose build is still running, or was interrupted.
    pub(super) invalid_indexes: Vec<String>,
    /// The size of the table of jobs in bytes; 0 if there is none.
    pub(super) jobs_bytes: i64,
    /// The roles that own tables or views here and whose privileges this role does not have.
    pub(super) foreign_owners: Vec<String>,
    /// Whether the table `migrations` exists and has the column that marks breaking revisions.
    pub(super) has_breaking: bool,
    pub(super) graphile: Revisions,
    /// Whether a breaking revision is not marked as one.
    pub(super) has_wrong_mark: bool,
    pub(super) atta: Revisions,
    pub(super) functions: Vec<FoundFunction>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Revisions {
    pub(super) newest: Option<i32>,
    pub(super) newest_breaking: Option<i32>,
}

/// Whether a schema is up to date, by the two cheapest queries: every start of a worker runs them.
pub(super) async fn is_current(
    client: &impl GenericClient,
    schema: &Schema,
) -> Result<bool, tokio_postgres::Error> {
    Ok(is_newest(client, schema).await? && has_our_bodies(client, schema).await?)
}

async fn is_newest(client: &impl GenericClient, schema: &Schema) -> Result<bool, tokio_postgres::Error> {
    let sql = schema.fill(include_str!("../../sql/queries/is_current.sql"));
    let relations = plan::relations().map(|name| format!("{}.{name}", schema.quoted()));
    let relations: Vec<String> = relations.collect();
    let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
        (&GRAPHILE_REVISION, Type::INT4),
        (&BREAKING.as_slice(), Type::INT4_ARRAY),
        (&plan::ATTA_REVISION, Type::INT4),
        (&relations, Type::TEXT_ARRAY),
    ];
    let row = client.query_typed_one(&sql, &parameters).await?;
    Ok(row.get::<_, Option<bool>>("is_current") == Some(true))
}

async fn has_our_bodies(client: &impl GenericClient, schema: &Schema) -> Result<bool, tokio_postgres::Error> {
    let names: Vec<&str> = FUNCTIONS.iter().map(|function| function.name).collect();
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&schema.quoted(), Type::TEXT), (&names, Type::TEXT_ARRAY)];
    let rows = client.query_typed(include_str!("../../sql/queries/read_bodies.sql"), &parameters).await?;
    let stands = |function: &Function| {
        let body = function.body(schema);
        rows.iter()
            .any(|row| row.get::<_, &str>("name") == function.name && row.get::<_, &str>("body") == body)
    };
    Ok(FUNCTIONS.iter().all(stands))
}

impl State {
    pub(super) async fn read(
        client: &impl GenericClient,
        schema: &Schema,
    ) -> Result<State, tokio_postgres::Error> {
        let mut state = State::read_catalog(client, schema).await?;
        // Sent one after the other without waiting for the answers. Only the first error gives the reason; the others
        // follow from it.
        let ((graphile, has_wrong_mark), atta, functions) = tokio::try_join!(
            biased;
            state.read_revisions(client, schema),
            state.read_atta_revisions(client, schema),
            read_functions(client, schema),
        )?;
        (state.graphile, state.has_wrong_mark) = (graphile, has_wrong_mark);
        (state.atta, state.functions) = (atta, functions);
        Ok(state)
    }

    /// The part of the state that can be read without any privilege.
    pub(super) async fn read_catalog(
        client: &impl GenericClient,
        schema: &Schema,
    ) -> Result<State, tokio_postgres::Error> {
        let sql = include_str!("../../sql/queries/read_schema_state.sql");
        let row = client.query_typed_one(sql, &[(&schema.name(), Type::TEXT)]).await?;
        Ok(State {
            server_version: row.get("server_version"),
            database: row.get("database"),
            role: row.get("role"),
            schema_exists: row.get("schema_exists"),
            may_use_schema: row.get("may_use_schema"),
            may_create_in_schema: row.get("may_create_in_schema"),
            may_create_schema: row.get("may_create_schema"),
            relations: row.get("relations"),
            invalid_indexes: row.get("invalid_indexes"),
            jobs_bytes: row.get("jobs_bytes"),
            foreign_owners: row.get("foreign_owners"),
            has_breaking: row.get("has_breaking"),
            ..State::default()
        })
    }

    /// Graphile's revisions, and whether a breaking one is not marked as such.
    async fn read_revisions(
        &self,
        client: &impl GenericClient,
        schema: &Schema,
    ) -> Result<(Revisions, bool), tokio_postgres::Error> {
        if !self.has("migrations") {
            return Ok((Revisions::default(), false));
        }
        if !self.has_breaking {
            let sql = schema.fill(include_str!("../../sql/queries/read_old_revisions.sql"));
            let newest: Option<i32> = client.query_typed_one(&sql, &[]).await?.get("newest");
            let newest_breaking = BREAKING.into_iter().rev().find(|breaking| Some(*breaking) <= newest);
            return Ok((Revisions { newest, newest_breaking }, newest_breaking.is_some()));
        }
        let sql = schema.fill(include_str!("../../sql/queries/read_revisions.sql"));
        let row = client.query_typed_one(&sql, &[(&BREAKING.as_slice(), Type::INT4_ARRAY)]).await?;
        let revisions = Revisions { newest: row.get("newest"), newest_breaking: row.get("newest_breaking") };
        Ok((revisions, row.get("has_wrong_mark")))
    }

    async fn read_atta_revisions(
        &self,
        client: &impl GenericClient,
        schema: &Schema,
    ) -> Result<Revisions, tokio_postgres::Error> {
        if !self.has("_atta_migrations") {
            return Ok(Revisions::default());
        }
        let sql = schema.fill(include_str!("../../sql/queries/read_atta_revisions.sql"));
        let row = client.query_typed_one(&sql, &[]).await?;
        Ok(Revisions { newest: row.get("newest"), newest_breaking: row.get("newest_breaking") })
    }

    pub(super) fn has(&self, relation: &str) -> bool {
        self.relations.iter().any(|name| name == relation)
    }

    /// The missing privilege that explains a "permission denied", with the statement that grants it.
    pub(super) fn missing_privilege(&self, schema: &Schema) -> Option<String> {
        let role = quote_identifier(&self.role);
        let name = schema.quoted();
        if !self.schema_exists && !self.may_create_schema {
            let database = quote_identifier(&self.database);
            return Some(format!(
                "role {role} lacks CREATE on database {database}; as its owner run: grant create on database \
                 {database} to {role}; or, to give it this one schema: create schema {name} authorization {role};"
            ));
        }
        if let Some(owner) = self.foreign_owners.first() {
            let owner = quote_identifier(owner);
            return Some(format!(
                "the tables of schema {name} belong to role {owner}; connect as that role, or run: grant {owner} to \
                 {role}; the SQL for roles that may do less: atta migrate --print-roles"
            ));
        }
        if self.schema_exists && !(self.may_use_schema && self.may_create_in_schema) {
            return Some(format!(
                "role {role} lacks USAGE or CREATE on schema {name}; as its owner run: grant usage, create on schema \
                 {name} to {role};"
            ));
        }
        None
    }
}

async fn read_functions(
    client: &impl GenericClient,
    schema: &Schema,
) -> Result<Vec<FoundFunction>, tokio_postgres::Error> {
    let sql = include_str!("../../sql/queries/read_functions.sql");
    let rows = client.query_typed(sql, &[(&schema.name(), Type::TEXT)]).await?;
    let found = rows.iter().map(|row| FoundFunction {
        name: row.get("name"),
        argument_types: row.get("argument_types"),
        body: row.get("body"),
    });
    Ok(found.collect())
}
