-- Protects jobs that run for long from Graphile's four-hour rule: renews locks that are an hour old. $1 the worker, $2
-- the jobs that it runs. Returns the ids of those that this worker has locked, and since when. Locks the jobs that it
-- renews, then their queues, and skips rows that others have locked; primary keys.
with old_job as materialized (
  select job.id, job.job_queue_id
  from {schema}._private_jobs as job
  where job.id = any ($2::bigint[])
    and job.locked_by = $1::text
    and job.locked_at < pg_catalog.now() - interval '1 hour'
  for update skip locked
), old_queue as materialized (
  select queue.id
  from old_job
  join {schema}._private_job_queues as queue on queue.id = old_job.job_queue_id
  where queue.locked_by = $1::text
  for update of queue skip locked
), renewed_queue as (
  update {schema}._private_job_queues as queue
  set locked_at = pg_catalog.now()
  from old_queue
  where queue.id = old_queue.id
), renewed as (
  update {schema}._private_jobs as job
  set locked_at = pg_catalog.now()
  from old_job
  where job.id = old_job.id
  returning job.id, job.locked_at
)
select job.id, coalesce(renewed.locked_at, job.locked_at) as locked_at
from {schema}._private_jobs as job
left join renewed on renewed.id = job.id
where job.id = any ($2::bigint[])
  and job.locked_by = $1::text
