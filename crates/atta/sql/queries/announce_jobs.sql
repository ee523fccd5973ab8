-- Tells workers of new jobs, once for all. $1 how many, as text.
select pg_catalog.pg_notify('jobs:insert', pg_catalog.json_build_object('r', pg_catalog.random(), 'count', $1::text::integer)::text)::text
