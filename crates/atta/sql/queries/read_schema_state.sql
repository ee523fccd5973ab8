-- The state of the schema, from the catalog alone: none of our objects need exist yet.
-- $1 the schema's name. Locks nothing.
select
  pg_catalog.current_setting('server_version_num')::integer as server_version,
  pg_catalog.current_database()::text as database,
  current_user::text as role,
  namespace.oid is not null as schema_exists,
  coalesce(pg_catalog.has_schema_privilege(namespace.oid, 'usage'), false) as may_use_schema,
  coalesce(pg_catalog.has_schema_privilege(namespace.oid, 'create'), false) as may_create_in_schema,
  pg_catalog.has_database_privilege(pg_catalog.current_database(), 'create') as may_create_schema,
  array(
    select relation.relname::text
    from pg_class as relation
    where relation.relnamespace = namespace.oid
      and relation.relkind in ('r', 'v', 'i', 'S')
      and not exists (
        select
        from pg_catalog.pg_index as index
        where index.indexrelid = relation.oid and not index.indisvalid
      )
  ) as relations,
  array(
    select relation.relname::text
    from pg_class as relation
    join pg_catalog.pg_index as index on index.indexrelid = relation.oid
    where relation.relnamespace = namespace.oid
      and not index.indisvalid
  ) as invalid_indexes,
  coalesce(
    (
      select pg_catalog.max(pg_catalog.pg_relation_size(relation.oid))
      from pg_class as relation
      where relation.relnamespace = namespace.oid
        and relation.relkind = 'r'
        and relation.relname in ('jobs', '_private_jobs')
    ),
    0
  ) as jobs_bytes,
  array(
    select distinct pg_catalog.pg_get_userbyid(relation.relowner)::text
    from pg_class as relation
    where relation.relnamespace = namespace.oid
      and relation.relkind in ('r', 'v')
      and not pg_catalog.pg_has_role(relation.relowner, 'usage')
  ) as foreign_owners,
  exists (
    select
    from pg_class as relation
    join pg_roles as owner on owner.oid = relation.relowner
    where relation.relnamespace = namespace.oid
      and relation.relkind in ('r', 'v')
      and owner.rolsuper
  ) as belongs_to_superuser,
  exists (
    select
    from pg_class as relation
    join pg_attribute as attribute on attribute.attrelid = relation.oid
    where relation.relnamespace = namespace.oid
      and relation.relname = 'migrations'
      and attribute.attname = 'breaking'
      and not attribute.attisdropped
  ) as has_breaking
from (select $1::text as name) as wanted
left join pg_namespace as namespace on namespace.nspname = wanted.name
