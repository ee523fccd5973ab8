-- The same for jobs in queues. A poll finds by it when the next of them is due without visiting every queue.
create index{concurrently} if not exists _atta_jobs_queued_index
  on {jobs} (task_id, priority, run_at, id)
  where locked_at is null and attempts < max_attempts and job_queue_id is not null;
