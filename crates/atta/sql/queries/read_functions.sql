-- The bodies of the schema's functions, with the names of their argument types.
-- $1 the schema's name. Locks nothing.
select
  function.proname::text as name,
  array(
    select type.typname::text
    from pg_catalog.unnest(function.proargtypes::oid[]) with ordinality as argument (type_id, place)
    join pg_type as type on type.oid = argument.type_id
    order by argument.place
  ) as argument_types,
  function.prosrc as body
from pg_proc as function
join pg_namespace as namespace on namespace.oid = function.pronamespace
where namespace.nspname = $1::text
