-- Deletes the jobs that succeeded, as long as they are still this worker's. Returns the ids that were.
-- $1 the worker, $2 the ids. Locks those jobs; primary key. For jobs without a queue.
delete from {schema}._private_jobs as job
where job.id = any ($2::bigint[])
  and job.locked_by = $1::text
returning job.id
