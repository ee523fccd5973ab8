-- Workers that can't go on with a breaking revision hear of it at commit, and stop.
select pg_notify(
  'worker:migrate',
  json_build_object('migrationNumber', migration.id, 'breaking', migration.breaking)::text
)
from {schema}.migrations as migration
where migration.ts = now()
order by migration.id;
