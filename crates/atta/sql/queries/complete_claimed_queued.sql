-- Deletes the jobs that succeeded, as long as their claims still stand, and frees their queues. The parameters are those of
-- complete_claimed.sql. Returns the ids of those. Locks the jobs, then their queues; primary keys.
with done as (
  delete from {schema}._private_jobs as job
  where job.id = any ($2::bigint[])
    and job.locked_by = $1::text
    and (job.attempts = $3::smallint or ($4::boolean and job.key is null))
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
