-- Deletes these jobs as if they had succeeded. Running jobs are skipped. Returns the deleted jobs.
--
-- This function, permanently_fail_jobs and reschedule_jobs lock rows in the order of their ids, so that such calls
-- never deadlock.
create or replace function {schema}.complete_jobs(job_ids bigint[])
returns setof {schema}._private_jobs
as $atta$
  -- {functions_marker}
  with idle as (
    select job.id
    from {schema}._private_jobs as job
    where job.id = any (complete_jobs.job_ids)
      and (job.locked_at is null or job.locked_at < pg_catalog.now() - interval '4 hours')
    order by job.id
    for update
  )
  delete from {schema}._private_jobs as job
  using idle
  where job.id = idle.id
  returning job.*;
$atta$ language sql volatile;
