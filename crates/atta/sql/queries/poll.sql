-- What a worker reads at each poll: whether other workers must be recovered, how many died recently, whether the
-- functions that add jobs are ours, whether the tables of jobs and queues have rules, or triggers on update or delete
-- (a foreign key that references a table gives it such triggers), whether the database can store every text, whether at
-- most a hundred queues have jobs, and in how many seconds each of the next jobs that it could run is due (negative if
-- a job is due; empty if there is none).
-- $1 the task identifiers, $2 forbidden flags, $3 the time, or null for the database's, $4 the worker, $5 for how many
-- seconds its heartbeats have been continuous, $6 its own threshold in seconds, $7 whether to search for jobs. Locks
-- nothing.
-- The rule for others_are_stale is that of declare_dead.sql. Stale workers that may not be declared dead yet count as
-- recent deaths. Otherwise a job that kills every worker at its start would leave no worker alive for long enough to
-- count them.
-- For each of the worker's tasks, the statement jumps from priority to priority along an index and reads the first due
-- times of each. It starts at the first existing entry, so that dead entries before it are read only once.
-- _atta_jobs_task_index contains the jobs without queue and flags, _atta_jobs_flagged_index those with flags, and
-- _atta_jobs_queued_index those in queues. In the latter two, some jobs may have to be skipped: at most 200 are read
-- per task and priority. If none of them can be used, the time of the last one is returned, so that the worker tries a
-- claim at each poll interval and does not sleep although jobs after these 200 are due. For the same reason the first
-- job of the 201st priority is returned; priorities after the first 200, by their first job, are not read. The windows
-- that number these jobs have frames of rows: with the default frame they would read all jobs of the same time.
-- With a million scheduled jobs of the worker's tasks, a million due jobs of unknown tasks, 200,000 forbidden jobs and
-- 100,000 jobs in 5,000 queues that are not due, it takes 0.4 ms and reads 160 pages from memory (PostgreSQL 15).
with recursive task as materialized (
  select task.id
  from {schema}._private_tasks as task
  where task.identifier = any ($1::text[])
    and $7::boolean
), plain (task_id, priority, run_at) as (
  select task.id, first.priority, first.run_at
  from task
  cross join lateral (
    select job.priority, job.run_at
    {plain_jobs}
      and job.task_id = task.id
    order by job.priority, job.run_at
    limit 1
  ) as first
  union all
  select plain.task_id, next.priority, next.run_at
  from plain
  cross join lateral (
    select job.priority, job.run_at
    {plain_jobs}
      and job.task_id = plain.task_id
      and job.priority > plain.priority
    order by job.priority, job.run_at
    limit 1
  ) as next
), flagged (task_id, priority, run_at) as (
  select task.id, first.priority, first.run_at
  from task
  cross join lateral (
    select job.priority, job.run_at
    {flagged_jobs}
      and job.task_id = task.id
    order by job.priority, job.run_at
    limit 1
  ) as first
  union all
  select flagged.task_id, next.priority, next.run_at
  from flagged
  cross join lateral (
    select job.priority, job.run_at
    {flagged_jobs}
      and job.task_id = flagged.task_id
      and job.priority > flagged.priority
    order by job.priority, job.run_at
    limit 1
  ) as next
), queued (task_id, priority, run_at) as (
  select task.id, first.priority, first.run_at
  from task
  cross join lateral (
    select job.priority, job.run_at
    {queued_jobs}
      and job.task_id = task.id
    order by job.priority, job.run_at
    limit 1
  ) as first
  union all
  select queued.task_id, next.priority, next.run_at
  from queued
  cross join lateral (
    select job.priority, job.run_at
    {queued_jobs}
      and job.task_id = queued.task_id
      and job.priority > queued.priority
    order by job.priority, job.run_at
    limit 1
  ) as next
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
), due (run_at) as (
  select next.run_at
  -- The 32 first jobs of all are among those of the 32 levels that begin first.
  from (
    select plain.task_id, plain.priority, plain.run_at
    from plain
    order by plain.run_at
    limit 32
  ) as plain
  cross join lateral (
    select job.run_at
    {plain_jobs}
      and job.task_id = plain.task_id
      and job.priority = plain.priority
      and job.run_at >= plain.run_at
    order by job.run_at
    limit 32
  ) as next
  union all
  select next.run_at
  from (
    select flagged.task_id, flagged.priority, flagged.run_at
    from flagged
    order by flagged.run_at
    limit 200
  ) as flagged
  cross join lateral (
    select job.run_at
    from (
      select job.run_at, job.flags, pg_catalog.row_number() over (order by job.run_at rows unbounded preceding) as place
      {flagged_jobs}
        and job.task_id = flagged.task_id
        and job.priority = flagged.priority
        and job.run_at >= flagged.run_at
      order by job.run_at
      limit 200
    ) as job
    where (job.flags ?| $2::text[]) is not true
      or job.place = 200
    limit 32
  ) as next
  union all
  select next.run_at
  from (
    select queued.task_id, queued.priority, queued.run_at
    from queued
    order by queued.run_at
    limit 200
  ) as queued
  cross join lateral (
    select job.run_at
    from (
      select
        job.run_at, job.flags, job.job_queue_id,
        pg_catalog.row_number() over (order by job.run_at rows unbounded preceding) as place
      {queued_jobs}
        and job.task_id = queued.task_id
        and job.priority = queued.priority
        and job.run_at >= queued.run_at
      order by job.run_at
      limit 200
    ) as job
    where job.place = 200
      or (
        (job.flags ?| $2::text[]) is not true
        and exists (
          select
          from {schema}._private_job_queues as queue
          where queue.id = job.job_queue_id and queue.is_available = true
        )
      )
    limit 32
  ) as next
  union all
  (
    select flagged.run_at
    from flagged
    order by flagged.run_at
    limit 1
    offset 200
  )
  union all
  (
    select queued.run_at
    from queued
    order by queued.run_at
    limit 1
    offset 200
  )
), next as (
  select due.run_at
  from due
  order by due.run_at
  limit 32
), triggered (table_name) as (
  select class.relname
  from pg_catalog.pg_class as class
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
  where namespace.nspname = {schema_text}
    and class.relname in ('_private_jobs', '_private_job_queues')
    and (
      class.relhasrules
      or exists (
        select
        from pg_catalog.pg_trigger as trigger
        -- 8: it fires on delete; 16: on update.
        where trigger.tgrelid = class.oid
          and trigger.tgenabled <> 'D'
          and (trigger.tgtype::integer & 24) <> 0
      )
    )
), stale as materialized (
  select
    pg_catalog.abs(extract(epoch from pg_catalog.clock_timestamp() - worker.heartbeat_at)::float8) as seconds,
    extract(epoch from worker.recovery_threshold)::float8 as threshold
  from {schema}._atta_workers as worker
  where worker.id <> $4::text
    and worker.declared_dead_at is null
    and worker.heartbeat_at
      not between pg_catalog.clock_timestamp() - worker.recovery_threshold
      and pg_catalog.clock_timestamp() + worker.recovery_threshold
    and exists (
      select
      from {schema}._atta_workers as own
      where own.id = $4::text
        and pg_catalog.abs(extract(epoch from pg_catalog.clock_timestamp() - own.heartbeat_at)::float8)
          <= $6::float8 / 2::float8
    )
)
select
  exists (
    select
    from stale
    where least(
      stale.seconds,
      $5::float8,
      extract(epoch from pg_catalog.clock_timestamp() - pg_catalog.pg_postmaster_start_time())::float8
    ) > greatest(stale.threshold, (stale.threshold + $6::float8) / 2::float8)
  ) as others_are_stale,
  exists (
    select
    from {schema}._atta_workers as worker
    where worker.declared_dead_at is not null
  ) as others_are_dead,
  (
    select pg_catalog.count(*)
    from {schema}._atta_dead_workers as death
    where death.found_at > pg_catalog.now() - interval '5 minutes'
  ) + (select pg_catalog.count(*) from stale) as recent_deaths,
  (
    select pg_catalog.count(*) = 2
    from pg_proc as function
    join pg_namespace as namespace on namespace.oid = function.pronamespace
    where namespace.nspname = {schema_text}
      and function.proname in ('add_job', 'add_jobs')
      and position('atta functions, revision' in function.prosrc) > 0
  ) as functions_are_ours,
  exists (
    select
    from triggered
    where triggered.table_name = '_private_jobs'
  ) as jobs_have_triggers,
  exists (
    select
    from triggered
  ) as tables_have_triggers,
  pg_catalog.getdatabaseencoding() = any (array['UTF8', 'SQL_ASCII']::name[]) as stores_any_text,
  (
    select pg_catalog.count(near.queue_id) <= 100
    from near
  ) as has_few_queues,
  array(
    select
      extract(epoch from (
        greatest(
          least(next.run_at, coalesce($3::timestamptz, pg_catalog.now()) + interval '1 day'),
          coalesce($3::timestamptz, pg_catalog.now()) - interval '1 day'
        ) - coalesce($3::timestamptz, pg_catalog.now())
      ))::float8
    from next
    order by next.run_at
  ) as next_due
