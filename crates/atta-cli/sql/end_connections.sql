-- Ends whatever is still connected to the benchmark's own database. $1 its name. Leaves out autovacuum, which only a
-- superuser may end: dropping the database ends it.
select pg_catalog.pg_terminate_backend(activity.pid)
from pg_stat_activity as activity
where activity.datname = $1::text
  and activity.backend_type = 'client backend'
