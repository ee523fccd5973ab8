-- The time limits of this session for statements and for locks. Locks nothing.
select
  pg_catalog.current_setting('statement_timeout') as statement_timeout,
  pg_catalog.current_setting('lock_timeout') as lock_timeout
