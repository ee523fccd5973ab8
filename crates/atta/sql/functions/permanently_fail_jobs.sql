-- Uses up all attempts of these jobs. Running jobs are skipped. Returns the changed jobs.
create or replace function {schema}.permanently_fail_jobs(job_ids bigint[], error_message text default null)
returns setof {schema}._private_jobs
as $atta$
  -- {functions_marker}
  with idle as (
    select job.id
    from {schema}._private_jobs as job
    where job.id = any (permanently_fail_jobs.job_ids)
      and (job.locked_at is null or job.locked_at < pg_catalog.now() - interval '4 hours')
    order by job.id
    for update
  )
  update {schema}._private_jobs as job
  set
    last_error = coalesce(permanently_fail_jobs.error_message, 'Manually marked as failed'),
    attempts = job.max_attempts,
    updated_at = pg_catalog.now()
  from idle
  where job.id = idle.id
  returning job.*;
$atta$ language sql volatile;
