-- How many jobs were ever added and deleted, as the server's statistics count them, as JSON text: the difference of two
-- answers is a rate. $1 is not used. Locks nothing. Up to a second behind; null where the server keeps no statistics.
select pg_catalog.json_build_object(
    'at', pg_catalog.clock_timestamp(),
    'added', stat.n_tup_ins,
    'deleted', stat.n_tup_del
  )::text
from pg_stat_user_tables as stat
where stat.schemaname = {schema_text}
  and stat.relname = '_private_jobs'
  and $1::text is not null
