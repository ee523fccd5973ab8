-- The second part of a durable claim: locks the first due jobs of queues, in `head`, and their queues. Jumps from queue
-- to queue along _atta_jobs_queue_index, and visits all queues that have jobs.
reached (queue_id) as (
  (
    select job.job_queue_id
    from {schema}._private_jobs as job
    where job.is_available = true
      and job.job_queue_id is not null
    order by job.job_queue_id
    limit 1
  )
  union all
  select (
    select job.job_queue_id
    from {schema}._private_jobs as job
    where job.is_available = true
      and job.job_queue_id > reached.queue_id
    order by job.job_queue_id
    limit 1
  )
  from reached
  where reached.queue_id is not null
), head as materialized (
  {reached_heads}
  limit $5::bigint
)
