-- Returns jobs that this worker has locked but does not know about: the reply to their claim was lost. Also frees queues
-- that it has locked without a job: the job was deleted before its claim was known.
-- $1 the worker, $2 the ids of the jobs that it knows, $3 the ids of their queues. Never waits for a row. The result has the
-- ids that it did not know: with true those that were returned, with false those that another transaction keeps locked, or
-- whose queue it does. The worker must not run any claim at the same time. Locks those jobs and their queues;
-- _atta_jobs_locked_index and primary keys. Scans the table of queues, which has no index by worker.
-- Joins no tables: see complete_claimed_queued.sql.
with unknown as materialized (
  select job.id, job.job_queue_id
  from {schema}._private_jobs as job
  where job.locked_at is not null
    and job.locked_by = $1::text
    and job.id <> all ($2::bigint[])
), locked_job as materialized (
  select job.id, job.job_queue_id
  from {schema}._private_jobs as job
  where job.id = any (array(select unknown.id from unknown))
    and job.locked_by is not distinct from $1::text
  for update skip locked
), own_queue as materialized (
  select queue.id
  from {schema}._private_job_queues as queue
  where queue.id = any (array(select locked_job.job_queue_id from locked_job where locked_job.job_queue_id is not null))
    and queue.locked_by is not distinct from $1::text
), locked_queue as materialized (
  select queue.id
  from {schema}._private_job_queues as queue
  where queue.id = any (array(select own_queue.id from own_queue))
    and queue.locked_by is not distinct from $1::text
  for update skip locked
), empty_queue as materialized (
  select queue.id
  from {schema}._private_job_queues as queue
  where queue.locked_at is not null
    and queue.locked_by = $1::text
    and queue.id <> all ($3::integer[])
    and queue.id <> all (array(
      select job.job_queue_id
      from {schema}._private_jobs as job
      where job.locked_at is not null
        and job.locked_by = $1::text
        and job.job_queue_id is not null
    ))
  for update skip locked
), returned as (
  update {schema}._private_jobs as job
  set attempts = greatest(0, job.attempts - 1), locked_by = null, locked_at = null
  where job.id = any (array(
    select locked_job.id
    from locked_job
    where locked_job.job_queue_id is null
      or locked_job.job_queue_id not in (select own_queue.id from own_queue)
      or locked_job.job_queue_id in (select locked_queue.id from locked_queue)
  ))
  returning job.id
), freed as (
  update {schema}._private_job_queues as queue
  set locked_by = null, locked_at = null
  where queue.id = any (array(
    select locked_queue.id
    from locked_queue
    union all
    select empty_queue.id
    from empty_queue
  ))
)
select unknown.id, unknown.id in (select returned.id from returned) as is_returned
from unknown
