case
    when job.locked_at is not null then 'running'
    when job.attempts >= job.max_attempts then 'failed'
    when job.run_at > pg_catalog.now() and job.attempts > 0 then 'retrying'
    when job.run_at > pg_catalog.now() then 'scheduled'
    when queue.locked_at is not null then 'waiting'
    else 'ready'
  end
