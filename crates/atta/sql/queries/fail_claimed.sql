-- Records failures of jobs whose claims are still valid, and unlocks them and their queues. Never waits for a row.
-- $1 to $4 as in complete_claimed_queued.sql; more arrays with an entry per job: $5 errors, $6 payloads that replace
-- the old ones (null: keep), $7 delays in seconds (null: Graphile's back-off), $8 times of the next attempt (null:
-- after the delay), $9 whether no attempt is left.
-- Returns the id of each job that was written, with true, and the id of each job that was not because another
-- transaction keeps it or its queue locked, with false. Also returns whether the job has no attempts left: this may be
-- so although $9 is false, if the job was removed by its key while it ran. The claims of the other jobs are lost; their
-- queues are freed as well. Locks the jobs and their queues; primary keys.
-- Joins no tables: see complete_claimed_queued.sql.
with claim as materialized (
  select claim.id, claim.locked_at, claim.queue_id
  from unnest($2::bigint[], $3::timestamptz[], $4::integer[]) as claim (id, locked_at, queue_id)
), standing as materialized (
  select job.id
  from {schema}._private_jobs as job
  where job.id = any ($2::bigint[])
    and job.locked_by is not distinct from $1::text
    and ((job.id, job.locked_at) not in (select claim.id, claim.locked_at from claim)) is false
), locked_job as materialized (
  select job.id
  from {schema}._private_jobs as job
  where job.id = any ($2::bigint[])
    and job.locked_by is not distinct from $1::text
    and ((job.id, job.locked_at) not in (select claim.id, claim.locked_at from claim)) is false
  for update skip locked
), own_queue as materialized (
  -- If a claim was lost, its queue is still locked by it if the queue has the time of the claim.
  select claim.id, queue.id as queue_id
  from claim
  cross join lateral (
    select queue.id, queue.locked_at
    from {schema}._private_job_queues as queue
    where queue.id = claim.queue_id
      and queue.locked_by is not distinct from $1::text
    limit 1
  ) as queue
  where queue.locked_at = claim.locked_at
    or claim.id in (select standing.id from standing)
), locked_queue as materialized (
  select queue.id
  from {schema}._private_job_queues as queue
  where queue.id = any (array(select own_queue.queue_id from own_queue))
    and queue.locked_by is not distinct from $1::text
  for update skip locked
), blocked as materialized (
  select standing.id
  from standing
  where standing.id not in (select locked_job.id from locked_job)
  union
  select own_queue.id
  from own_queue
  where own_queue.queue_id not in (select locked_queue.id from locked_queue)
), released as (
  update {schema}._private_jobs as job
  set
    last_error = failure.error,
    run_at = coalesce(
      failure.run_at,
      greatest(pg_catalog.now(), job.run_at)
        + coalesce(failure.delay, pg_catalog.exp(least(job.attempts, 10))) * interval '1 second'
    ),
    attempts = case when failure.gives_up then greatest(job.attempts, job.max_attempts) else job.attempts end,
    payload = coalesce(failure.payload::json, job.payload),
    updated_at = pg_catalog.now(),
    locked_by = null,
    locked_at = null
  from unnest(
    $2::bigint[], $5::text[], $6::text[], $7::float8[], $8::timestamptz[], $9::boolean[]
  ) as failure (id, error, payload, delay, run_at, gives_up)
  where job.id = any (array(
    select locked_job.id
    from locked_job
    where locked_job.id not in (select blocked.id from blocked)
  ))
    and job.id = failure.id
  returning job.id, job.attempts >= job.max_attempts as is_permanent
), freed as (
  update {schema}._private_job_queues as queue
  set locked_by = null, locked_at = null
  where queue.id = any (array(
    select own_queue.queue_id
    from own_queue
    where own_queue.id not in (select blocked.id from blocked)
  ))
)
select released.id, true as is_written, released.is_permanent
from released
union all
select blocked.id, false as is_written, false as is_permanent
from blocked
