-- Frees jobs and queues that dead workers have locked, except for rows that other transactions keep locked. The caller
-- repeats the statement for those: forget_workers.sql keeps the row of a dead worker until it has nothing locked.
-- $1 the crash limit, $2 the largest number of jobs, $3 whether to free orphans too: locks of workers that were
-- declared dead earlier and whose row is gone. One of their statements arrived late, or they claimed before they had
-- registered again. Such a lock must be as old as the worker's threshold, since a resumed worker registers sooner.
-- $4 the delay in seconds after which freed jobs are due again; 0 leaves their time as it is.
-- Returns a row for each freed job: worker, job.
-- A crash restores the attempt and is counted separately. At the limit the job fails permanently, its error names the
-- workers, and its count is deleted, so that a manual retry starts anew. Which of several jobs killed the worker is not
-- known. Therefore jobs without a queue become due again at different times within a second per crash. Otherwise they
-- would be claimed together again, and the innocent ones would reach the limit together with the one that kills. A
-- queued job keeps its time, unless there is a delay, so that the queue goes on where it was. A queue is freed with
-- its job and not before, so that the jobs of a queue stay in order.
-- Locks the rows of dead workers, then jobs, then queues, and skips rows that others have locked: never waits.
-- _atta_jobs_locked_index for the jobs, of all workers; one scan of the queues.
-- With 20 dead workers, 2,100 jobs of theirs and 6 million other jobs, three such statements take 140 ms in all.
with declared as materialized (
  select worker.id, pg_catalog.format('%s (process %s on %s)', worker.id, worker.pid, worker.host) as name
  from {schema}._atta_workers as worker
  where worker.declared_dead_at is not null
  for update skip locked
), dead as materialized (
  select declared.id, declared.name, 'infinity'::timestamptz as locked_before
  from declared
  union all
  select death.worker_id, death.worker_id, pg_catalog.now() - death.recovery_threshold
  from {schema}._atta_dead_workers as death
  where $3::boolean
    and not exists (select from {schema}._atta_workers as worker where worker.id = death.worker_id)
), locked_job as materialized (
  select job.id, job.job_queue_id, job.locked_by as worker_id
  from {schema}._private_jobs as job
  where job.locked_at is not null
    and job.locked_by = any (array(select dead.id from dead))
    and job.locked_at < (select pg_catalog.max(dead.locked_before) from dead where dead.id = job.locked_by)
  limit $2::bigint
  for update skip locked
), named_job as materialized (
  select
    locked_job.id,
    locked_job.job_queue_id,
    locked_job.worker_id,
    (select pg_catalog.max(dead.name) from dead where dead.id = locked_job.worker_id) as name
  from locked_job
), still_locked as materialized (
  select job.job_queue_id, job.locked_by
  from {schema}._private_jobs as job
  where job.locked_at is not null
    and job.job_queue_id is not null
    and job.locked_by = any (array(select dead.id from dead))
    and not job.id in (select locked_job.id from locked_job)
), crash as materialized (
  select
    named_job.id as job_id,
    named_job.name,
    coalesce(earlier.crashes, 0) + 1 as crashes,
    -- Only the last twenty: with a high limit, the row must not grow forever.
    pg_catalog.array_append(
      (earlier.crashed_workers)[greatest(1, pg_catalog.cardinality(earlier.crashed_workers) - 18):],
      pg_catalog.format(
        '%s, recovered at %s',
        named_job.name,
        pg_catalog.to_char(pg_catalog.now() at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')
      )
    ) as crashed_workers,
    coalesce(earlier.crashes, 0) + 1 >= $1::bigint as is_last,
    named_job.job_queue_id is null and pg_catalog.count(*) over (partition by named_job.worker_id) > 1 as is_spread
  from named_job
  left join {schema}._atta_crashes as earlier on earlier.job_id = named_job.id
), counted as (
  insert into {schema}._atta_crashes as counted (job_id, crashes, crashed_workers)
  select crash.job_id, crash.crashes, crash.crashed_workers
  from crash
  where not crash.is_last
  on conflict (job_id) do update set
    crashes = counted.crashes + 1,
    crashed_workers = excluded.crashed_workers,
    last_crashed_at = pg_catalog.now()
), uncounted as (
  delete from {schema}._atta_crashes as counted
  using crash
  where counted.job_id = crash.job_id
    and crash.is_last
), freed_job as (
  update {schema}._private_jobs as job
  set
    locked_by = null,
    locked_at = null,
    run_at = case
      when crash.is_spread then greatest(
        job.run_at,
        pg_catalog.now()
          + ($4::float8 + pg_catalog.random() * crash.crashes::float8) * interval '1 second'
      )
      when $4::float8 > 0::float8 then greatest(
        job.run_at, pg_catalog.now() + $4::float8 * interval '1 second'
      )
      else job.run_at
    end,
    attempts = case when crash.is_last then job.max_attempts else greatest(0, job.attempts - 1) end,
    last_error = case
      when crash.is_last then pg_catalog.format(
        'the crash limit is reached: %s workers died while they had this job: %s',
        crash.crashes, pg_catalog.array_to_string(crash.crashed_workers, '; ')
      )
      else pg_catalog.format('worker %s died while it had this job (crash %s of %s)', crash.name, crash.crashes, $1::bigint)
    end,
    updated_at = pg_catalog.now()
  from crash
  -- By a list too: a plan that was made while the table was almost empty must not read all of it later.
  where job.id = any (array(select crash.job_id from crash))
    and job.id = crash.job_id
), locked_queue as materialized (
  select queue.id
  from {schema}._private_job_queues as queue
  where queue.locked_at is not null
    and queue.locked_by = any (array(select dead.id from dead))
    and queue.locked_at < (select pg_catalog.max(dead.locked_before) from dead where dead.id = queue.locked_by)
    and not (queue.id, queue.locked_by) in (
      select still_locked.job_queue_id, still_locked.locked_by
      from still_locked
    )
  for update skip locked
), freed_queue as (
  update {schema}._private_job_queues as queue
  set locked_by = null, locked_at = null
  where queue.id = any (array(select locked_queue.id from locked_queue))
)
select locked_job.worker_id, locked_job.id as job_id
from locked_job
