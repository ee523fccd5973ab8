-- Durably claims jobs that this worker held until their connection was lost. Skips jobs that another worker has claimed
-- since, and jobs that were changed by their key, because the changed job has not been started yet. Jobs that this
-- worker has already locked are claimed again: either an earlier attempt of this statement locked them and its reply
-- was lost, or another claim of this worker did, which the worker returns because it already knows these jobs. Never
-- waits for a row. $1 the worker, $2 the ids; as they were when held: $3 their attempts, $4 their revisions, $5 when
-- they were created. In a schema that was created anew, another job may have the same id, but not the same time of
-- creation. Returns the ids of the jobs that this worker has now, with the time of the claim, and the ids of those that
-- another transaction keeps locked, with null. Locks the jobs that it claims; primary key. Joins no tables: see
-- complete_claimed_queued.sql.
with held as materialized (
  select held.id, held.attempts, held.revision, held.created_at
  from unnest($2::bigint[], $3::smallint[], $4::integer[], $5::timestamptz[])
    as held (id, attempts, revision, created_at)
), untouched as materialized (
  select job.id
  from held
  cross join lateral (
    select job.id
    from {schema}._private_jobs as job
    where job.id = held.id
      and job.revision = held.revision
      and least(greatest(job.created_at, timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 00:00:00Z')
        = held.created_at
      and (
        (job.locked_at is null and job.attempts = held.attempts)
        or (job.locked_by = $1::text and job.attempts = held.attempts + 1)
      )
    limit 1
  ) as job
), locked_job as materialized (
  select job.id
  from held
  cross join lateral (
    select job.id
    from {schema}._private_jobs as job
    where job.id = held.id
      and job.revision = held.revision
      and least(greatest(job.created_at, timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 00:00:00Z')
        = held.created_at
      and (
        (job.locked_at is null and job.attempts = held.attempts)
        or (job.locked_by = $1::text and job.attempts = held.attempts + 1)
      )
    for update skip locked
  ) as job
), claimed as (
  update {schema}._private_jobs as job
  set
    attempts = case when job.locked_at is null then job.attempts + 1 else job.attempts end,
    locked_by = $1::text,
    locked_at = pg_catalog.now()
  where job.id = any (array(select locked_job.id from locked_job))
  returning job.id, job.locked_at
)
select claimed.id, claimed.locked_at
from claimed
union all
select untouched.id, null::timestamptz as locked_at
from untouched
where untouched.id not in (select locked_job.id from locked_job)
