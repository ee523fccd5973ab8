-- Graphile's rule for everybody's locks: after four hours they count for nothing.
-- Frees such jobs and queues, except those of workers that are known to be alive, which refresh theirs. Also lets go
-- of queues that a clean-up of another tool deleted under their jobs. Returns how many jobs were freed.
-- Locks those rows; reads the whole table, so it runs rarely.
with living as (
  select worker.id
  from {schema}._atta_workers as worker
), freed_job as (
  update {schema}._private_jobs as job
  set locked_by = null, locked_at = null, run_at = greatest(job.run_at, now())
  where job.locked_at < now() - interval '4 hours'
    and not exists (select from living where living.id = job.locked_by)
  returning job.id
), freed_queue as (
  update {schema}._private_job_queues as queue
  set locked_by = null, locked_at = null
  where queue.locked_at < now() - interval '4 hours'
    and not exists (select from living where living.id = queue.locked_by)
), orphan as (
  update {schema}._private_jobs as job
  set job_queue_id = null
  where job.job_queue_id is not null
    and job.is_available = true
    and not exists (select from {schema}._private_job_queues as queue where queue.id = job.job_queue_id)
)
select count(*) as freed
from freed_job
