-- Changes when, with which priority and how often these jobs run. Running jobs are skipped. An argument that is null
-- leaves its value as it is. Returns the changed jobs.
create or replace function {schema}.reschedule_jobs(
  job_ids bigint[],
  run_at timestamptz default null,
  priority integer default null,
  attempts integer default null,
  max_attempts integer default null
)
returns setof {schema}._private_jobs
as $atta$
  -- {functions_marker}
  with idle as (
    select job.id
    from {schema}._private_jobs as job
    where job.id = any (reschedule_jobs.job_ids)
      and (job.locked_at is null or job.locked_at < pg_catalog.now() - interval '4 hours')
    order by job.id
    for update
  )
  update {schema}._private_jobs as job
  set
    run_at = coalesce(reschedule_jobs.run_at, job.run_at),
    priority = coalesce(reschedule_jobs.priority::smallint, job.priority),
    attempts = coalesce(reschedule_jobs.attempts::smallint, job.attempts),
    max_attempts = coalesce(reschedule_jobs.max_attempts::smallint, job.max_attempts),
    updated_at = pg_catalog.now()
  from idle
  where job.id = idle.id
  returning job.*;
$atta$ language sql volatile;
