-- The role that owns a schema, and the role of this session, which will own what it creates. No row: there is no such
-- schema. $1 the name of the schema. Locks nothing.
select
  pg_catalog.pg_get_userbyid(namespace.nspowner)::text as owner,
  current_user::text as role
from pg_catalog.pg_namespace as namespace
where namespace.nspname operator(pg_catalog.=) $1::text
