-- Buries workers that have been silent for too long, once for each, and frees what they held.
-- $1 the seconds after which a silent worker is dead. Returns the freed jobs: worker, id, task, attempts.
-- The crash costs the attempt, so that a job that kills its worker comes to an end, and the error says why. The time
-- stays, so that a queue goes on where it was.
-- Locks the dead workers' rows, skipping those that another worker buries right now, then their jobs and queues.
with dead as (
  delete from {schema}._atta_workers as worker
  where worker.id in (
    select silent.id
    from {schema}._atta_workers as silent
    where silent.heartbeat_at < now() - $1::float8 * interval '1 second'
    for update skip locked
  )
  returning worker.id, worker.host, worker.pid
), noted as (
  insert into {schema}._atta_deaths (worker_id)
  select dead.id
  from dead
  on conflict (worker_id) do update set found_at = now()
), forgotten as (
  delete from {schema}._atta_deaths as death
  where death.found_at < now() - interval '1 day'
), freed_job as (
  update {schema}._private_jobs as job
  set
    locked_by = null,
    locked_at = null,
    last_error = format(
      'worker %s (process %s on %s) died while it had this job', dead.id, dead.pid, dead.host
    )
  from dead
  where job.locked_by = dead.id
  returning job.id, job.task_id, job.attempts, job.max_attempts, dead.id as worker_id
), freed_queue as (
  update {schema}._private_job_queues as queue
  set locked_by = null, locked_at = null
  from dead
  where queue.locked_by = dead.id
)
select dead.id as worker_id, freed_job.id as job_id, task.identifier as task_identifier,
  freed_job.attempts, freed_job.max_attempts
from dead
left join freed_job on freed_job.worker_id = dead.id
left join {schema}._private_tasks as task on task.id = freed_job.task_id
