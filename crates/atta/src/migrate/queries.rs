//! The statements that read the state of a schema: one function per file in `sql/queries`, named like its file.

use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};

use super::functions::FoundFunction;
use super::state::{BREAKING, Revisions, State};
use super::{GRAPHILE_REVISION, plan};
use crate::Schema;

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// Whether the schema has the newest revisions and all relations. It does not check the functions.
pub(super) async fn is_current(client: &impl GenericClient, schema: &Schema) -> Result<bool> {
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

/// The name and the body of each of these functions that exists.
pub(super) async fn read_bodies(
    client: &impl GenericClient,
    schema: &Schema,
    names: &[&str],
) -> Result<Vec<(String, String)>> {
    let sql = include_str!("../../sql/queries/read_bodies.sql");
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&schema.quoted(), Type::TEXT), (&names, Type::TEXT_ARRAY)];
    let rows = client.query_typed(sql, &parameters).await?;
    Ok(rows.iter().map(|row| (row.get("name"), row.get("body"))).collect())
}

/// The part of the state that can be read without any privilege.
pub(super) async fn read_schema_state(client: &impl GenericClient, schema: &Schema) -> Result<State> {
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
        belongs_to_superuser: row.get("belongs_to_superuser"),
        has_breaking: row.get("has_breaking"),
        ..State::default()
    })
}

/// The newest of Graphile's revisions, from a table without marks of breaking revisions.
pub(super) async fn read_old_revisions(client: &impl GenericClient, schema: &Schema) -> Result<Option<i32>> {
    let sql = schema.fill(include_str!("../../sql/queries/read_old_revisions.sql"));
    Ok(client.query_typed_one(&sql, &[]).await?.get("newest"))
}

/// Graphile's revisions, and whether a breaking one is not marked as such.
pub(super) async fn read_revisions(
    client: &impl GenericClient,
    schema: &Schema,
) -> Result<(Revisions, bool)> {
    let sql = schema.fill(include_str!("../../sql/queries/read_revisions.sql"));
    let row = client.query_typed_one(&sql, &[(&BREAKING.as_slice(), Type::INT4_ARRAY)]).await?;
    let revisions = Revisions { newest: row.get("newest"), newest_breaking: row.get("newest_breaking") };
    Ok((revisions, row.get("has_wrong_mark")))
}

/// Our own revisions.
pub(super) async fn read_atta_revisions(client: &impl GenericClient, schema: &Schema) -> Result<Revisions> {
    let sql = schema.fill(include_str!("../../sql/queries/read_atta_revisions.sql"));
    let row = client.query_typed_one(&sql, &[]).await?;
    Ok(Revisions { newest: row.get("newest"), newest_breaking: row.get("newest_breaking") })
}

/// All functions of the schema.
pub(super) async fn read_functions(
    client: &impl GenericClient,
    schema: &Schema,
) -> Result<Vec<FoundFunction>> {
    let sql = include_str!("../../sql/queries/read_functions.sql");
    let rows = client.query_typed(sql, &[(&schema.name(), Type::TEXT)]).await?;
    let found = rows.iter().map(|row| FoundFunction {
        name: row.get("name"),
        argument_types: row.get("argument_types"),
        body: row.get("body"),
    });
    Ok(found.collect())
}

/// Whether another session is building an index on this table.
pub(super) async fn read_index_builds(
    client: &impl GenericClient,
    schema: &Schema,
    table: &str,
) -> Result<bool> {
    let sql = include_str!("../../sql/queries/read_index_builds.sql");
    let parameters = [(&schema.name() as _, Type::TEXT), (&table as _, Type::TEXT)];
    Ok(client.query_typed_one(sql, &parameters).await?.get("is_building"))
}

/// The time limits of a session, as values of settings.
pub(super) struct Limits {
    pub(super) statement: String,
    pub(super) lock: String,
}

/// The time limits of this session.
pub(super) async fn read_limits(client: &impl GenericClient) -> Result<Limits> {
    let row = client.query_typed_one(include_str!("../../sql/queries/read_limits.sql"), &[]).await?;
    Ok(Limits { statement: row.get("statement_timeout"), lock: row.get("lock_timeout") })
}

/// Sets the time limits of this session.
pub(super) async fn set_limits(client: &impl GenericClient, limits: &Limits) -> Result<()> {
    let sql = include_str!("../../sql/queries/set_limits.sql");
    let parameters = [(&limits.statement as _, Type::TEXT), (&limits.lock as _, Type::TEXT)];
    client.query_typed(sql, &parameters).await.map(drop)
}
