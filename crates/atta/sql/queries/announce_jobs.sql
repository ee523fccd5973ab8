-- Notifies workers of new jobs, once for all of them. $1 the number of jobs, as text. Locks nothing.
select pg_catalog.pg_notify(
  'jobs:insert',
  pg_catalog.json_build_object('r', pg_catalog.random(), 'count', $1::text::integer, 'schema', {schema_text})::text
)::text
