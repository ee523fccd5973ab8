-- Writes down failures, as long as the claims still stand, and frees jobs and queues.
-- $1 to $4 as in complete_claimed.sql; then arrays, an entry a job: $5 errors, $6 payloads that replace the old ones (null:
-- keep), $7 delays in seconds (null: Graphile's back-off), $8 times to try again at (null: after the delay), $9 whether no
-- attempt is left. Returns the ids of those. Locks the jobs, then their queues; primary keys.
with failure as (
  select *
  from unnest(
    $2::bigint[], $5::text[], $6::text[], $7::float8[], $8::timestamptz[], $9::boolean[]
  ) as failure (id, error, payload, delay, run_at, gives_up)
), failed as (
  update {schema}._private_jobs as job
  set
    last_error = failure.error,
    run_at = coalesce(
      failure.run_at,
      greatest(now(), job.run_at)
        + coalesce(failure.delay, exp(least(job.attempts, 10))) * interval '1 second'
    ),
    attempts = case when failure.gives_up then greatest(job.attempts, job.max_attempts) else job.attempts end,
    payload = coalesce(failure.payload::json, job.payload),
    locked_by = null,
    locked_at = null
  from failure
  where job.id = failure.id
    and job.locked_by = $1::text
    and (job.attempts = $3::smallint or ($4::boolean and job.key is null))
  returning job.id, job.job_queue_id
), freed as (
  update {schema}._private_job_queues as queue
  set locked_by = null, locked_at = null
  from failed
  where queue.id = failed.job_queue_id
    and queue.locked_by = $1::text
)
select failed.id
from failed
