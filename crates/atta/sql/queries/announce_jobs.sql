-- Notifies workers of new jobs, once for all of them. $1 how many, as text. Locks nothing.
select pg_notify(
  'jobs:insert',
  json_build_object('r', random(), 'count', $1::text::integer, 'schema', {schema_text})::text
)::text
