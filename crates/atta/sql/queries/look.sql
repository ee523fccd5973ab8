-- The one statement of an idle worker: says that it is alive, asks whether one of the others is not, how
-- many died lately, whose functions add jobs, and how long it is until each of the next jobs that it could take (in
-- seconds, negative if one is due; none if there is none).
-- $1 the task identifiers, $2 forbidden flags, $3 the time or null for the database's, $4 the worker, $5 the seconds
-- after which a silent worker is dead, $6 whether to look for jobs. Locks the worker's own row.
-- Jumps from priority to priority along jobs_main_index, and reads the first fitting jobs of each, from the first that
-- there is: what is dead before it is walked over once.
with recursive beat as (
  update {schema}._atta_workers as worker
  set heartbeat_at = now()
  where worker.id = $4::text
  returning worker.id
), task as materialized (
  select task.id
  from {schema}._private_tasks as task
  where task.identifier = any ($1::text[])
), level (priority, run_at) as (
  (
    select job.priority, job.run_at
    from {schema}._private_jobs as job
    where job.is_available = true
      and $6::boolean
    order by job.priority, job.run_at
    limit 1
  )
  union all
  select next.priority, next.run_at
  from level
  cross join lateral (
    select job.priority, job.run_at
    from {schema}._private_jobs as job
    where job.is_available = true
      and job.priority > level.priority
    order by job.priority, job.run_at
    limit 1
  ) as next
)
select
  exists (select from beat) as is_registered,
  exists (
    select
    from {schema}._atta_workers as worker
    where worker.heartbeat_at < now() - $5::float8 * interval '1 second'
      and worker.id <> $4::text
  ) as others_are_silent,
  (
    select count(*)
    from {schema}._atta_deaths as death
    where death.found_at > now() - interval '5 minutes'
  ) as recent_deaths,
  (
    select count(*) = 2
    from pg_proc as function
    join pg_namespace as namespace on namespace.oid = function.pronamespace
    where namespace.nspname = {schema_text}
      and function.proname in ('add_job', 'add_jobs')
      and position('atta functions, revision' in function.prosrc) > 0
  ) as functions_are_ours,
  (array_agg(next.seconds order by next.seconds))[1:32] as next_due
from level
cross join lateral (
  select
    extract(epoch from (
      greatest(
        least(job.run_at, coalesce($3::timestamptz, now()) + interval '1 day'),
        coalesce($3::timestamptz, now()) - interval '1 day'
      ) - coalesce($3::timestamptz, now())
    ))::float8 as seconds
  from {schema}._private_jobs as job
  where job.is_available = true
    and job.priority = level.priority
    and job.run_at >= level.run_at
    and job.task_id = any (array(select task.id from task))
    and (job.flags ?| $2::text[]) is not true
    and (
      job.job_queue_id is null
      or exists (
        select
        from {schema}._private_job_queues as queue
        where queue.id = job.job_queue_id and queue.is_available = true
      )
    )
  order by job.run_at
  limit 32
) as next
