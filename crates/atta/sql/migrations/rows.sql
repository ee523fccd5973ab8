-- The rows are inserted first: a migration that runs at the same time waits for them.
insert into {schema}.migrations (id, breaking)
select revision, revision in (1, 3, 11, 13, 14, 16, 19)
from pg_catalog.generate_series(
  (select coalesce(pg_catalog.max(migration.id), 0) + 1 from {schema}.migrations as migration),
  20
) as revision;
