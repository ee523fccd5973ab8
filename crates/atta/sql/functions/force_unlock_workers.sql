-- Frees all jobs and queues that these workers have locked. Only for workers that are known to be gone.
create or replace function {schema}.force_unlock_workers(worker_ids text[])
returns void
as $atta$
  -- {functions_marker}
  update {schema}._private_jobs as job
  set locked_at = null, locked_by = null
  where job.locked_by = any (force_unlock_workers.worker_ids);

  update {schema}._private_job_queues as queue
  set locked_at = null, locked_by = null
  where queue.locked_by = any (force_unlock_workers.worker_ids);
$atta$ language sql volatile;
