-- The crontab items that workers have registered, in the order of their identifiers, as JSON text.
-- $1 is not used. Locks nothing; reads the whole table, which has one row per item.
select pg_catalog.json_build_object(
    'identifier', known.identifier,
    'known_since', pg_catalog.to_char(
      least(greatest(pg_catalog.timezone('UTC', known.known_since), timestamp '0001-01-01'), timestamp '9999-12-31'),
      'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
    ),
    'last_execution', case when known.last_execution is not null then pg_catalog.to_char(
      least(greatest(pg_catalog.timezone('UTC', known.last_execution), timestamp '0001-01-01'), timestamp '9999-12-31'),
      'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
    ) end
  )::text
from {schema}._private_known_crontabs as known
where $1::text is not null
order by known.identifier
