-- Completes many jobs without a queue: deletes those whose claims are still valid. Costs a third less per job than
-- complete_claimed.sql, since it does not lock the jobs first. It waits for jobs that other transactions keep locked,
-- so it runs with a short lock_timeout. If that cancels it, complete_claimed.sql is used instead.
-- $1 the worker; arrays with an entry per job: $2 ids, $3 when each was claimed.
-- Returns the id of each job that was deleted, with true. The claims of the other jobs are lost. Primary key.
with claim as materialized (
  select claim.id, claim.locked_at
  from unnest($2::bigint[], $3::timestamptz[]) as claim (id, locked_at)
)
delete from {schema}._private_jobs as job
using claim
where job.id = claim.id
  and job.locked_by = $1::text
  and job.locked_at = claim.locked_at
returning job.id, true as is_written
