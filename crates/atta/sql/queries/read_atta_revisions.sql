-- Which of our own revisions the schema has.
select
  pg_catalog.max(migration.id) as newest,
  pg_catalog.max(migration.id) filter (where migration.breaking) as newest_breaking
from {schema}._atta_migrations as migration
