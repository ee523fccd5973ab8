-- Our workers, by their rows, and after them all others that have locked a job or a queue, by their locks. As JSON
-- text.
-- $1 is not used. Locks nothing; _atta_jobs_locked_index for the jobs, and one scan of the queues.
with held_job as (
  select job.locked_by as worker_id, pg_catalog.count(*) as count, pg_catalog.min(job.locked_at) as since
  from {schema}._private_jobs as job
  where job.locked_at is not null
    and job.locked_by is not null
  group by job.locked_by
), held_queue as (
  select queue.locked_by as worker_id, pg_catalog.count(*) as count, pg_catalog.min(queue.locked_at) as since
  from {schema}._private_job_queues as queue
  where queue.locked_by is not null
  group by queue.locked_by
), held as (
  select
    coalesce(held_job.worker_id, held_queue.worker_id) as worker_id,
    coalesce(held_job.count, 0) as jobs,
    coalesce(held_queue.count, 0) as queues,
    least(held_job.since, held_queue.since) as since
  from held_job
  full join held_queue on held_queue.worker_id = held_job.worker_id
)
select pg_catalog.json_build_object(
    'id', coalesce(worker.id, held.worker_id),
    'host', worker.host,
    'pid', worker.pid,
    'version', worker.version,
    'slots', worker.slots,
    'task_identifiers', worker.task_identifiers,
    'started_at', worker.started_at,
    'heartbeat_at', worker.heartbeat_at,
    'silent_seconds', extract(epoch from pg_catalog.now() - worker.heartbeat_at)::float8,
    'recovery_threshold_seconds', extract(epoch from worker.recovery_threshold)::float8,
    'declared_dead_at', worker.declared_dead_at,
    'jobs', coalesce(held.jobs, 0),
    'queues', coalesce(held.queues, 0),
    'oldest_lock_at', case when held.since is not null then pg_catalog.to_char(
      least(greatest(pg_catalog.timezone('UTC', held.since), timestamp '0001-01-01'), timestamp '9999-12-31'),
      'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
    ) end
  )::text
from {schema}._atta_workers as worker
full join held on held.worker_id = worker.id
where $1::text is not null
order by worker.id is null, worker.started_at, coalesce(worker.id, held.worker_id)
