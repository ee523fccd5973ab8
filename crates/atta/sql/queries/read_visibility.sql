-- The tables that overviews and lists are read from, and whether row level security hides all of their rows from this
-- role: the role may read them, row level security applies to it, and no policy lets it see a row. A policy that lets
-- it read only some rows is taken to be intended. It applies to the owner of a table only if it is forced.
-- No parameters. Locks nothing.
select
  relation.relname::text as name,
  pg_catalog.has_schema_privilege(namespace.oid, 'usage')
    and pg_catalog.has_table_privilege(relation.oid, 'select')
    and pg_catalog.row_security_active(relation.oid)
    and not exists (
      select
      from pg_catalog.pg_policy as policy
      cross join lateral pg_catalog.unnest(policy.polroles) as role (id)
      where policy.polrelid = relation.oid
        and policy.polpermissive
        and policy.polcmd in ('r', '*')
        and (role.id = 0::oid or pg_catalog.pg_has_role(role.id, 'usage'))
    ) as is_hidden,
  pg_catalog.pg_has_role(relation.relowner, 'usage') as is_owner,
  current_user::text as role
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where namespace.nspname = {schema_text}
  and relation.relkind = 'r'
  and relation.relname in (
    '_private_jobs', '_private_job_queues', '_private_tasks', '_private_known_crontabs', '_atta_workers'
  )
