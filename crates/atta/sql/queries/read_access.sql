-- How a role may access the tables when it adds jobs, as text: `copy` (COPY into them), `read` (look up names), or
-- `add` (only call the functions; there may be no tables at all). $1 is not used. Locks nothing.
-- PostgreSQL refuses COPY into a table to every role to which row level security applies.
select coalesce(
    (
      select case
        when not pg_catalog.has_schema_privilege(namespace.oid, 'usage') then 'add'
        when not pg_catalog.has_table_privilege(relation.oid, 'select') then 'add'
        when not pg_catalog.has_table_privilege(relation.oid, 'insert') then 'add'
        when pg_catalog.row_security_active(relation.oid) then 'read'
        else 'copy'
      end
      from pg_class as relation
      join pg_namespace as namespace on namespace.oid = relation.relnamespace
      where namespace.nspname = {schema_text}
        and relation.relname = '_private_jobs'
        and $1::text is not null
    ),
    'add'
  )
