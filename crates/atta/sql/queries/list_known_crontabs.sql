-- The cron items that workers have made known, in the order of their identifiers, as JSON text.
-- $1 is not used. Locks nothing; reads the whole table, which has a row an item.
select json_build_object(
    'identifier', known.identifier,
    'known_since', known.known_since,
    'last_execution', known.last_execution
  )::text
from {schema}._private_known_crontabs as known
where $1::text is not null
order by known.identifier
