-- Lets the picks of a fleet read the same level one after the other (pick_level_in_turn.sql). Waits for its turn for at most
-- $1 milliseconds, and returns whether it got it.
-- The turn is an advisory lock of the session, since it ends long before the transaction. The setting remembers it for
-- end_scan_turn.sql. If the statement between them fails, the worker closes the session.
with recursive attempt (number, has_turn) as (
  select 1, pg_catalog.pg_try_advisory_lock(1635021921, pg_catalog.hashtext({schema_text}))
  union all
  select
    attempt.number + 1,
    pg_catalog.pg_try_advisory_lock(
      1635021921,
      case when pg_catalog.pg_sleep(0.001) is not null then pg_catalog.hashtext({schema_text}) else 0 end
    )
  from attempt
  where not attempt.has_turn
    and attempt.number < $1::integer
), turn as materialized (
  select pg_catalog.bool_or(attempt.has_turn) as is_taken
  from attempt
)
select
  turn.is_taken,
  pg_catalog.set_config('atta.has_scan_turn', turn.is_taken::text, false)
from turn
