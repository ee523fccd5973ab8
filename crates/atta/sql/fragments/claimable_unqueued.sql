-- The first part of a durable claim: locks the most urgent due jobs without a queue, in `direct` or in `unqueued`. The
-- statement begins with "with recursive". The parameters are those of claim_by_job.sql.
-- It goes from priority to priority along _atta_jobs_task_index and _atta_jobs_flagged_index, and reads the first due
-- jobs of each task, until there are enough. If only one task has jobs, all of one priority and without flags, it locks
-- them as it reads (`direct`).
task as materialized (
  select task.id, task.identifier, task.identifier = any ($6::text[]) as is_wanted
  from {schema}._private_tasks as task
  where task.identifier = any ($2::text[])
), level (priority) as (
  select -32769
  union all
  -- Not materialized, so that rows which no other part reads are not searched for.
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
  -- Ends when no further priority is found: the value is then null.
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
      and job.id <> all ($12::bigint[])
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
          and job.id <> all ($12::bigint[])
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
          and job.id <> all ($12::bigint[])
        limit 2 * $5::bigint + 100
      )
    ) as job
    where task.is_wanted
    order by job.run_at, job.id
  ) as job
  where level.priority >= -32768
    and not exists (select from single)
  -- More jobs than are wanted, since other claims may be about to take some of them.
  limit 2 * $5::bigint + 100
), unqueued as materialized (
  select job.id, job.priority, job.run_at, job.task_id
  from (
    select candidate.place
    from candidate
    where (candidate.priority::smallint, candidate.run_at, candidate.id)
      < ($7::smallint, coalesce($8::timestamptz, 'infinity'), $9::bigint)
    order by candidate.priority, candidate.run_at, candidate.id
    -- Prevents the planner from merging the subqueries: jobs are locked in this order, one by one, until there are enough.
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
)
