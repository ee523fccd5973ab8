-- The schemas for producers (roles/producer.sql) that add jobs to this schema; or, if this schema is one of them, the
-- schema that it adds to. A schema for producers has a view of the other one's migrations.
-- No parameters. Locks nothing. Relies on pg_depend_depender_index.
select distinct
  adding.nspname::text as add_schema,
  source_schema.nspname::text as schema,
  pg_catalog.has_schema_privilege(adding.oid, 'usage') as may_add
from pg_catalog.pg_class as view
join pg_catalog.pg_namespace as adding on adding.oid = view.relnamespace
join pg_catalog.pg_rewrite as rule on rule.ev_class = view.oid
join pg_catalog.pg_depend as dependency
  on dependency.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass::oid
  and dependency.objid = rule.oid
  and dependency.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass::oid
join pg_catalog.pg_class as source on source.oid = dependency.refobjid
join pg_catalog.pg_namespace as source_schema on source_schema.oid = source.relnamespace
where view.relname = 'migrations'
  and view.relkind = 'v'
  and source.relname = 'migrations'
  and source.oid <> view.oid
  and {schema_text} in (adding.nspname, source_schema.nspname)
order by may_add desc, add_schema
