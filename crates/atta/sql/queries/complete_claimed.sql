-- Completes jobs without a queue: deletes those whose claims still stand. Never waits for a row.
-- $1 the worker; arrays with an entry per job: $2 ids, $3 when each was claimed. A later claim of the same job by the same
-- worker has another time.
-- Returns the id of each job that was deleted, with true, and of each that another transaction keeps locked or has just
-- changed, with false. The claims of the other jobs are lost. Locks the jobs that it deletes; primary key.
with claim as materialized (
  select claim.id, claim.locked_at
  from unnest($2::bigint[], $3::timestamptz[]) as claim (id, locked_at)
), locked_job as materialized (
  select job.id, job.ctid as place
  from claim
  join {schema}._private_jobs as job on job.id = claim.id
  where job.locked_by = $1::text
    and job.locked_at = claim.locked_at
  for update of job skip locked
), completed as (
  -- By their places: nobody can move rows that are locked here. A row that was changed after this statement began has a new
  -- place, where this statement can't see it: it is deleted by the next one.
  delete from {schema}._private_jobs as job
  where job.ctid = any (array(select locked_job.place from locked_job))
  returning job.id
)
select completed.id, true as is_written
from completed
union all
select job.id, false as is_written
from claim
join {schema}._private_jobs as job on job.id = claim.id
-- Usually all are deleted, and this is not even looked at.
where (select pg_catalog.count(*) from completed) < pg_catalog.cardinality($2::bigint[])
  and job.locked_by = $1::text
  and job.locked_at = claim.locked_at
  and job.id not in (select completed.id from completed)
