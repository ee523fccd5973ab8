-- Notifies workers at commit. Those that can't work with a breaking revision stop.
select pg_catalog.pg_notify(
  'worker:migrate',
  pg_catalog.json_build_object('migrationNumber', migration.id, 'breaking', migration.breaking)::text
)
from {schema}.migrations as migration
where migration.ts = pg_catalog.now()
order by migration.id;
