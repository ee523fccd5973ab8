-- Claims jobs durably that were held until their connection was lost, unless somebody else has had them since, or has
-- given them another payload by their key: that is work which nobody has begun. Jobs that are this worker's already are
-- taken over: by an earlier try whose reply was lost, or by a claim of this worker that it returns, since it knows the jobs.
-- Never waits for a row. $1 the worker, $2 the ids, $3 their attempts, $4 their revisions and $5 the times of their creation as
-- they were. In a schema that was made anew, another job may have the same number; it was created at another time.
-- Returns the ids of those that are this worker's by it, with the time of the claim, and of those that another transaction
-- keeps locked, with null. Locks the jobs that it claims; primary key; no joins of tables, as in complete_claimed_queued.sql.
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
