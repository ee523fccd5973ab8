-- Claims due jobs durably: they and their queues are marked as this worker's, and their attempts count.
-- $1 the worker, $2 the tasks whose queued jobs are wanted, $3 forbidden flags, $4 the time or null for the database's,
-- $5 how many, $6 the tasks whose jobs without a queue are wanted: some of $2, as the others are held instead.
-- Locks the queues and jobs that it takes and skips what others hold; never waits. Jobs without a queue come from
-- _atta_jobs_no_queue_index in order. For queued ones, each queue that has jobs is jumped to, and its first job read, along
-- _atta_jobs_queue_index. That takes as long as there are queues, so if there are more than a hundred, the first jobs of
-- all are looked at one by one, along jobs_main_index, and those that are the first of a free queue are taken; if they are
-- too few among a thousand, all queues after all. The columns are read by their place.
with recursive task as materialized (
  select task.id, task.identifier
  from {schema}._private_tasks as task
  where task.identifier = any ($2::text[])
), unqueued as (
  select job.id, job.priority, job.run_at, job.task_id
  from {schema}._private_jobs as job
  where job.is_available = true
    and job.job_queue_id is null
    -- Without this an empty list would be looked for in every job there is.
    and cardinality($6::text[]) > 0
    and job.run_at <= coalesce($4::timestamptz, now())
    and job.task_id = any (array(select task.id from task where task.identifier = any ($6::text[])))
    and (job.flags ?| $3::text[]) is not true
  order by job.priority, job.run_at, job.id
  limit $5::bigint
  for update skip locked
), near (queue_id, number) as (
  (
    select job.job_queue_id, 1
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
      and job.job_queue_id > near.queue_id
    order by job.job_queue_id
    limit 1
  ), near.number + 1
  from near
  where near.queue_id is not null
    and near.number <= 100
), many as materialized (
  select count(near.queue_id) > 100 as is_so
  from near
), quick as materialized (
  select head.id, queue.id as queue_id, queue.queue_name
  from (
    select first.id, first.job_queue_id
    from (
      select job.id, job.job_queue_id, job.priority, job.run_at, job.task_id, job.flags
      from {schema}._private_jobs as job
      where job.is_available = true
        and job.run_at <= coalesce($4::timestamptz, now())
        and (select many.is_so from many)
      order by job.priority, job.run_at
      limit 1000
    ) as first
    where first.job_queue_id is not null
      and first.task_id = any (array(select task.id from task))
      and (first.flags ?| $3::text[]) is not true
      -- From here backwards: it is at once seen of all but the first that they are not the first.
      and (
        select job.id
        from {schema}._private_jobs as job
        where job.is_available = true
          and job.job_queue_id = first.job_queue_id
          and (job.priority, job.run_at, job.id) < (first.priority, first.run_at, first.id)
          and job.run_at <= coalesce($4::timestamptz, now())
          and job.task_id = any (array(select task.id from task))
          and (job.flags ?| $3::text[]) is not true
        order by job.priority desc, job.run_at desc, job.id desc
        limit 1
      ) is null
    -- A fence: only the queues of such jobs are locked.
    offset 0
  ) as head
  cross join lateral (
    select queue.id, queue.queue_name
    from {schema}._private_job_queues as queue
    where queue.id = head.job_queue_id
      and queue.is_available = true
    limit 1
    for update skip locked
  ) as queue
  limit $5::bigint
), enough as materialized (
  select count(*) as count, count(*) >= least($5::bigint, 100) as is_so
  from quick
), waiting (queue_id) as (
  (
    select job.job_queue_id
    from {schema}._private_jobs as job
    where job.is_available = true
      and job.job_queue_id > (select max(near.queue_id) from near)
      and (select many.is_so from many)
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
  select near.queue_id
  from near
  where not (select enough.is_so from enough)
  union all
  select waiting.queue_id
  from waiting
), thorough as materialized (
  select head.id, queue.id as queue_id, queue.queue_name
  from (
    select next.id, reached.queue_id
    from reached
    join {schema}._private_job_queues as queue on queue.id = reached.queue_id and queue.is_available = true
    cross join lateral (
      select job.id, job.priority, job.run_at
      from {schema}._private_jobs as job
      where job.is_available = true
        and job.job_queue_id = reached.queue_id
        and job.run_at <= coalesce($4::timestamptz, now())
        and job.task_id = any (array(select task.id from task))
        and (job.flags ?| $3::text[]) is not true
      order by job.priority, job.run_at, job.id
      limit 1
    ) as next
    where reached.queue_id <> all (array(select quick.queue_id from quick))
    order by next.priority, next.run_at, next.id
  ) as head
  -- One by one in this order, until there are enough: a join would read all queues first.
  cross join lateral (
    select queue.id, queue.queue_name
    from {schema}._private_job_queues as queue
    where queue.id = head.queue_id
      and queue.is_available = true
    limit 1
    for update skip locked
  ) as queue
  limit $5::bigint - (select enough.count from enough)
), head as materialized (
  select quick.id, quick.queue_id, quick.queue_name
  from quick
  union all
  select thorough.id, thorough.queue_id, thorough.queue_name
  from thorough
), queued as (
  select job.id, job.priority, job.run_at, job.task_id, head.queue_id, head.queue_name
  from head
  join {schema}._private_jobs as job on job.id = head.id
  where job.is_available = true
    -- Not by an index: it would read all jobs of the queue.
    and job.job_queue_id is not distinct from head.queue_id
    and job.run_at <= coalesce($4::timestamptz, now())
    -- An add by key may have made another of it meanwhile.
    and job.task_id = any (array(select task.id from task))
    and (job.flags ?| $3::text[]) is not true
  for update of job skip locked
), taken as (
  select
    unqueued.id, unqueued.priority, unqueued.run_at, unqueued.task_id,
    null::integer as queue_id, null::text as queue_name
  from unqueued
  union all
  select queued.id, queued.priority, queued.run_at, queued.task_id, queued.queue_id, queued.queue_name
  from queued
  order by priority, run_at
  limit $5::bigint
), locked_queue as (
  update {schema}._private_job_queues as queue
  set locked_by = $1::text, locked_at = coalesce($4::timestamptz, now())
  from taken
  where queue.id = taken.queue_id
)
update {schema}._private_jobs as job
set
  attempts = job.attempts + 1,
  locked_by = $1::text,
  locked_at = coalesce($4::timestamptz, now())
-- By the task that it has now that it is locked: an add by key may have given it another since this statement began. By what
-- it had then, it would be left out here, and its queue marked all the same.
from taken, task
where job.id = taken.id
  and task.id = taken.task_id
returning
  job.id,
  job.payload,
  job.priority,
  least(greatest(job.run_at, timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 00:00:00Z') as run_at,
  job.attempts,
  job.max_attempts,
  job.last_error,
  job.created_at,
  job.updated_at,
  job.key,
  job.revision,
  job.flags,
  task.identifier as task_identifier,
  job.job_queue_id,
  taken.queue_name,
  job.locked_at,
  job.locked_by
