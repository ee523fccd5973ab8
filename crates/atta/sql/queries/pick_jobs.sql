-- Picks due jobs without a queue and holds them by row locks alone, until the transaction ends; nothing is written.
-- $1 the task identifiers, $2 forbidden flags, $3 the time or null for the database's, $4 how many, $5 to $7 the
-- priority, run_at (null: before every time) and id of the last job of the pick before. Attempts are given as they will be.
-- The columns are read by their place.
-- Locks the jobs that it gives and skips what others hold; never waits. Walks _atta_jobs_no_queue_index in order.
select
  job.id,
  job.payload,
  job.priority,
  least(greatest(job.run_at, timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 00:00:00Z') as run_at,
  (job.attempts + 1)::smallint as attempts,
  job.max_attempts,
  job.last_error,
  job.created_at,
  job.updated_at,
  job.key,
  job.revision,
  job.flags,
  job.task_id,
  job.ctid
from {schema}._private_jobs as job
where job.is_available = true
  and job.job_queue_id is null
  and (job.priority, job.run_at, job.id) > ($5::smallint, coalesce($6::timestamptz, '-infinity'), $7::bigint)
  and job.run_at <= coalesce($3::timestamptz, now())
  and job.task_id = any (array(
    select task.id
    from {schema}._private_tasks as task
    where task.identifier = any ($1::text[])
  ))
  and (job.flags ?| $2::text[]) is not true
order by job.priority, job.run_at, job.id
limit $4::bigint
for update skip locked
