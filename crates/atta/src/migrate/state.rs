//! The state of a schema, read without a lock and without relying on any object to exist.

use tokio_postgres::GenericClient;

use super::functions::{FUNCTIONS, FoundFunction, Function};
use super::queries;
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
    /// Tables, views, sequences and valid indexes.
    pub(super) relations: Vec<String>,
    /// Indexes whose build is still running, or was interrupted.
    pub(super) invalid_indexes: Vec<String>,
    /// The size of the table of jobs in bytes; 0 if there is none.
    pub(super) jobs_bytes: i64,
    /// The roles that own tables or views here and whose privileges this role does not have.
    pub(super) foreign_owners: Vec<String>,
    /// Whether a superuser owns a table of the schema. Nobody should be granted such a role.
    pub(super) belongs_to_superuser: bool,
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
    Ok(queries::is_current(client, schema).await? && has_our_bodies(client, schema).await?)
}

async fn has_our_bodies(client: &impl GenericClient, schema: &Schema) -> Result<bool, tokio_postgres::Error> {
    let names: Vec<&str> = FUNCTIONS.iter().map(|function| function.name).collect();
    let bodies = queries::read_bodies(client, schema, &names).await?;
    let stands = |function: &Function| {
        let body = function.body(schema);
        bodies.iter().any(|(name, found)| *name == function.name && *found == body)
    };
    Ok(FUNCTIONS.iter().all(stands))
}

impl State {
    pub(super) async fn read(
        client: &impl GenericClient,
        schema: &Schema,
    ) -> Result<State, tokio_postgres::Error> {
        let mut state = queries::read_schema_state(client, schema).await?;
        // Sent one after the other without waiting for the answers. Only the first error gives the reason; the others
        // follow from it.
        let ((graphile, has_wrong_mark), atta, functions) = tokio::try_join!(
            biased;
            state.read_revisions(client, schema),
            state.read_atta_revisions(client, schema),
            queries::read_functions(client, schema),
        )?;
        (state.graphile, state.has_wrong_mark) = (graphile, has_wrong_mark);
        (state.atta, state.functions) = (atta, functions);
        Ok(state)
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
            let newest = queries::read_old_revisions(client, schema).await?;
            let newest_breaking = BREAKING.into_iter().rev().find(|breaking| Some(*breaking) <= newest);
            return Ok((Revisions { newest, newest_breaking }, newest_breaking.is_some()));
        }
        queries::read_revisions(client, schema).await
    }

    async fn read_atta_revisions(
        &self,
        client: &impl GenericClient,
        schema: &Schema,
    ) -> Result<Revisions, tokio_postgres::Error> {
        if !self.has("_atta_migrations") {
            return Ok(Revisions::default());
        }
        queries::read_atta_revisions(client, schema).await
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
            let grant = match self.belongs_to_superuser {
                true => String::new(),
                false => format!(", or run: grant {owner} to {role}"),
            };
            return Some(format!(
                "the tables of schema {name} belong to role {owner}; connect as that role{grant}; the SQL for roles \
                 that may do less: atta migrate --print-roles"
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
