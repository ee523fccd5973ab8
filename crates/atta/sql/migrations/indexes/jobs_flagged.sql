-- The same for jobs with flags: those that are forbidden to a worker are not in the way of the others.
create index{concurrently} if not exists _atta_jobs_flagged_index
  on {jobs} (task_id, priority, run_at, id)
  where locked_at is null and attempts < max_attempts and job_queue_id is null and flags is not null;
