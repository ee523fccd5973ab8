-- Applies Graphile's rule: a lock that is four hours old is ignored. Frees such jobs and queues, except those of our
-- workers with a recent heartbeat, which refresh their locks. Also detaches jobs from queues that another program's
-- clean-up deleted, and deletes the crash counts of jobs that are gone. Returns how many jobs were freed. A queue is
-- freed with its job and not before, so that its jobs stay in order. Locks those rows and skips those that others have
-- locked, which the next sweep frees. _atta_jobs_locked_index for the jobs; reads the tables of queues and crashes and
-- all of _atta_jobs_queue_index, so it runs rarely.
with living as materialized (
  select worker.id
  from {schema}._atta_workers as worker
  where worker.declared_dead_at is null
    and worker.heartbeat_at > pg_catalog.clock_timestamp() - least(worker.recovery_threshold, interval '4 hours')
), stale_job as materialized (
  select job.id
  from {schema}._private_jobs as job
  where job.locked_at is not null
    and job.locked_at < pg_catalog.now() - interval '4 hours'
    and not exists (select from living where living.id = job.locked_by)
  for update skip locked
), freed_job as (
  update {schema}._private_jobs as job
  set locked_by = null, locked_at = null, run_at = greatest(job.run_at, pg_catalog.now())
  where job.id = any (array(select stale_job.id from stale_job))
), still_locked as materialized (
  select job.job_queue_id, job.locked_by
  from {schema}._private_jobs as job
  where job.locked_at is not null
    and job.job_queue_id is not null
    and job.id not in (select stale_job.id from stale_job)
), stale_queue as materialized (
  select queue.id
  from {schema}._private_job_queues as queue
  where queue.locked_at < pg_catalog.now() - interval '4 hours'
    and not exists (select from living where living.id = queue.locked_by)
    and ((queue.id, queue.locked_by) in (select still_locked.job_queue_id, still_locked.locked_by from still_locked))
      is not true
  for update skip locked
), freed_queue as (
  update {schema}._private_job_queues as queue
  set locked_by = null, locked_at = null
  where queue.id = any (array(select stale_queue.id from stale_queue))
), orphan as materialized (
  select job.id
  from {schema}._private_jobs as job
  where job.job_queue_id is not null
    and job.is_available = true
    and not exists (select from {schema}._private_job_queues as queue where queue.id = job.job_queue_id)
  for update skip locked
), detached as (
  update {schema}._private_jobs as job
  set job_queue_id = null
  where job.id = any (array(select orphan.id from orphan))
), forgotten as (
  delete from {schema}._atta_crashes as crash
  where not exists (select from {schema}._private_jobs as job where job.id = crash.job_id)
)
select pg_catalog.count(*) as freed
from stale_job
