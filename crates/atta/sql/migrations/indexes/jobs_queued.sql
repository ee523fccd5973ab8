-- As jobs_task.sql, for jobs in queues. With it a poll finds when the next of them is due without reading every queue.
create index{concurrently} if not exists _atta_jobs_queued_index
  on {jobs} (task_id, priority, run_at, id)
  where locked_at is null and attempts < max_attempts and job_queue_id is not null;
