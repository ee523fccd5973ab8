-- How near a role comes to the tables when it adds jobs, as text: `copy` them in, `read` what a name stands for, or only
-- `add` by the functions, where there may be no tables at all. $1 is not used. Locks nothing.
-- A COPY into a table is refused to everybody for whom a policy decides.
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
