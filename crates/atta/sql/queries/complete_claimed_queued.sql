-- Deletes the jobs that succeeded, as long as they are still this worker's, and frees their queues.
-- $1 the worker, $2 the ids. Returns the ids that were. Locks those jobs, then their queues; primary keys.
with done as (
  delete from {schema}._private_jobs as job
  where job.id = any ($2::bigint[])
    and job.locked_by = $1::text
  returning job.id, job.job_queue_id
), freed as (
  update {schema}._private_job_queues as queue
  set locked_by = null, locked_at = null
  from done
  where queue.id = done.job_queue_id
    and queue.locked_by = $1::text
)
select done.id
from done
