-- Claims due jobs of one task and priority durably, if there are no other jobs that this worker could claim durably: no
-- job in a queue, of another task or priority, or with flags. Otherwise it claims nothing, and the worker uses
-- claim_by_job.sql, which finds the most urgent jobs. Planning and running this statement takes a fraction of the time of
-- claim_by_job.sql.
-- $1 the worker, $2 the task, $3 the priority, $4 the time, or null for the database's, $5 the largest number of jobs,
-- $6 the tasks whose jobs without a queue are wanted; $7 and $8 the run_at and id up to which jobs were already
-- claimed, or nulls (completed jobs stay in the index until a vacuum; this avoids reading them again); $9 and $10 the
-- run_at and id of the last job that is wanted, or nulls; $11 whether to look ahead.
-- Returns the columns of claim_by_job.sql. Values that the caller already knows because they are the same for all jobs
-- are null, since that takes less time to send.
-- Locks the jobs that it claims and skips those that are locked; never waits. _atta_jobs_task_index,
-- _atta_jobs_flagged_index, _atta_jobs_queue_index.
with task as materialized (
  select task.id, task.identifier
  from {schema}._private_tasks as task
  where task.identifier = any ($6::text[])
), other as materialized (
  select
  from task
  cross join lateral (
    (
      select
      from {schema}._private_jobs as job
      where job.locked_at is null
        and job.attempts < job.max_attempts
        and job.job_queue_id is null
        and job.flags is null
        and job.task_id = task.id
        and job.priority < $3::smallint
      order by job.priority, job.run_at, job.id
      limit 1
    )
    union all
    (
      select
      from {schema}._private_jobs as job
      where job.locked_at is null
        and job.attempts < job.max_attempts
        and job.job_queue_id is null
        and job.flags is null
        and job.task_id = task.id
        and job.priority > $3::smallint
      order by job.priority, job.run_at, job.id
      limit 1
    )
    union all
    (
      select
      from {schema}._private_jobs as job
      where job.locked_at is null
        and job.attempts < job.max_attempts
        and job.job_queue_id is null
        and job.flags is null
        and job.task_id = task.id
        and job.priority = $3::smallint
        and task.identifier <> $2::text
      order by job.run_at, job.id
      limit 1
    )
    union all
    (
      select
      from {schema}._private_jobs as job
      where job.locked_at is null
        and job.attempts < job.max_attempts
        and job.job_queue_id is null
        and job.flags is not null
        and job.task_id = task.id
      order by job.priority, job.run_at, job.id
      limit 1
    )
  ) as job
  union all
  (
    select
    from {schema}._private_jobs as job
    where job.is_available = true
      and job.job_queue_id is not null
    order by job.job_queue_id
    limit 1
  )
  limit 1
), taken as materialized (
  select job.id, job.run_at, job.task_id, job.place
  from task
  cross join lateral (
    select job.id, job.run_at, job.task_id, job.ctid as place
    from {schema}._private_jobs as job
    where job.locked_at is null
      and job.attempts < job.max_attempts
      and job.job_queue_id is null
      and job.flags is null
      and job.task_id = task.id
      and job.priority = $3::smallint
      and (job.run_at, job.id) > (coalesce($7::timestamptz, '-infinity'), coalesce($8::bigint, 0))
      and (job.run_at, job.id) <= (coalesce($9::timestamptz, 'infinity'), coalesce($10::bigint, 9223372036854775807))
      and job.run_at <= coalesce($4::timestamptz, pg_catalog.now())
    order by job.run_at, job.id
    limit $5::bigint
    for update skip locked
  ) as job
  where task.identifier = $2::text
    and not exists (select from other)
), last as materialized (
  select taken.run_at, taken.id, taken.task_id
  from taken
  where (select pg_catalog.count(*) = $5::bigint from taken)
  order by taken.run_at desc, taken.id desc
  limit 1
), ahead as materialized (
  select job.run_at, job.id
  from last
  cross join lateral (
    select job.run_at, job.id
    from {schema}._private_jobs as job
    where job.locked_at is null
      and job.attempts < job.max_attempts
      and job.job_queue_id is null
      and job.flags is null
      and job.task_id = last.task_id
      and job.priority = $3::smallint
      and (job.run_at, job.id) > (last.run_at, last.id)
      and job.run_at <= coalesce($4::timestamptz, pg_catalog.now())
    order by job.run_at, job.id
    limit 1
    offset $5::bigint - 1
  ) as job
  where $11::boolean
)
update {schema}._private_jobs as job
set
  attempts = job.attempts + 1,
  locked_by = $1::text,
  locked_at = coalesce($4::timestamptz, pg_catalog.now())
-- By their places, which costs less than a search in the primary key. A job that an add by key changed after this statement
-- began is locked here at its new place, is not found there, and is left to the next claim.
where job.ctid = any (array(select taken.place from taken))
returning
  job.id,
  case when pg_catalog.pg_column_size(job.payload) <= 2000 then job.payload end as payload,
  null::smallint as priority,
  job.run_at,
  job.attempts,
  job.max_attempts,
  job.last_error,
  job.created_at,
  job.updated_at,
  job.key,
  job.revision,
  null::jsonb as flags,
  job.task_id,
  null::text as task_identifier,
  null::integer as job_queue_id,
  null::text as queue_name,
  job.locked_at,
  -- Only in the row of the last job: a value in every row would cost a tenth of the statement's time.
  case when job.id = (select last.id from last) then (select greatest(last.run_at, timestamptz '0001-01-01 00:00:00Z') from last) end as last_run_at,
  case when job.id = (select last.id from last) then (select greatest(ahead.run_at, timestamptz '0001-01-01 00:00:00Z') from ahead) end as ahead_run_at,
  case when job.id = (select last.id from last) then (select ahead.id from ahead) end as ahead_id
