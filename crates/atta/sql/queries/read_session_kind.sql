-- Whether a new connection leads to a standby or is read-only, for target_session_attrs. No parameters, no locks, no
-- tables.
select
  pg_catalog.pg_is_in_recovery() as is_standby,
  pg_catalog.current_setting('transaction_read_only') as is_read_only
