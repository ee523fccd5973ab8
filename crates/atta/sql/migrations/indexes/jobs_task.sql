-- The jobs of one task in their order: claims and polls read what they can use, and nothing that is due later or belongs to
-- other tasks. The condition spells out what is_available stands for, so that statements which spell it out as well can't be
-- planned along Graphile's own indexes.
create index{concurrently} if not exists _atta_jobs_task_index
  on {jobs} (task_id, priority, run_at, id)
  where locked_at is null and attempts < max_attempts and job_queue_id is null and flags is null;
