-- Graphile's revisions of the schema: the newest, the newest breaking one, and those whose mark is wrong.
-- $1 the ids of the breaking ones. Needs the table migrations with its column breaking.
select
  pg_catalog.max(migration.id) as newest,
  pg_catalog.max(migration.id) filter (where migration.breaking) as newest_breaking,
  coalesce(pg_catalog.bool_or(not migration.breaking and migration.id = any ($1::integer[])), false) as has_wrong_mark
from {schema}.migrations as migration
