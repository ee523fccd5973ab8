-- The jobs of one task in order: claims and polls read the jobs that they can use, and none that are due later or
-- belong to other tasks. The condition spells out the meaning of is_available. Statements that spell it out as well
-- can't be planned along Graphile's own indexes.
create index{concurrently} if not exists _atta_jobs_task_index
  on {jobs} (task_id, priority, run_at, id)
  where locked_at is null and attempts < max_attempts and job_queue_id is null and flags is null;
