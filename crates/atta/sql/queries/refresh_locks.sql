-- Protects jobs that run for long from Graphile's four-hour rule: renews locks that are an hour old. $1 the worker, $2
-- the jobs that it runs. Returns the ids of those that this worker has locked, and since when. Locks the jobs that it
-- renews, then their queues, and skips rows that others have locked; primary keys.
-- Joins no tables: see complete_claimed_queued.sql.
with old_job as materialized (
  select job.id, job.job_queue_id
  from {schema}._private_jobs as job
  where job.id = any ($2::bigint[])
    and job.locked_by is not distinct from $1::text
    and coalesce(job.locked_at < pg_catalog.now() - interval '1 hour', false)
  for update skip locked
), old_queue as materialized (
  select queue.id
  from {schema}._private_job_queues as queue
  where queue.id = any (array(select old_job.job_queue_id from old_job where old_job.job_queue_id is not null))
    and queue.locked_by is not distinct from $1::text
  for update skip locked
), renewed_queue as (
  update {schema}._private_job_queues as queue
  set locked_at = pg_catalog.now()
  where queue.id = any (array(select old_queue.id from old_queue))
), renewed as (
  update {schema}._private_jobs as job
  set locked_at = pg_catalog.now()
  where job.id = any (array(select old_job.id from old_job))
  returning job.id, job.locked_at
)
select renewed.id, renewed.locked_at
from renewed
union all
select job.id, job.locked_at
from {schema}._private_jobs as job
where job.id = any ($2::bigint[])
  and job.locked_by is not distinct from $1::text
  and job.id not in (select renewed.id from renewed)
