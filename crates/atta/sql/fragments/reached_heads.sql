-- Locks the queues in `reached`, the queue with the most urgent first job first, and the first job of each. Returns
-- these jobs. The caller adds a limit.
select job.id, job.priority, job.run_at, job.task_id, queue.id as queue_id
  from (
    select next.id, reached.queue_id
    from reached
    cross join lateral (
      select
      from {schema}._private_job_queues as queue
      where queue.id = reached.queue_id
        and queue.is_available = true
      limit 1
    ) as queue
    cross join lateral (
      select job.id, job.priority, job.run_at
      from {schema}._private_jobs as job
      where job.is_available = true
        and job.job_queue_id = reached.queue_id
        and job.run_at <= coalesce($4::timestamptz, pg_catalog.now())
        and job.task_id = any (array(select task.id from task))
        and (job.flags ?| $3::text[]) is not true
      order by job.priority, job.run_at, job.id
      limit 1
    ) as next
    where (next.priority, next.run_at, next.id) < ($7::smallint, coalesce($8::timestamptz, 'infinity'), $9::bigint)
      -- Only after the first job of the queue is known: a job that is left out keeps the others of its queue waiting.
      and next.id <> all ($12::bigint[])
    order by next.priority, next.run_at, next.id
  ) as head
  {lock_heads}
