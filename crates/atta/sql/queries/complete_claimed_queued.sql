-- Completes jobs, some of them in queues: deletes those whose claims are still valid, and frees their queues. Never
-- waits for a row. $1 the worker; arrays with an entry per job: $2 ids, $3 when each was claimed, $4 their queues, or
-- nulls.
-- Returns the id of each job that was deleted, with true, and the id of each job that was not because another
-- transaction keeps it or its queue locked, with false. The claims of the other jobs are lost; their queues are freed
-- as well. Locks the jobs and their queues; primary keys.
-- Finds rows by lists of their ids and joins no tables: otherwise a plan that PostgreSQL made while the tables were
-- almost empty would read all of them later.
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
  delete from {schema}._private_jobs as job
  where job.id = any (array(
    select locked_job.id
    from locked_job
    where locked_job.id not in (select blocked.id from blocked)
  ))
  returning job.id
), freed as (
  update {schema}._private_job_queues as queue
  set locked_by = null, locked_at = null
  where queue.id = any (array(
    select own_queue.queue_id
    from own_queue
    where own_queue.id not in (select blocked.id from blocked)
  ))
)
select released.id, true as is_written
from released
union all
select blocked.id, false as is_written
from blocked
