-- Completes jobs without a queue that one claim took: deletes those whose claims are still valid. Like
-- complete_many_claimed.sql, but with one time for all jobs, which costs less per job.
-- $1 the worker, $2 the ids, $3 when they were claimed.
-- Returns the id of each job that was deleted, with true. The claims of the other jobs are lost. Primary key.
delete from {schema}._private_jobs as job
where job.id = any ($2::bigint[])
  and job.locked_by is not distinct from $1::text
  -- With "=", an old plan might read all locked jobs by their index.
  and job.locked_at is not distinct from $3::timestamptz
returning job.id, true as is_written
