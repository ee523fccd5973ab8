-- Sets the time limits of this session. $1 the one for statements, $2 the one for locks. Locks nothing.
select
  pg_catalog.set_config('statement_timeout', $1::text, false),
  pg_catalog.set_config('lock_timeout', $2::text, false)
