-- Gives back jobs that were not run to their end, as long as they are still this worker's: the attempt does not count.
-- $1 the worker, $2 the ids, $3 seconds before they may run again. Returns the ids that were ours.
-- Locks those jobs, then their queues; primary keys.
with returned as (
  update {schema}._private_jobs as job
  set
    attempts = greatest(0, job.attempts - 1),
    run_at = case
      when $3::float8 > 0 then greatest(job.run_at, now() + $3::float8 * interval '1 second')
      else job.run_at
    end,
    locked_by = null,
    locked_at = null
  where job.id = any ($2::bigint[])
    and job.locked_by = $1::text
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
