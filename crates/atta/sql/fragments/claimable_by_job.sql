-- The second part of a durable claim: locks the first due jobs of queues, in `head`, and their queues. Reads the first
-- due jobs along jobs_main_index, priority by priority, and takes those that are the first of a free queue: up to a
-- thousand, or eight times as many as are wanted. Jobs of different queues with the same priority and run_at are taken
-- in the order of their ids, as far as they are among those that are read. It visits all queues, along
-- _atta_jobs_queue_index, only if there are more due jobs than that and too few of them could be taken.
-- To check whether a job is the first of its queue, it reads one entry backwards in the index of queued jobs, where the
-- previous job of the queue is the neighbour, if there is one. With 24 slots and 20,000 jobs in 10,000 queues this is 2
-- to 4 times as fast as reading a thousand jobs and sorting them.
main_level (priority) as (
  (
    select job.priority::integer
    from {schema}._private_jobs as job
    where job.is_available = true
    order by job.priority, job.run_at
    limit 1
  )
  union all
  select (
    select job.priority::integer
    from {schema}._private_jobs as job
    where job.is_available = true
      and job.priority > main_level.priority
    order by job.priority, job.run_at
    limit 1
  )
  from main_level
  where main_level.priority < $7::smallint
), first as materialized (
  -- Without a sort of the levels, which come in order: it would read all levels before the first job.
  select job.id, job.job_queue_id, job.priority, job.run_at, job.task_id, job.flags
  from main_level
  cross join lateral (
    select job.id, job.job_queue_id, job.priority, job.run_at, job.task_id, job.flags
    from {schema}._private_jobs as job
    where job.is_available = true
      and job.priority = main_level.priority
      and job.run_at <= coalesce($4::timestamptz, pg_catalog.now())
    order by job.run_at
    limit least(1000, 8 * $5::bigint + 100)
  ) as job
  limit least(1000, 8 * $5::bigint + 100)
), quick as materialized (
  select job.id, job.priority, job.run_at, job.task_id, queue.id as queue_id
  from (
    select first.id, first.job_queue_id as queue_id
    from (
      -- The index does not have the ids.
      select first.id, first.job_queue_id, first.priority, first.run_at, first.task_id, first.flags
      from first
      order by first.priority, first.run_at, first.id
    ) as first
    where first.job_queue_id is not null
      and (first.priority, first.run_at, first.id)
        < ($7::smallint, coalesce($8::timestamptz, 'infinity'), $9::bigint)
      and first.task_id = any (array(select task.id from task))
      and (first.flags ?| $3::text[]) is not true
      and first.id <> all ($12::bigint[])
      -- Reads backwards from this job, so that an earlier job of the queue, if there is one, is the first entry.
      and (
        select job.id
        from {schema}._private_jobs as job
        where job.is_available = true
          and job.job_queue_id = first.job_queue_id
          and (job.priority, job.run_at, job.id) < (first.priority, first.run_at, first.id)
          and job.run_at <= coalesce($4::timestamptz, pg_catalog.now())
          and job.task_id = any (array(select task.id from task))
          and (job.flags ?| $3::text[]) is not true
        order by job.priority desc, job.run_at desc, job.id desc
        limit 1
      ) is null
    -- Prevents the planner from merging the subqueries: only the queues of such jobs are locked.
    offset 0
  ) as head
  {lock_heads}
  limit $5::bigint
), enough as materialized (
  select
    pg_catalog.count(*) as count,
    pg_catalog.count(*) >= least($5::bigint, 100)
      or (select pg_catalog.count(*) from first) < least(1000, 8 * $5::bigint + 100) as is_so
  from quick
), waiting (queue_id) as (
  (
    select job.job_queue_id
    from {schema}._private_jobs as job
    where job.is_available = true
      and job.job_queue_id is not null
      and not (select enough.is_so from enough)
    order by job.job_queue_id
    limit 1
  )
  union all
  select (
    select job.job_queue_id
    from {schema}._private_jobs as job
    where job.is_available = true
      and job.job_queue_id > waiting.queue_id
    order by job.job_queue_id
    limit 1
  )
  from waiting
  where waiting.queue_id is not null
), reached (queue_id) as (
  select waiting.queue_id
  from waiting
  where waiting.queue_id <> all (array(select quick.queue_id from quick))
), thorough as materialized (
  {reached_heads}
  limit $5::bigint - (select enough.count from enough)
), head as materialized (
  select quick.id, quick.priority, quick.run_at, quick.task_id, quick.queue_id
  from quick
  union all
  select thorough.id, thorough.priority, thorough.run_at, thorough.task_id, thorough.queue_id
  from thorough
)
