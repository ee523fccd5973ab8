//! The privileges of each role on all existing objects, including those that a later version adds.

use super::support::Roles;
use crate::sql_api::support::value;

/// The privileges of a role on all tables, views and columns of both schemas, without the names of the schemas.
async fn on_tables(roles: &Roles, kind: &str, schema: &str) -> String {
    let (login, schema) = (roles.login(kind), schema.replace('\'', "''"));
    let sql = format!(
        "select coalesce(string_agg(distinct privilege, ' ' order by privilege), '')
         from pg_class as relation
         cross join unnest('{{SELECT,INSERT,UPDATE,REFERENCES,DELETE,TRUNCATE,TRIGGER}}'::text[]) as privilege
         where relation.relnamespace = (select oid from pg_namespace where nspname = '{schema}')
           and relation.relkind in ('r', 'p', 'v', 'm', 'f')
           and case
             when privilege in ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES')
               then has_any_column_privilege('{login}', relation.oid, privilege)
             else has_table_privilege('{login}', relation.oid, privilege)
           end"
    );
    value(&roles.owner, &sql).await
}

async fn on_sequences(roles: &Roles, kind: &str, of_scan: bool) -> String {
    let login = roles.login(kind);
    let sql = format!(
        "select coalesce(string_agg(distinct privilege, ' ' order by privilege), '')
         from pg_class as relation
         cross join unnest('{{USAGE,SELECT,UPDATE}}'::text[]) as privilege
         where relation.relnamespace = 'graphile_worker'::regnamespace
           and relation.relkind = 'S'
           and (relation.relname like '\\_atta\\_scan\\_%') = {of_scan}
           and has_sequence_privilege('{login}', relation.oid, privilege)"
    );
    value(&roles.owner, &sql).await
}

/// The functions that a role can run with the rights of their owner.
async fn as_owner(roles: &Roles, kind: &str) -> String {
    let login = roles.login(kind);
    let sql = format!(
        "select coalesce(string_agg(function.proname, ' ' order by function.proname), '')
         from pg_proc as function
         join pg_namespace as namespace on namespace.oid = function.pronamespace
         where namespace.nspname !~ '^(pg_|information_schema)'
           and function.prosecdef
           and has_schema_privilege('{login}', namespace.oid, 'usage')
           and has_function_privilege('{login}', function.oid, 'execute')"
    );
    value(&roles.owner, &sql).await
}

#[tokio::test]
async fn no_role_has_a_privilege_that_it_does_not_need() {
    let roles = Roles::new().await;
    let add_schema = roles.add_schema();
    let expected = [
        ("producer", "", "SELECT", "", "add_job add_jobs"),
        ("worker", "DELETE INSERT SELECT UPDATE", "", "USAGE", ""),
        ("reader", "SELECT", "", "", ""),
    ];
    for (kind, tables, add_tables, sequences, functions) in expected {
        assert_eq!(on_tables(&roles, kind, "graphile_worker").await, tables, "{kind}");
        assert_eq!(on_tables(&roles, kind, add_schema.name()).await, add_tables, "{kind}");
        assert_eq!(on_sequences(&roles, kind, false).await, sequences, "{kind}");
        // Where the picks of a fleet have ended.
        let of_scan = if kind == "worker" { "SELECT UPDATE USAGE" } else { "" };
        assert_eq!(on_sequences(&roles, kind, true).await, of_scan, "{kind}");
        assert_eq!(as_owner(&roles, kind).await, functions, "{kind}");
        let login = roles.login(kind);
        let creates = format!(
            "select count(*) from pg_namespace where has_schema_privilege('{login}', oid, 'create')
               and nspname in ('graphile_worker', '{}')",
            add_schema.name()
        );
        assert_eq!(value(&roles.owner, &creates).await, "0", "{kind}");
        let is_plain = format!(
            "select not (rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)
             from pg_roles where rolname = '{login}'"
        );
        assert_eq!(value(&roles.owner, &is_plain).await, "true", "{kind}");
    }
    // The only view that a producer can read contains the revisions.
    let seen = format!("select count(*) from {}.migrations", add_schema.quoted());
    assert_eq!(value(&roles.client("producer").await, &seen).await, value(&roles.owner, &seen).await);
}
