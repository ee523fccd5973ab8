-- Returns jobs that are marked as this worker's and that it does not know: the reply to their claim was lost.
-- $1 the worker, $2 the ids that it knows of. Returns the ids that it did not. Nothing else of the worker's may be
-- claiming meanwhile. Locks those jobs, then their queues; _atta_jobs_locked_index and primary keys.
with returned as (
  update {schema}._private_jobs as job
  set attempts = greatest(0, job.attempts - 1), locked_by = null, locked_at = null
  where job.locked_at is not null
    and job.locked_by = $1::text
    and job.id <> all ($2::bigint[])
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
