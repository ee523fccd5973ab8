-- Keeps Graphile's four-hour rule away from jobs that run for long: renews locks that are an hour old. $1 the worker, $2
-- the jobs that it runs. Locks those jobs, then their queues; skips jobs that others have locked, as the next refresh comes
-- long before the four hours are over. Primary keys.
with old as materialized (
  select job.id
  from {schema}._private_jobs as job
  where job.id = any ($2::bigint[])
    and job.locked_by = $1::text
    and job.locked_at < now() - interval '1 hour'
  for update skip locked
), refreshed as (
  update {schema}._private_jobs as job
  set locked_at = now()
  from old
  where job.id = old.id
  returning job.job_queue_id
)
update {schema}._private_job_queues as queue
set locked_at = now()
from refreshed
where queue.id = refreshed.job_queue_id
  and queue.locked_by = $1::text
