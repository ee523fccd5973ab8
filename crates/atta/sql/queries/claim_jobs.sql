-- Claims due jobs durably: they and their queues are marked as this worker's, and their attempts count.
-- $1 the worker, $2 the tasks whose queued jobs are wanted, $3 forbidden flags, $4 the time or null for the database's, $5 how
-- many, $6 the tasks whose jobs without a queue are wanted: some of $2, as the others are held instead; $7 to $9 only jobs
-- before this priority, run_at (null: after every time) and id.
-- A payload that is stored in more than 2,000 bytes is returned as null, and read apart (read_payload.sql). The columns are
-- read by their place.
-- $10 how many jobs with flags of each task and priority are read at the most: those that are forbidden stay there, and a
-- claim that reads all of them takes as long as there are many.
-- $11 whether to look ahead. If all jobs are of one task and priority, without queues and flags, and it takes as many as were
-- wanted, each row has the run_at and id of the last of them, and, if it looks ahead, of the last of as many jobs that
-- follow. The next claims are then made by claim_level.sql, two at a time, each with jobs of its own.
-- Locks the queues and jobs that it takes and skips those that are locked; never waits.
-- Jobs without a queue: goes from priority to priority along _atta_jobs_task_index and _atta_jobs_flagged_index, and reads the
-- first due jobs of each task, until there are enough. If only one task has jobs, of one priority and without flags, it locks
-- them as it reads. Queued jobs: if there are up to a hundred queues that have jobs, jumps from queue to queue along
-- _atta_jobs_queue_index and reads the first due job of each. Otherwise reads the first thousand due jobs of all along
-- jobs_main_index, priority by priority, and takes those that are the first of a free queue. Only if there are more due jobs
-- than that, and too few of those thousand could be taken, it visits all queues.
with recursive task as materialized (
  select task.id, task.identifier, task.identifier = any ($6::text[]) as is_wanted
  from {schema}._private_tasks as task
  where task.identifier = any ($2::text[])
), level (priority) as (
  select -32769
  union all
  -- Not materialized: those that nobody reads are not searched for.
  select (
    select pg_catalog.min(next.priority)::integer
    from task
    cross join lateral (
      (
        select job.priority
        from {schema}._private_jobs as job
        where job.locked_at is null
          and job.attempts < job.max_attempts
          and job.job_queue_id is null
          and job.flags is null
          and job.task_id = task.id
          and job.priority > level.priority
        order by job.priority, job.run_at, job.id
        limit 1
      )
      union all
      (
        select job.priority
        from {schema}._private_jobs as job
        where job.locked_at is null
          and job.attempts < job.max_attempts
          and job.job_queue_id is null
          and job.flags is not null
          and job.task_id = task.id
          and job.priority > level.priority
        order by job.priority, job.run_at, job.id
        limit 1
      )
    ) as next
    where task.is_wanted
  )
  from level
  -- Ends after the last one, which is null.
  where level.priority < $7::smallint
), single as materialized (
  -- The only task and priority, if there is only one, without flags.
  select pg_catalog.min(here.task_id) as task_id, pg_catalog.min(here.priority)::smallint as priority
  from (
    select task.id as task_id, level.priority, job.has_flags
    from (
      select level.priority
      from level
      where level.priority >= -32768
      limit 2
    ) as level
    cross join task
    cross join lateral (
      (
        select false as has_flags
        from {schema}._private_jobs as job
        where job.locked_at is null
          and job.attempts < job.max_attempts
          and job.job_queue_id is null
          and job.flags is null
          and job.task_id = task.id
          and job.priority = level.priority
        order by job.run_at, job.id
        limit 1
      )
      union all
      (
        select true
        from {schema}._private_jobs as job
        where job.locked_at is null
          and job.attempts < job.max_attempts
          and job.job_queue_id is null
          and job.flags is not null
          and job.task_id = task.id
          and job.priority = level.priority
        order by job.run_at, job.id
        limit 1
      )
    ) as job
    where task.is_wanted
    limit 2
  ) as here
  having pg_catalog.count(*) = 1 and not pg_catalog.bool_or(here.has_flags)
), direct as materialized (
  -- Its first jobs are the first of all.
  select job.id, job.priority, job.run_at, job.task_id
  from single
  cross join lateral (
    select job.id, job.priority, job.run_at, job.task_id
    from {schema}._private_jobs as job
    where job.locked_at is null
      and job.attempts < job.max_attempts
      and job.job_queue_id is null
      and job.flags is null
      and job.task_id = single.task_id
      and job.priority = single.priority
      and job.run_at <= coalesce($4::timestamptz, pg_catalog.now())
      and (job.priority, job.run_at, job.id)
        < ($7::smallint, coalesce($8::timestamptz, 'infinity'), $9::bigint)
    order by job.run_at, job.id
    limit $5::bigint
    for update skip locked
  ) as job
), candidate as materialized (
  select job.place, level.priority, job.run_at, job.id
  from level
  cross join lateral (
    select job.place, job.run_at, job.id
    from task
    cross join lateral (
      (
        select job.ctid as place, job.run_at, job.id
        from {schema}._private_jobs as job
        where job.locked_at is null
          and job.attempts < job.max_attempts
          and job.job_queue_id is null
          and job.flags is null
          and job.task_id = task.id
          and job.priority = level.priority
          and job.run_at <= coalesce($4::timestamptz, pg_catalog.now())
        order by job.run_at, job.id
        limit 2 * $5::bigint + 100
      )
      union all
      (
        select job.place, job.run_at, job.id
        from (
          select job.ctid as place, job.run_at, job.id, job.flags
          from {schema}._private_jobs as job
          where job.locked_at is null
            and job.attempts < job.max_attempts
            and job.job_queue_id is null
            and job.flags is not null
            and job.task_id = task.id
            and job.priority = level.priority
            and job.run_at <= coalesce($4::timestamptz, pg_catalog.now())
          order by job.run_at, job.id
          limit $10::bigint
        ) as job
        where (job.flags ?| $3::text[]) is not true
        limit 2 * $5::bigint + 100
      )
    ) as job
    where task.is_wanted
    order by job.run_at, job.id
  ) as job
  where level.priority >= -32768
    and not exists (select from single)
  -- More than are wanted: other claims may be about to take some of them.
  limit 2 * $5::bigint + 100
), unqueued as materialized (
  select job.id, job.priority, job.run_at, job.task_id
  from (
    select candidate.place
    from candidate
    where (candidate.priority::smallint, candidate.run_at, candidate.id)
      < ($7::smallint, coalesce($8::timestamptz, 'infinity'), $9::bigint)
    order by candidate.priority, candidate.run_at, candidate.id
    -- A fence: jobs are locked in this order, one by one, until there are enough.
    offset 0
  ) as candidate
  cross join lateral (
    select job.id, job.priority, job.run_at, job.task_id
    from {schema}._private_jobs as job
    where job.ctid = candidate.place
      and job.locked_at is null
      and job.attempts < job.max_attempts
      and job.job_queue_id is null
      and (job.flags ?| $3::text[]) is not true
      and job.task_id = any (array(select task.id from task))
    for update skip locked
  ) as job
  limit $5::bigint
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
  select pg_catalog.count(near.queue_id) > 100 as is_so
  from near
), main_level (priority) as (
  (
    select job.priority::integer
    from {schema}._private_jobs as job
    where job.is_available = true
      and (select many.is_so from many)
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
  where main_level.priority is not null
), first as materialized (
  select job.id, job.job_queue_id, job.priority, job.run_at, job.task_id, job.flags
  from (
    select main_level.priority
    from main_level
    where main_level.priority <= $7::smallint
    order by main_level.priority
    offset 0
  ) as main_level
  cross join lateral (
    select job.id, job.job_queue_id, job.priority, job.run_at, job.task_id, job.flags
    from {schema}._private_jobs as job
    where job.is_available = true
      and job.priority = main_level.priority
      and job.run_at <= coalesce($4::timestamptz, pg_catalog.now())
    order by job.run_at
    limit 1000
  ) as job
  limit 1000
), quick as materialized (
  select head.id, queue.id as queue_id
  from (
    select first.id, first.job_queue_id
    from first
    where first.job_queue_id is not null
      and (first.priority, first.run_at, first.id)
        < ($7::smallint, coalesce($8::timestamptz, 'infinity'), $9::bigint)
      and first.task_id = any (array(select task.id from task))
      and (first.flags ?| $3::text[]) is not true
      -- From here backwards: it is at once seen of all but the first that they are not the first.
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
    -- A fence: only the queues of such jobs are locked.
    offset 0
  ) as head
  cross join lateral (
    select queue.id
    from {schema}._private_job_queues as queue
    where queue.id = head.job_queue_id
      and queue.is_available = true
    limit 1
    for update skip locked
  ) as queue
  limit $5::bigint
), enough as materialized (
  -- With up to a hundred queues, all of them are visited. With more, that is needed only if there are more due jobs than
  -- were read, and too few of those could be taken.
  select
    pg_catalog.count(*) as count,
    (select many.is_so from many)
      and (pg_catalog.count(*) >= least($5::bigint, 100) or (select pg_catalog.count(*) from first) < 1000) as is_so
  from quick
), waiting (queue_id) as (
  (
    select job.job_queue_id
    from {schema}._private_jobs as job
    where job.is_available = true
      and job.job_queue_id > (select pg_catalog.max(near.queue_id) from near)
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
  select head.id, queue.id as queue_id
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
    where reached.queue_id <> all (array(select quick.queue_id from quick))
      and (next.priority, next.run_at, next.id) < ($7::smallint, coalesce($8::timestamptz, 'infinity'), $9::bigint)
    order by next.priority, next.run_at, next.id
  ) as head
  -- One by one in this order, until there are enough: a join would read all queues first.
  cross join lateral (
    select queue.id
    from {schema}._private_job_queues as queue
    where queue.id = head.queue_id
      and queue.is_available = true
    limit 1
    for update skip locked
  ) as queue
  limit $5::bigint - (select enough.count from enough)
), head as materialized (
  select quick.id, quick.queue_id
  from quick
  union all
  select thorough.id, thorough.queue_id
  from thorough
), queued as (
  select job.id, job.priority, job.run_at, job.task_id, head.queue_id
  from head
  cross join lateral (
    select job.id, job.priority, job.run_at, job.task_id
    from {schema}._private_jobs as job
    where job.id = head.id
      -- Written so that no other index fits: each would read all jobs of the queue, or all that are available.
      and coalesce(job.is_available, false)
      and job.job_queue_id is not distinct from head.queue_id
      and job.run_at <= coalesce($4::timestamptz, pg_catalog.now())
      -- An add by key may have made another of it meanwhile.
      and job.task_id = any (array(select task.id from task))
      and (job.flags ?| $3::text[]) is not true
    for update skip locked
  ) as job
), taken as (
  select
    unqueued.id, unqueued.priority, unqueued.run_at, unqueued.task_id,
    null::integer as queue_id
  from unqueued
  union all
  select direct.id, direct.priority, direct.run_at, direct.task_id, null
  from direct
  union all
  select queued.id, queued.priority, queued.run_at, queued.task_id, queued.queue_id
  from queued
  order by priority, run_at, id
  limit $5::bigint
), last as materialized (
  select taken.run_at, taken.id
  from taken
  where exists (select from single)
    -- claim_level.sql takes nothing while there are jobs in queues.
    and not exists (select from near)
    and (select pg_catalog.count(*) = $5::bigint from taken)
  order by taken.run_at desc, taken.id desc
  limit 1
), ahead as materialized (
  select job.run_at, job.id
  from single
  cross join last
  cross join lateral (
    select job.run_at, job.id
    from {schema}._private_jobs as job
    where job.locked_at is null
      and job.attempts < job.max_attempts
      and job.job_queue_id is null
      and job.flags is null
      and job.task_id = single.task_id
      and job.priority = single.priority
      and (job.run_at, job.id) > (last.run_at, last.id)
      and job.run_at <= coalesce($4::timestamptz, pg_catalog.now())
    order by job.run_at, job.id
    limit 1
    offset $5::bigint - 1
  ) as job
  where $11::boolean
), locked_queue as (
  update {schema}._private_job_queues as queue
  set locked_by = $1::text, locked_at = coalesce($4::timestamptz, pg_catalog.now())
  where queue.id = any (array(select taken.queue_id from taken where taken.queue_id is not null))
)
update {schema}._private_jobs as job
set
  attempts = job.attempts + 1,
  locked_by = $1::text,
  locked_at = coalesce($4::timestamptz, pg_catalog.now())
-- By their ids alone: an add by key may have changed a job since this statement began, before it was locked here. And by a list:
-- with a join, a plan that was made while the table was almost empty would read all of it later.
where job.id = any (array(select taken.id from taken))
returning
  job.id,
  case when pg_catalog.pg_column_size(job.payload) <= 2000 then job.payload end as payload,
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
  job.task_id,
  (select task.identifier from task where task.id = job.task_id) as task_identifier,
  job.job_queue_id,
  case when job.job_queue_id is not null then (
    select queue.queue_name
    from {schema}._private_job_queues as queue
    where queue.id = job.job_queue_id
  ) end as queue_name,
  job.locked_at,
  job.locked_by,
  (select greatest(last.run_at, timestamptz '0001-01-01 00:00:00Z') from last) as last_run_at,
  (select last.id from last) as last_id,
  (select greatest(ahead.run_at, timestamptz '0001-01-01 00:00:00Z') from ahead) as ahead_run_at,
  (select ahead.id from ahead) as ahead_id
