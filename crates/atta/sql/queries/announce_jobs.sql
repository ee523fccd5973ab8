-- Tells workers of new jobs, once for all. $1 how many, as text.
select pg_notify('jobs:insert', json_build_object('r', random(), 'count', $1::text::integer)::text)::text
