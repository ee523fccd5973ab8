-- As jobs_task.sql, for jobs with flags: jobs that a worker must not run do not slow down the search for others.
create index{concurrently} if not exists _atta_jobs_flagged_index
  on {jobs} (task_id, priority, run_at, id)
  where locked_at is null and attempts < max_attempts and job_queue_id is null and flags is not null;
