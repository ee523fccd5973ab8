-- Records failures of jobs that this transaction holds; this counts the attempt.
-- Arrays with an entry per job: $1 ids, $2 errors, $3 payloads that replace the old ones (null: keep), $4 delays in
-- seconds (null: Graphile's back-off), $5 times of the next attempt (null: after the delay), $6 whether no attempt is
-- left.
-- Primary key.
update {schema}._private_jobs as job
set
  last_error = failure.error,
  run_at = coalesce(
    failure.run_at,
    greatest(pg_catalog.now(), job.run_at)
      + coalesce(failure.delay, pg_catalog.exp(least(job.attempts + 1, 10))) * interval '1 second'
  ),
  attempts = case
    when failure.gives_up then greatest(job.attempts + 1, job.max_attempts)
    else job.attempts + 1
  end,
  payload = coalesce(failure.payload::json, job.payload),
  updated_at = pg_catalog.now()
from unnest(
  $1::bigint[], $2::text[], $3::text[], $4::float8[], $5::timestamptz[], $6::boolean[]
) as failure (id, error, payload, delay, run_at, gives_up)
where job.id = any ($1::bigint[])
  and job.id = failure.id
