-- The bodies of a schema's functions. $1 the schema, quoted; $2 the names of the functions. Locks nothing.
select function.proname::text as name, function.prosrc as body
from pg_proc as function
where function.proname = any ($2::text[]::name[])
  and function.pronamespace = pg_catalog.to_regnamespace($1::text)::oid
