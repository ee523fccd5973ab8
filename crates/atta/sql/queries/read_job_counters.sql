-- How many jobs were ever added and deleted, by the server's statistics, as JSON text. The difference between two
-- readings gives a rate. $1 is not used. Locks nothing. Lags by up to a second; null if the server keeps no statistics.
select pg_catalog.json_build_object(
    'at', pg_catalog.clock_timestamp(),
    'added', stat.n_tup_ins,
    'deleted', stat.n_tup_del
  )::text
from pg_stat_user_tables as stat
where stat.schemaname = {schema_text}
  and stat.relname = '_private_jobs'
  and $1::text is not null
