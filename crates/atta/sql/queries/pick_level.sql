-- Picks due jobs of one task and priority, without a queue and without flags, and holds them by row locks until the
-- transaction ends. Does the same as pick_jobs.sql for one level, which is the most frequent case in a drain, in two
-- thirds of the time.
-- $1 task identifier, $2 priority, $3 and $4 the run_at (null: before every time) and id after which to start, $5 the
-- time, or null for the database's; $6 the largest number of jobs; $7 and $8 only jobs before this run_at (null: after
-- every time) and id.
-- Returns the columns of pick_jobs.sql. Values that the caller already knows because they are the same for all jobs are
-- null, since that takes less time to send.
-- Locks the jobs that it returns and skips those that are locked; never waits. Walks _atta_jobs_task_index from the
-- start of the level to the present.
select
  job.id,
  case when pg_catalog.pg_column_size(job.payload) <= 2000 then job.payload end as payload,
  null::smallint as priority,
  job.run_at,
  (job.attempts + 1)::smallint as attempts,
  job.max_attempts,
  job.last_error,
  job.created_at,
  job.updated_at,
  job.key,
  job.revision,
  null::jsonb as flags,
  job.task_id,
  null::integer as level_number,
  job.ctid
from {schema}._private_jobs as job
-- The meaning of is_available, spelt out as in the index, so that no other index can be chosen.
where job.locked_at is null
  and job.attempts < job.max_attempts
  and job.job_queue_id is null
  and job.flags is null
  and job.task_id = (
    select task.id
    from {schema}._private_tasks as task
    where task.identifier = $1::text
  )
  and job.priority = $2::smallint
  and (job.run_at, job.id) > (coalesce($3::timestamptz, '-infinity'), $4::bigint)
  and job.run_at <= coalesce($5::timestamptz, pg_catalog.now())
  and (job.run_at, job.id) < (coalesce($7::timestamptz, 'infinity'), $8::bigint)
order by job.run_at, job.id
limit $6::bigint
for update skip locked
