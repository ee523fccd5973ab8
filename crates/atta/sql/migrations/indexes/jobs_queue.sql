-- Finds the first job of each queue without reading all the others.
create index{concurrently} if not exists _atta_jobs_queue_index
  on {jobs} (job_queue_id, priority, run_at, id)
  include (task_id)
  where is_available = true and job_queue_id is not null;
