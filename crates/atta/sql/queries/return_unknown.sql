-- Returns jobs that this worker has locked but does not know about: the reply to their claim was lost.
-- $1 the worker, $2 the ids that it knows. Never waits for a row. The result has the ids that it did not know: with
-- true those that were returned, with false those that another transaction keeps locked, or whose queue it does. The
-- worker must not run any claim at the same time. Locks those jobs and their queues; _atta_jobs_locked_index and
-- primary keys.
with unknown as materialized (
  select job.id, job.job_queue_id
  from {schema}._private_jobs as job
  where job.locked_at is not null
    and job.locked_by = $1::text
    and job.id <> all ($2::bigint[])
), locked_job as materialized (
  select job.id, job.job_queue_id
  from unknown
  join {schema}._private_jobs as job on job.id = unknown.id
  where job.locked_by = $1::text
  for update of job skip locked
), own_queue as materialized (
  select queue.id
  from locked_job
  join {schema}._private_job_queues as queue on queue.id = locked_job.job_queue_id
  where queue.locked_by = $1::text
), locked_queue as materialized (
  select queue.id
  from own_queue
  join {schema}._private_job_queues as queue on queue.id = own_queue.id
  where queue.locked_by = $1::text
  for update of queue skip locked
), returned as (
  update {schema}._private_jobs as job
  set attempts = greatest(0, job.attempts - 1), locked_by = null, locked_at = null
  from locked_job
  where job.id = locked_job.id
    and (
      locked_job.job_queue_id is null
      or locked_job.job_queue_id not in (select own_queue.id from own_queue)
      or locked_job.job_queue_id in (select locked_queue.id from locked_queue)
    )
  returning job.id
), freed as (
  update {schema}._private_job_queues as queue
  set locked_by = null, locked_at = null
  from locked_queue
  where queue.id = locked_queue.id
)
select unknown.id, unknown.id in (select returned.id from returned) as is_returned
from unknown
