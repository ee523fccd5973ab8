-- Writes down failures, as long as the jobs are still this worker's, and frees jobs and queues.
-- $1 the worker; then arrays, an entry a job: $2 ids, $3 errors, $4 payloads that replace the old ones (null: keep),
-- $5 delays in seconds (null: Graphile's back-off), $6 times to try again at (null: after the delay), $7 whether no
-- attempt is left. Returns the ids that were ours. Locks those jobs, then their queues; primary keys.
with failure as (
  select *
  from unnest(
    $2::bigint[], $3::text[], $4::text[], $5::float8[], $6::timestamptz[], $7::boolean[]
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
