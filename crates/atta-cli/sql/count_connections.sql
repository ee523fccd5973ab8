-- How many other connections the benchmark has here. $1 its application_name.
select pg_catalog.count(*)
from pg_stat_activity as activity
where activity.application_name = $1::text
  and activity.datname = pg_catalog.current_database()
  and activity.pid <> pg_catalog.pg_backend_pid()
