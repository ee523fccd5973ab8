-- What has been spent so far: bytes of WAL (by the whole server), commits (in this database), and row versions that
-- were made dead in the schema. $1 the schema's name. Counts of a connection are complete once that has ended.
select
  (pg_catalog.pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::double precision,
  (
    select stat.xact_commit::double precision
    from pg_stat_database as stat
    where stat.datname = pg_catalog.current_database()
  ),
  (
    select coalesce(pg_catalog.sum(stat.n_tup_upd + stat.n_tup_del), 0)::double precision
    from pg_stat_user_tables as stat
    where stat.schemaname = $1::text
  )
