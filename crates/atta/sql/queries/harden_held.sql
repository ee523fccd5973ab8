-- Turns held claims into durable ones: the jobs go on after this transaction has ended. $1 the worker, $2 the ids.
-- Returns the ids and when they were claimed by this, which is the time of the transaction. Primary key.
update {schema}._private_jobs as job
set attempts = job.attempts + 1, locked_by = $1::text, locked_at = pg_catalog.now()
where job.id = any ($2::bigint[])
returning job.id, job.locked_at
