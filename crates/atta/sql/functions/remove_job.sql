-- Removes the job with this key. If it is running, prevents it from running again instead. Returns that job, or null.
--
-- The row is locked before anything is decided, so that no claim or release can happen in between.
create or replace function {schema}.remove_job(job_key text)
returns {schema}._private_jobs
as $atta$
-- {functions_marker}
#variable_conflict use_column
declare
  v_job {schema}._private_jobs;
begin
  select job.*
  into v_job
  from {schema}._private_jobs as job
  where job.key = remove_job.job_key
  for update;
  if not found then
    return null;
  end if;

  if v_job.locked_at is null or v_job.locked_at < pg_catalog.now() - interval '4 hours' then
    delete from {schema}._private_jobs as job
    where job.id = v_job.id;
    perform pg_catalog.pg_notify('jobs:insert', pg_catalog.json_build_object('r', pg_catalog.random(), 'count', -1, 'schema', {schema_text})::text);
    return v_job;
  end if;

  update {schema}._private_jobs as job
  set key = null, attempts = job.max_attempts, updated_at = pg_catalog.now()
  where job.id = v_job.id
  returning job.* into v_job;
  return v_job;
end
$atta$ language plpgsql strict volatile;
