-- Frees what workers hold that were buried before: a statement of theirs came late, or they rose for a moment, claimed,
-- and were gone before they had registered again.
-- $1 the seconds after which a silent worker is dead; a lock must be as old, as who lives registers sooner. Returns the
-- freed jobs: worker, id. Attempts, error and time as in recover_workers.
-- Locks those jobs, then their queues; reads the whole table, so it runs after a burial only.
with dead as (
  select death.worker_id as id
  from {schema}._atta_deaths as death
  where not exists (select from {schema}._atta_workers as worker where worker.id = death.worker_id)
), freed_job as (
  update {schema}._private_jobs as job
  set
    locked_by = null,
    locked_at = null,
    last_error = format('worker %s died while it had this job', dead.id)
  from dead
  where job.locked_by = dead.id
    and job.locked_at < now() - $1::float8 * interval '1 second'
  returning job.id, dead.id as worker_id
), freed_queue as (
  update {schema}._private_job_queues as queue
  set locked_by = null, locked_at = null
  from dead
  where queue.locked_by = dead.id
    and queue.locked_at < now() - $1::float8 * interval '1 second'
)
select freed_job.worker_id, freed_job.id as job_id
from freed_job
