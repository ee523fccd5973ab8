-- The last part of a durable claim: writes this worker and the time into the jobs in `taken` and into their queues,
-- counts the attempts, and returns the jobs. If all jobs have one task and priority and neither queues nor flags, and
-- there are as many as were wanted, the row of the last job has a last_run_at. With look-ahead it also has the run_at
-- and id of the last job of the next batch.
last as materialized (
  select taken.run_at, taken.id
  from taken
  where exists (select from single)
    -- claim_level.sql claims nothing while there are jobs in queues.
    and (
      select job.job_queue_id
      from {schema}._private_jobs as job
      where job.is_available = true
        and job.job_queue_id is not null
      order by job.job_queue_id
      limit 1
    ) is null
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
  {claimed_columns},
  -- Only in the row of the last job: a value in every row would cost a tenth of the statement's time.
  case when job.id = (select last.id from last) then (select greatest(last.run_at, timestamptz '0001-01-01 00:00:00Z') from last) end as last_run_at,
  case when job.id = (select last.id from last) then (select greatest(ahead.run_at, timestamptz '0001-01-01 00:00:00Z') from ahead) end as ahead_run_at,
  case when job.id = (select last.id from last) then (select ahead.id from ahead) end as ahead_id
