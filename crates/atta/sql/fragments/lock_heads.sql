-- Locks the queues of `head` and their first jobs, one by one and in order, until the caller's limit is reached: a join
-- would read all queues first. A queue is locked before its job.
cross join lateral (
    select queue.id
    from {schema}._private_job_queues as queue
    where queue.id = head.queue_id
      and queue.is_available = true
    limit 1
    for update skip locked
  ) as queue
  -- Before the limit: a job that somebody else has locked does not take the place of others.
  cross join lateral (
    select job.id, job.priority, job.run_at, job.task_id
    from {schema}._private_jobs as job
    where job.id = head.id
      -- Written so that no other index can be used: each would read all jobs of the queue, or all available jobs.
      and coalesce(job.is_available, false)
      and job.job_queue_id is not distinct from queue.id
      and job.run_at <= coalesce($4::timestamptz, pg_catalog.now())
      -- An add by key may have changed the job meanwhile.
      and job.task_id = any (array(select task.id from task))
      and (job.flags ?| $3::text[]) is not true
    for update skip locked
  ) as job
