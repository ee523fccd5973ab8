-- Registers crontab items, and returns what was known about them before; new items are not returned.
-- $1 identifiers, $2 the time from which on the new ones are known.
-- Locks only the rows it inserts; known_crontabs_pkey.
with given as (
  select distinct item.identifier
  from pg_catalog.unnest($1::text[]) as item (identifier)
), registered as (
  insert into {schema}._private_known_crontabs (identifier, known_since)
  select given.identifier, $2::timestamptz
  from given
  where not exists (
    select
    from {schema}._private_known_crontabs as known
    where known.identifier = given.identifier
  )
  order by given.identifier
  on conflict do nothing
)
select known.identifier, known.known_since, known.last_execution
from {schema}._private_known_crontabs as known
join given on given.identifier = known.identifier
