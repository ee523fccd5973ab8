-- Recovers the jobs of workers that are known to be gone, as workers recover each other: the locks of the jobs and of
-- their queues are removed, and the attempt that was started does not count. No crash is counted. Returns the ids of
-- the jobs. recovery_delay: the jobs are due again after this time; 0 leaves their time as it is.
-- Locks the jobs, then the queues, and waits for rows that others have locked. _atta_jobs_locked_index for the jobs;
-- one scan of the queues. Has no marker: it is not one of Graphile's functions.
create or replace function {schema}._atta_recover_dead_worker_jobs(
  worker_ids text[],
  recovery_delay interval default interval '0 seconds'
)
returns setof bigint
as $atta$
  with freed_job as (
    update {schema}._private_jobs as job
    set
      locked_at = null,
      locked_by = null,
      attempts = greatest(0, job.attempts - 1),
      run_at = case
        when _atta_recover_dead_worker_jobs.recovery_delay > interval '0 seconds'
          then greatest(job.run_at, pg_catalog.now() + _atta_recover_dead_worker_jobs.recovery_delay)
        else job.run_at
      end
    where job.locked_at is not null
      and job.locked_by = any (_atta_recover_dead_worker_jobs.worker_ids)
    returning job.id
  ), freed_queue as (
    update {schema}._private_job_queues as queue
    set locked_at = null, locked_by = null
    where queue.locked_at is not null
      and queue.locked_by = any (_atta_recover_dead_worker_jobs.worker_ids)
  )
  select freed_job.id
  from freed_job
  order by freed_job.id;
$atta$ language sql volatile;
