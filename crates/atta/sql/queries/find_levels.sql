-- Finds the levels of jobs without a queue: the priorities that the jobs of a task have, due or not. Searches the gaps
-- between the known levels. Arrays with an entry per gap: $1 task identifier, $2 whether to search the jobs with flags,
-- $3 and $4 the priorities between which to search, both excluded. $5 the time, or null for the database's.
-- Returns the time in a separate row, and then a row for each level, up to 16 per gap, the most urgent first.
-- Locks nothing. Jumps from priority to priority along _atta_jobs_task_index and _atta_jobs_flagged_index.
with recursive gap as materialized (
  select task.id as task_id, gap.task_identifier, gap.is_flagged, gap.after, gap.before
  from unnest($1::text[], $2::boolean[], $3::integer[], $4::integer[])
    as gap (task_identifier, is_flagged, after, before)
  join {schema}._private_tasks as task on task.identifier = gap.task_identifier
), level (task_id, task_identifier, is_flagged, before, priority, number) as (
  select gap.task_id, gap.task_identifier, gap.is_flagged, gap.before, gap.after, 0
  from gap
  union all
  select level.task_id, level.task_identifier, level.is_flagged, level.before, next.priority::integer, level.number + 1
  from level
  cross join lateral (
    (
      select job.priority
      from {schema}._private_jobs as job
      where not level.is_flagged
        and job.locked_at is null
        and job.attempts < job.max_attempts
        and job.job_queue_id is null
        and job.flags is null
        and job.task_id = level.task_id
        and job.priority > level.priority
        and job.priority < level.before
      order by job.priority, job.run_at, job.id
      limit 1
    )
    union all
    (
      select job.priority
      from {schema}._private_jobs as job
      where level.is_flagged
        and job.locked_at is null
        and job.attempts < job.max_attempts
        and job.job_queue_id is null
        and job.flags is not null
        and job.task_id = level.task_id
        and job.priority > level.priority
        and job.priority < level.before
      order by job.priority, job.run_at, job.id
      limit 1
    )
  ) as next
  where level.number < 16
)
select
  coalesce($5::timestamptz, pg_catalog.now()) as now, null::text as task_identifier, null::boolean as is_flagged,
  null::smallint as priority
union all
select null, level.task_identifier, level.is_flagged, level.priority::smallint
from level
where level.number > 0
