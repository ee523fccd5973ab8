-- Gives back jobs that were not run to their end, as long as their claims still stand: the attempt does not count.
-- $1 to $4 as in complete_claimed.sql, $5 seconds before they may run again, $6 null, or when each of them was claimed: once
-- one may have been given back already, a claim of the same attempt may be a later one. Returns the ids of those.
-- Locks the jobs, then their queues; primary keys.
with returned as (
  update {schema}._private_jobs as job
  set
    attempts = greatest(0, job.attempts - 1),
    run_at = case
      when $5::float8 > 0 then greatest(job.run_at, now() + $5::float8 * interval '1 second')
      else job.run_at
    end,
    locked_by = null,
    locked_at = null
  where job.id = any ($2::bigint[])
    and job.locked_by = $1::text
    and (job.attempts = $3::smallint or ($4::boolean and job.key is null))
    and ($6::timestamptz[] is null or job.locked_at = any ($6::timestamptz[]))
  returning job.id, job.job_queue_id
), freed as (
  update {schema}._private_job_queues as queue
  set locked_by = null, locked_at = null
  from returned
  where queue.id = returned.job_queue_id
    and queue.locked_by = $1::text
)
select returned.id
from returned
