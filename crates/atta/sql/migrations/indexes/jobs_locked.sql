-- The jobs that each worker has locked: recovery reads locked jobs and no others.
create index{concurrently} if not exists _atta_jobs_locked_index
  on {jobs} (locked_by, job_queue_id)
  where locked_at is not null;
