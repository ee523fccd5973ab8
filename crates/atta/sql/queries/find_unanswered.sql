-- How many of these jobs nobody has claimed yet: those that are due, and those that will be due soon.
-- $1 the ids of the jobs, $2 the time, or null for the database's; $3 how many seconds are soon.
-- A held claim is a row lock, and xmax of the row is the transaction that locked it. If that transaction is under way, or
-- has begun since the snapshot, the job is claimed. To lock the rows instead would hide them from another worker's pick at
-- that moment.
-- Locks nothing. Primary key of the table of jobs.
with snapshot as materialized (
  select pg_catalog.txid_current_snapshot() as it
), under_way as materialized (
  select id % 4294967296 as xid
  from snapshot
  cross join lateral pg_catalog.txid_snapshot_xip(snapshot.it) as id
)
select
  pg_catalog.count(*) filter (where job.run_at <= coalesce($2::timestamptz, pg_catalog.now())) as due,
  pg_catalog.count(*) filter (where job.run_at > coalesce($2::timestamptz, pg_catalog.now())) as soon
from {schema}._private_jobs as job
where job.id = any ($1::bigint[])
  and job.locked_at is null
  and job.attempts < job.max_attempts
  and job.run_at <= coalesce($2::timestamptz, pg_catalog.now()) + $3::float8 * interval '1 second'
  and job.xmax::text::bigint < (
    select pg_catalog.txid_snapshot_xmax(snapshot.it) % 4294967296
    from snapshot
  )
  and not exists (
    select
    from under_way
    where under_way.xid = job.xmax::text::bigint
  )
