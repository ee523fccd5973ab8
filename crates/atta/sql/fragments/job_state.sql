-- The name of a job's state. The statement names the job `job`, and its queue `queue`, whose columns are null if the job
-- has no queue.
case
    when job.locked_at is not null then 'running'
    when job.attempts >= job.max_attempts then 'failed'
    when job.run_at > pg_catalog.now() and job.attempts > 0 then 'retrying'
    when job.run_at > pg_catalog.now() then 'scheduled'
    when queue.locked_at is not null then 'waiting'
    else 'ready'
  end
