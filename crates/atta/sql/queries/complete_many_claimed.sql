-- Completes many jobs without a queue: deletes those whose claims are still valid. Costs a third less per job than
-- complete_claimed.sql, since it does not lock the jobs first. It waits for jobs that other transactions keep locked,
-- so it runs with a short lock_timeout. If that cancels it, complete_claimed.sql is used instead.
-- $1 the worker; arrays with an entry per job: $2 ids, $3 when each was claimed.
-- Returns the id of each job that was deleted, with true. The claims of the other jobs are lost. Primary key.
-- Joins no tables: see complete_claimed_queued.sql.
with claim as materialized (
  select claim.id, claim.locked_at
  from unnest($2::bigint[], $3::timestamptz[]) as claim (id, locked_at)
)
delete from {schema}._private_jobs as job
where job.id = any ($2::bigint[])
  and job.locked_by is not distinct from $1::text
  and ((job.id, job.locked_at) not in (select claim.id, claim.locked_at from claim)) is false
returning job.id, true as is_written
