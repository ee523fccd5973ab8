-- Completes jobs without a queue: deletes those whose claims are still valid. Never waits for a row. $1 the worker;
-- arrays with an entry per job: $2 ids, $3 when each was claimed. A later claim of the same job by the same worker has
-- another time. Returns the id of each job that was deleted, with true, and of each that another transaction keeps
-- locked, with false. The claims of the other jobs are lost. Locks the jobs that it deletes; primary key. Joins no
-- tables: see complete_claimed_queued.sql.
with claim as materialized (
  select claim.id, claim.locked_at
  from unnest($2::bigint[], $3::timestamptz[]) as claim (id, locked_at)
), locked_job as materialized (
  select job.id
  from {schema}._private_jobs as job
  where job.id = any ($2::bigint[])
    and job.locked_by is not distinct from $1::text
    and ((job.id, job.locked_at) not in (select claim.id, claim.locked_at from claim)) is false
  for update skip locked
), completed as (
  delete from {schema}._private_jobs as job
  where job.id = any (array(select locked_job.id from locked_job))
  returning job.id
)
select completed.id, true as is_written
from completed
union all
select job.id, false as is_written
from {schema}._private_jobs as job
-- Usually all are locked, and this is not even looked at.
where (select pg_catalog.count(*) from locked_job) < pg_catalog.cardinality($2::bigint[])
  and job.id = any ($2::bigint[])
  and job.locked_by is not distinct from $1::text
  and ((job.id, job.locked_at) not in (select claim.id, claim.locked_at from claim)) is false
  and job.id not in (select locked_job.id from locked_job)
