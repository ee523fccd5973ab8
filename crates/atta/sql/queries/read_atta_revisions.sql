-- Which of our own revisions the schema has.
select
  max(migration.id) as newest,
  max(migration.id) filter (where migration.breaking) as newest_breaking
from {schema}._atta_migrations as migration
